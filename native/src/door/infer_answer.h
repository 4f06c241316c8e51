// The answer to POST /v2/models/MODEL/infer of a worker's Outputs, as server/oip/answers makes it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "door/infer_request.h"
#include "door/number_text.h"
#include "door/outputs_message.h"

namespace headway::door {

struct ModelNames {
    std::string name, version;  // as they are told
};

struct InferAnswer {
    std::string body;
    bool is_binary = false;  // octets: JSON of json_length bytes, and binary data behind it; else JSON alone
    size_t json_length = 0;
};

// The body is written anew. False: there is an error or a value, an output is not there, or JSON has no words for one; then it is
// Python that answers. `sign`: orjson's.
bool make_infer_answer(const ModelNames& model, const Wish& wish, const OutputsMessage& outputs, ExponentSign sign,
                       InferAnswer& answer);

}  // namespace headway::door
