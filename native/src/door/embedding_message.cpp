#include "door/embedding_message.h"

#include <optional>

#include "door/json_reader.h"
#include "msgpack_reader.h"

namespace headway::door {

bool EmbeddingMessage::read(std::string_view message) {
    MsgpackReader reader(message);
    unsigned came = 0;
    num_tokens = 0;
    const uint64_t num_fields = reader.map_size();
    if (num_fields != 3 && num_fields != 4) return false;
    for (uint64_t i = 0; i < num_fields; ++i) {
        const std::string_view key = reader.string();
        if (key == "type") {
            if (reader.string() != "embedding") return false;
            came |= 1;
        } else if (key == "request_id") {
            request_id = reader.string();
            came |= 2;
        } else if (key == "data") {
            data = reader.binary();
            came |= 4;
        } else if (key == "num_tokens") {
            const std::optional<uint64_t> number = reader.try_uint();
            if (!number) return false;
            num_tokens = *number;
            came |= 8;
        } else {
            return false;
        }
    }
    return came == (num_fields == 3 ? 7 : 15) && !reader.has_failed && reader.is_at_end() && is_utf8(request_id);
}

}  // namespace headway::door
