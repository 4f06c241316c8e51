#include "door/text_codec.h"

#include <vector>

#include "door/embedding_message.h"
#include "door/predict_answer.h"
#include "door/predict_request.h"
#include "msgpack_writer.h"

namespace headway::door {

std::unique_ptr<Asked> TextCodec::read(const RequestHead&, std::string_view body, std::string_view wire_id,
                                       std::string& submit) const {
    std::vector<std::string> texts;
    if (!read_predict_texts(body, texts) || texts.size() != 1) return nullptr;
    if (texts[0].empty() || texts[0].size() > kMaxTextBytes) return nullptr;
    auto asked = std::make_unique<Asked>();
    asked->num_bytes = texts[0].size();
    append_msgpack_head(Container::map, 3, submit);
    append_msgpack_string("type", submit);
    append_msgpack_string("submit_text", submit);
    append_msgpack_string("request_id", submit);
    append_msgpack_string(wire_id, submit);
    append_msgpack_string("text", submit);
    append_msgpack_string(prompt_ + texts[0], submit);
    return asked;
}

bool TextCodec::write(std::string_view embedding, const Asked&, Answer& answer) const {
    EmbeddingMessage message;
    if (!message.read(embedding)) return false;
    const std::string_view vectors[] = {message.data};
    answer.content_type = "application/json";
    answer.num_tokens = message.num_tokens;
    return make_embedding_answer(names_, vectors, answer.body);
}

}  // namespace headway::door
