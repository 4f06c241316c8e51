#include "door/infer_codec.h"

#include "door/infer_message.h"
#include "door/infer_request.h"
#include "door/outputs_message.h"

namespace headway::door {
namespace {

struct InferAsked : Asked {
    Wish wish;
};

// Used again and again, so that their memory is; of each thread that has a door.
thread_local InferFields fields;
thread_local OutputsMessage message;
constexpr size_t kMaxKept = 1 << 20;

}  // namespace

std::unique_ptr<Asked> InferCodec::read(const RequestHead& head, std::string_view body, std::string_view wire_id,
                                        std::string& infer) const {
    auto asked = std::make_unique<InferAsked>();
    if (!read_infer(body, head.json_length, signature_, fields, asked->wish)) return nullptr;
    append_infer(wire_id, fields, infer);
    asked->num_bytes = fields.num_bytes;
    if (fields.msgpack.capacity() > kMaxKept) fields.msgpack = {};
    return asked;
}

bool InferCodec::write(std::string_view outputs, const Asked& asked, Answer& answer) const {
    InferAnswer made;
    if (!message.read(outputs)) return false;
    if (!make_infer_answer(names_, static_cast<const InferAsked&>(asked).wish, message, sign_, made)) return false;
    answer.body = std::move(made.body);
    answer.content_type = made.is_binary ? "application/octet-stream" : "application/json";
    if (made.is_binary) answer.json_length = made.json_length;
    return true;
}

}  // namespace headway::door
