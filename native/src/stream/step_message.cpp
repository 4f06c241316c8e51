#include "stream/step_message.h"

#include <optional>

#include "msgpack_reader.h"
#include "msgpack_writer.h"

namespace headway {
namespace {

constexpr uint64_t kNumFields = 9;  // of a TokenEvent

// Appends the ids; false: there are none, or what is there are not all ids.
bool read_ids(MsgpackReader& reader, std::vector<int64_t>& token_ids) {
    const uint64_t count = reader.array_size();
    for (uint64_t i = 0; i < count && !reader.has_failed; ++i) {
        const std::optional<uint64_t> id = reader.try_uint();
        if (!id || *id > INT64_MAX) return false;
        token_ids.push_back(static_cast<int64_t>(*id));
    }
    return count > 0 && !reader.has_failed;
}

// The fields of a plain event, in the order of headway_wire.TokenEvent; false: it is another one.
bool read_plain(MsgpackReader& reader, StepEvent& event, std::vector<int64_t>& token_ids) {
    const uint64_t num_fields = reader.array_size();
    event.request_id = reader.string();
    if (num_fields != kNumFields || reader.has_failed || reader.try_uint() != uint64_t{0}) return false;
    event.first_id = token_ids.size();
    if (!read_ids(reader, token_ids)) return false;
    event.num_ids = token_ids.size() - event.first_id;
    if (!reader.try_nil() || !reader.try_nil() || !reader.try_nil()) return false;  // logprobs, finish and stop reason
    if (!reader.try_uint() || !reader.try_nil()) return false;  // tokens that were cached, the error
    const std::optional<uint64_t> num_forced = reader.try_uint();
    event.num_forced = num_forced.value_or(0);
    return num_forced.has_value() && !reader.has_failed;
}

}  // namespace

bool StepMessage::read(std::string_view message) {
    events.clear();
    token_ids.clear();
    before_ = after_ = {};
    MsgpackReader reader(message);
    bool is_step = false;
    for (uint64_t field = reader.map_size(); field > 0 && !reader.has_failed; --field) {
        const std::string_view key = reader.string();
        if (key == "type") {
            is_step = reader.string() == "step";
            if (!is_step) return false;
        } else if (key != "events") {
            reader.skip();
        } else if (before_.empty()) {
            before_ = message.substr(0, reader.place());
            for (uint64_t left = reader.array_size(); left > 0 && !reader.has_failed; --left) {
                if (events.size() == kMaxEvents) return false;
                const size_t begin = reader.place();
                StepEvent event;
                MsgpackReader fields(message.substr(begin));
                event.is_plain = read_plain(fields, event, token_ids);
                reader.skip();
                event.bytes = message.substr(begin, reader.place() - begin);
                events.push_back(event);
            }
            after_ = message.substr(reader.has_failed ? message.size() : reader.place());
        } else {
            return false;
        }
    }
    return is_step && !before_.empty() && !reader.has_failed && reader.is_at_end();
}

std::string StepMessage::with_events(const std::vector<size_t>& kept) const {
    std::string out(before_);
    append_msgpack_head(Container::array, kept.size(), out);
    for (const size_t index : kept) out += events[index].bytes;
    return out += after_;
}

}  // namespace headway
