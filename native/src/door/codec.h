// What a path's requests are read with, and its answers written with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "door/http_head.h"

namespace headway::door {

// What the answer needs of its request.
class Asked {
public:
    virtual ~Asked() = default;

    uint64_t num_bytes = 0;  // of its inputs, as worker/infer_client counts what is open
};

struct Answer {
    std::string body;
    std::string_view content_type;
    std::optional<size_t> json_length;  // of a body with binary data behind its JSON
    uint64_t num_tokens = 0;            // of an encoder's texts
};

class Codec {
public:
    virtual ~Codec() = default;

    // Appends headway_wire.Infer, or SubmitText, as msgpack. nullptr: the request is not plain, and what was appended means nothing.
    virtual std::unique_ptr<Asked> read(const RequestHead& head, std::string_view body, std::string_view wire_id,
                                        std::string& infer) const = 0;
    // The answer of a payload that is headway_wire.Outputs, or Embedding, or an end without these. False: it is not plain.
    virtual bool write(std::string_view outputs, const Asked& asked, Answer& answer) const = 0;
};

}  // namespace headway::door
