#include "door/embedding_message.h"

#include "door/json_reader.h"
#include "msgpack_reader.h"

namespace headway::door {

bool EmbeddingMessage::read(std::string_view message) {
    MsgpackReader reader(message);
    unsigned came = 0;
    if (reader.map_size() != 3) return false;
    for (int i = 0; i < 3; ++i) {
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
        } else {
            return false;
        }
    }
    return came == 7 && !reader.has_failed && reader.is_at_end() && is_utf8(request_id);
}

}  // namespace headway::door
