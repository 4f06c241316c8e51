// headway_wire.Infer as msgpack: byte for byte what msgspec makes of one without parameters and time-out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "door/signature.h"

namespace headway::door {

// The fields behind the request id, and what is known of them. One is used again and again, so that its memory is.
struct InferFields {
    std::string msgpack;
    size_t count = 0;        // of fields
    uint64_t num_bytes = 0;  // of the inputs, as worker/infer_client counts what is open

    void clear() {
        msgpack.clear();
        count = 0;
        num_bytes = 0;
    }
};

// The whole message.
void append_infer(std::string_view request_id, const InferFields& fields, std::string& out);

// Appends a tensor but for its data, which must follow as msgpack's binary.
void append_tensor_head(const TensorSpec& spec, std::span<const uint64_t> shape, std::string& out);

}  // namespace headway::door
