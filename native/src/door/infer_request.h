// The plain body of POST /v2/models/MODEL/infer, JSON or JSON with binary data behind it, as server/oip/convert reads it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "door/infer_message.h"
#include "door/signature.h"

namespace headway::door {

// In which form an answer's outputs are told.
struct OutputWish {
    std::string name;
    std::optional<bool> is_binary;  // nullopt: as the request says
};

struct Wish {
    std::string id;  // the caller's, to be repeated; empty: none
    bool is_binary = false;
    std::vector<OutputWish> outputs;  // in this order; empty: all

    void clear() {
        id.clear();
        is_binary = false;
        outputs.clear();
    }
};

// Fields and wish are written anew. False: the body is not plain, or not right, and what they hold means nothing. Plain
// are tensors that fit the signature, and outputs that are wanted as they are; no parameters but those that choose
// between JSON and binary data; no null, no key that comes twice.
bool read_infer(std::string_view body, std::optional<size_t> json_length, const Signature& signature, InferFields& fields,
                Wish& wish);

}  // namespace headway::door
