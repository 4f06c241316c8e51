// headway_wire.Embedding, read from its msgpack without being made into an object. Knows no Python.
#pragma once

#include <string_view>

namespace headway::door {

// Views are into the message.
struct EmbeddingMessage {
    std::string_view request_id;
    std::string_view data;  // little-endian float32

    // The message must outlive what is told of it. False: it is no Embedding, or not whole and right.
    bool read(std::string_view message);
};

}  // namespace headway::door
