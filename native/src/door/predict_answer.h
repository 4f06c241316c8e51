// The answer to POST /predict of a worker's Outputs, as server/basic/predict makes it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "door/infer_answer.h"
#include "door/outputs_message.h"

namespace headway::door {

// The body, which is JSON, is written anew. False: there is an error, or JSON has no words for an output; then it is Python
// that answers. `model`: its id and version as they are told.
bool make_predict_answer(const ModelNames& model, const OutputsMessage& outputs, std::string& body);
// The same of an encoder's vectors, each little-endian float32.
bool make_embedding_answer(const ModelNames& model, std::span<const std::string_view> vectors, std::string& body);

}  // namespace headway::door
