#include "door/predict_codec.h"

#include "door/infer_message.h"
#include "door/outputs_message.h"
#include "door/predict_answer.h"

namespace headway::door {
namespace {

// Used again and again, so that their memory is; of each thread that has a door.
thread_local InferFields fields;
thread_local OutputsMessage message;
constexpr size_t kMaxKept = 1 << 20;

}  // namespace

std::unique_ptr<Asked> PredictCodec::read(const RequestHead&, std::string_view body, std::string_view wire_id,
                                          std::string& infer) const {
    if (!read_predict(body, signature_, inputs_, fields)) return nullptr;
    auto asked = std::make_unique<Asked>();
    append_infer(wire_id, fields, infer);
    asked->num_bytes = fields.num_bytes;
    if (fields.msgpack.capacity() > kMaxKept) fields.msgpack = {};
    return asked;
}

bool PredictCodec::write(std::string_view outputs, const Asked&, Answer& answer) const {
    answer.content_type = "application/json";
    return message.read(outputs) && make_predict_answer(names_, message, answer.body);
}

}  // namespace headway::door
