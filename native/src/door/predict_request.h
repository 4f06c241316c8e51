// The plain body of POST /predict for a model that takes tensors or values, or texts to embed, as server/basic/predict reads
// it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "door/infer_message.h"
#include "door/signature.h"

namespace headway::door {

// The body's model_id, found without reading behind it. False: it is not plain.
bool find_model_id(std::string_view body, std::string& model_id);

// Whether an input is read as an image where it could be one: values of such a model are left to Python.
enum class PredictInputs { values, images };

// Fields are written anew. False: the body is not plain, or not right, and what they hold means nothing. Plain are model_id
// and input_data alone: named tensors that fit the signature, or a value (json_value.h) where the model takes them.
bool read_predict(std::string_view body, const Signature& signature, PredictInputs inputs, InferFields& fields);

// The same for an encoder: a text, or a list of texts. False as above, and for a list of none.
bool read_predict_texts(std::string_view body, std::vector<std::string>& texts);

}  // namespace headway::door
