// A worker's Step as msgpack (headway_wire/messages.py), read without being made into objects. Knows no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headway {

// One TokenEvent of a Step. Views are into the message.
struct StepEvent {
    std::string_view bytes;  // all of it
    std::string_view request_id;
    bool is_plain = false;  // choice 0 gained tokens, and nothing more is said: no log-probabilities, no end, no error
    // Of plain ones alone:
    size_t first_id = 0, num_ids = 0;  // a run of StepMessage::token_ids
    uint64_t num_forced = 0;
};

// A Step that was read. One is used again and again, so that its memory is.
class StepMessage {
public:
    static constexpr size_t kMaxEvents = 1 << 16;

    std::vector<StepEvent> events;
    std::vector<int64_t> token_ids;

    // The message must outlive what is asked of it. False: it is no Step, not whole and right, or of over kMaxEvents
    // events; then nothing is told of it.
    bool read(std::string_view message);
    // The message with these of the events alone; indexes ascend.
    std::string with_events(const std::vector<size_t>& kept) const;

private:
    std::string_view before_, after_;  // what is around the array of events
};

}  // namespace headway
