// headway_wire.Embedding, read from its msgpack without being made into an object. Knows no Python.
#pragma once

#include <cstdint>
#include <string_view>

namespace headway::door {

// Views are into the message.
struct EmbeddingMessage {
    std::string_view request_id;
    std::string_view data;  // little-endian float32
    uint64_t num_tokens = 0;

    // The message must outlive what is told of it. False: it is no Embedding, or not whole and right.
    bool read(std::string_view message);
};

}  // namespace headway::door
