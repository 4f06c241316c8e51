// The plain token's way through the server without the interpreter: from a Step's bytes to events in a response's body.

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "bindings_writes.h"
#include "stream/plain_text.h"
#include "stream/step_message.h"
#include "stream/token_times.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {
namespace {

nb::bytes bytes_of(std::string_view view) { return nb::bytes(view.data(), view.size()); }

struct ChoiceTimes : TokenTimes {
    std::shared_ptr<HistogramCounts> gaps;

    void add(uint64_t num_new, double now_s) { TokenTimes::add(num_new, now_s, *gaps); }
};

// Where a choice's text goes: each piece an event, which is the head, the piece as a JSON string, and the tail.
struct TextEvents {
    std::shared_ptr<StreamedBody> body;
    std::string head, tail;
    std::shared_ptr<ChoiceTimes> times;
};

// One request's plain tokens, on their way from ids to events while it is open.
class FastStream {
public:
    FastStream(std::shared_ptr<TokenSpelling> spelling, bool skips_special)
        : spelling_(std::move(spelling)), skips_special_(skips_special) {}

    uint64_t num_tokens = 0, num_forced = 0;  // that were taken here

    void open(std::shared_ptr<TextEvents> events, std::string_view held) {
        text_.hold(held);
        events_ = std::move(events);
    }
    // What is held back of a character, for who goes on.
    std::string_view close() {
        events_.reset();
        return text_.held();
    }
    bool is_open() const { return events_ != nullptr; }

    // False: nothing was done, for it cannot be done here now.
    bool take(const StepEvent& event, const StepMessage& step, double now_s) {
        if (!event.is_plain || !is_open() || !events_->body->can_write) return false;
        const auto ids = step.token_ids.begin() + static_cast<ptrdiff_t>(event.first_id);
        const auto end = ids + static_cast<ptrdiff_t>(event.num_ids);
        for (auto id = ids; id != end; ++id) {
            if (!spelling_->bytes_of(*id)) return false;
        }
        new_text_.clear();
        for (auto id = ids; id != end; ++id) {
            if (!skips_special_ || !spelling_->is_special(*id)) text_.push(*spelling_->bytes_of(*id), new_text_);
        }
        num_tokens += event.num_ids;
        num_forced += event.num_forced;
        events_->times->add(event.num_ids, now_s);
        if (!new_text_.empty()) write();
        return true;
    }

private:
    void write() {
        json_.clear();
        append_json_string(new_text_, json_);
        events_->body->write({events_->head, json_, events_->tail});
    }

    std::shared_ptr<TokenSpelling> spelling_;
    bool skips_special_;
    std::shared_ptr<TextEvents> events_;
    Utf8Pieces text_;
    std::string new_text_, json_;  // kept for their memory
};

struct IdHash {
    using is_transparent = void;
    size_t operator()(std::string_view id) const { return std::hash<std::string_view>()(id); }
};

// The open streams of one worker, by their ids on the wire.
class FastStreams {
public:
    void add(std::string request_id, std::shared_ptr<FastStream> stream) {
        streams_.insert_or_assign(std::move(request_id), std::move(stream));
    }
    void remove(std::string_view request_id) {
        const auto found = streams_.find(request_id);
        if (found != streams_.end()) streams_.erase(found);
    }

    // A worker's message, as its bytes -> what is left to be done of it: the same object, or a Step without the events
    // that were taken. A stream of which an event is left takes no more, so that its events stay in order.
    nb::bytes take(nb::bytes message, double now_s) {
        if (streams_.empty() || !step_.read(view_of(message))) return message;
        left_.clear();
        for (size_t index = 0; index < step_.events.size(); ++index) {
            if (!take_event(step_.events[index], now_s)) left_.push_back(index);
        }
        return left_.size() == step_.events.size() ? message : bytes_of(step_.with_events(left_));
    }

private:
    bool take_event(const StepEvent& event, double now_s) {
        const auto found = streams_.find(event.request_id);
        if (found == streams_.end()) return false;
        const std::shared_ptr<FastStream> stream = found->second;  // what it calls may remove it
        if (stream->take(event, step_, now_s)) return true;
        remove(event.request_id);
        return false;
    }

    std::unordered_map<std::string, std::shared_ptr<FastStream>, IdHash, std::equal_to<>> streams_;
    StepMessage step_;
    std::vector<size_t> left_;
};

// Asks Python. What it raises is no answer: whoever goes on in Python asks again, and is told.
TokenSpelling::Spell spell_with(nb::callable spell) {
    return [spell = std::move(spell)](int64_t token_id) -> std::optional<std::string> {
        try {
            return std::string(view_of(nb::cast<nb::bytes>(spell(token_id))));
        } catch (const std::exception&) {
            return std::nullopt;
        }
    };
}

void bind_times(nb::module_& module) {
    nb::class_<HistogramCounts>(module, "HistogramCounts", "Counts of one histogram; see headway.observe.metrics.")
        .def(nb::init<std::vector<double>>(), "bounds"_a)
        .def("observe", &HistogramCounts::observe, "value"_a, "count"_a = 1)
        .def_prop_ro("in_bucket", &HistogramCounts::in_bucket)
        .def_prop_ro("sum", &HistogramCounts::sum);
    nb::class_<ChoiceTimes>(module, "TokenTimes", "When a choice's tokens came.")
        .def(
            "__init__",
            [](ChoiceTimes* self, double now_s, uint64_t num_tokens, std::shared_ptr<HistogramCounts> gaps) {
                new (self) ChoiceTimes{{now_s, now_s, num_tokens}, std::move(gaps)};
            },
            "now_s"_a, "num_tokens"_a, "gaps"_a)
        .def_ro("first_s", &ChoiceTimes::first_s)
        .def_ro("last_s", &ChoiceTimes::last_s)
        .def_ro("num_tokens", &ChoiceTimes::num_tokens)
        .def("add", &ChoiceTimes::add, "num_tokens"_a, "now_s"_a);
}

}  // namespace

void bind_streams(nb::module_& module) {
    bind_times(module);
    nb::class_<TokenSpelling>(module, "TokenSpelling", "The bytes of each token of a vocabulary.")
        .def(
            "__init__",
            [](TokenSpelling* self, int64_t num_tokens, nb::callable spell, const std::vector<int64_t>& special_ids) {
                new (self) TokenSpelling(num_tokens, spell_with(std::move(spell)));
                for (const int64_t token_id : special_ids) self->set_special(token_id);
            },
            "num_tokens"_a, "spell"_a, "special_ids"_a);
    nb::class_<TextEvents>(module, "TextEvents", "Where a choice's text goes.")
        .def(
            "__init__",
            [](TextEvents* self, std::shared_ptr<StreamedBody> body, const nb::bytes& head, const nb::bytes& tail,
               std::shared_ptr<ChoiceTimes> times) {
                new (self) TextEvents{std::move(body), std::string(view_of(head)), std::string(view_of(tail)),
                                      std::move(times)};
            },
            "body"_a, "head"_a, "tail"_a, "times"_a);
    nb::class_<FastStream>(module, "FastStream", "One request's plain tokens.")
        .def(nb::init<std::shared_ptr<TokenSpelling>, bool>(), "spelling"_a, nb::kw_only(), "skips_special"_a)
        .def(
            "open",
            [](FastStream& self, std::shared_ptr<TextEvents> events, const nb::bytes& held) {
                self.open(std::move(events), view_of(held));
            },
            "events"_a, "held"_a)
        .def("close", [](FastStream& self) { return bytes_of(self.close()); })
        .def_prop_ro("is_open", &FastStream::is_open)
        .def_ro("num_tokens", &FastStream::num_tokens)
        .def_ro("num_forced", &FastStream::num_forced);
    nb::class_<FastStreams>(module, "FastStreams", "The open streams of one worker.")
        .def(nb::init<>())
        .def("add", &FastStreams::add, "request_id"_a, "stream"_a)
        .def(
            "remove", [](FastStreams& self, const std::string& request_id) { self.remove(request_id); }, "request_id"_a)
        .def("take", &FastStreams::take, "message"_a, "now_s"_a);
}

}  // namespace headway
