#include "door/connection.h"

#include <utility>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "door/door.h"
#include "door/http_answer.h"
#include "door/http_head.h"
#include "door/model.h"
#include "door/predict_answer.h"
#include "door/predict_request.h"

namespace nb = nanobind;

namespace headway::door {
namespace {

constexpr size_t kMaxKept = 4096;  // bytes of memory that a connection keeps between requests

nb::bytes bytes_of(std::string_view view) { return nb::bytes(view.data(), view.size()); }

// Of the connection's protocol. What it raises is reported: one connection's fault is not the others'.
template <typename... Arguments>
void tell(const nb::object& protocol, const char* method, Arguments&&... arguments) {
    if (!protocol.is_valid()) return;
    try {
        protocol.attr(method)(std::forward<Arguments>(arguments)...);
    } catch (nb::python_error& error) {
        error.discard_as_unraisable(protocol);
    }
}

}  // namespace

Connection::Connection(std::shared_ptr<Door> door, std::shared_ptr<Outlet> outlet, nb::object protocol)
    : door_(std::move(door)), outlet_(std::move(outlet)), protocol_(std::move(protocol)) {}

std::optional<nb::bytes> Connection::take(const nb::bytes& data) {
    if (is_busy()) {
        if (state_ != State::closed) behind_ += view_of(data);
        return std::nullopt;
    }
    const bool was_gathering = state_ == State::gathering;
    const std::string_view came = view_of(data);
    if (was_gathering) {
        gathered_.append(came);
        // Else each piece would cost as much as all before it.
        if (gathered_.size() < num_awaited_ && door_->can_hold(0)) return std::nullopt;
    }
    switch (try_begin(was_gathering ? gathered_.view() : came, was_gathering)) {
        case Fate::taken:
            return std::nullopt;
        case Fate::partial:
            if (was_gathering ? door_->can_hold(0) : begin_to_gather(came)) return std::nullopt;
            break;
        case Fate::other:
            break;
    }
    return was_gathering ? release() : data;
}

bool Connection::begin_to_gather(std::string_view bytes) {
    if (!door_->can_hold(bytes.size())) return false;
    gathered_ = door_->make_held();
    gathered_.append(bytes);
    state_ = State::gathering;
    since_s_ = monotonic_s();
    door_->add_gathering(shared_from_this());
    return true;
}

Connection::Fate Connection::try_begin(std::string_view bytes, bool is_gathered) {
    num_awaited_ = 0;
    if (door_->num_entries() == 0) return Fate::other;
    RequestHead head;
    const HeadState state = read_head(bytes, head);
    if (state == HeadState::other) return Fate::other;
    if (state == HeadState::partial) return Fate::partial;
    // Of who is not let in, nothing is gathered.
    const bool may_be_plain = door_->may_know(head.target) && door_->takes_body(head.content_length);
    if (!may_be_plain || !door_->admits(head)) return Fate::other;
    const size_t num_bytes = head.head_bytes + head.content_length;
    if (bytes.size() < num_bytes) {
        num_awaited_ = num_bytes;
        return Fate::partial;
    }
    if (!is_gathered && !door_->can_hold(num_bytes)) return Fate::other;
    const std::string_view body = bytes.substr(head.head_bytes, head.content_length);
    std::shared_ptr<Entry> entry = door_->find(head.target, body);
    if (entry == nullptr) return Fate::other;
    InFlight request;
    request.entry = entry;
    request.arrived_s = monotonic_s();
    request.request_id = head.request_id.empty() ? door_->make_request_id() : std::string(head.request_id);
    request.bytes = door_->make_held();
    request.bytes.append(bytes.substr(0, num_bytes));
    // What begins may end at once, and asks for these then.
    const State before = std::exchange(state_, State::open);
    since_s_ = request.arrived_s;
    entry_ = entry;
    request_id_ = request.request_id;
    behind_ = bytes.substr(num_bytes);
    ++door_->num_open;
    if (begin(request, head, body)) {
        gathered_.clear();
        return Fate::taken;
    }
    end_request();
    behind_.clear();
    state_ = before;
    return Fate::other;
}

bool Connection::begin(InFlight& request, const RequestHead& head, std::string_view body) {
    const uint64_t number = door_->next_number();
    std::string infer;
    request.asked = entry_->codec->read(head, body, wire_id(number), infer);
    if (request.asked == nullptr || infer.size() > FrameWriter::kMaxFrameBytes) return false;
    request.num_bytes = request.asked->num_bytes;
    const std::shared_ptr<Instance> instance = entry_->model->choose(request.num_bytes);
    if (instance == nullptr) return false;
    request.connection = shared_from_this();
    instance_ = instance;
    number_ = number;
    instance->send(number, std::move(request), infer);
    return true;
}

nb::bytes Connection::release() {
    const bool was_gathering = state_ == State::gathering;
    if (was_gathering || state_ == State::going_on) state_ = State::idle;
    const nb::bytes held = bytes_of(was_gathering ? gathered_.view() : std::string_view(behind_));
    gathered_.clear();
    behind_ = {};
    return held;
}

std::optional<std::pair<double, std::string>> Connection::lose() {
    std::optional<std::pair<double, std::string>> left;
    const bool was_open = state_ == State::open;
    state_ = State::closed;
    gathered_.clear();
    behind_ = {};
    if (was_open) {
        left.emplace(monotonic_s() - since_s_, request_id_);
        --door_->num_open;
        if (const std::shared_ptr<Instance> instance = instance_.lock()) instance->abandon(number_);
    }
    protocol_ = nb::object();
    return left;
}

void Connection::give_up() {
    if (state_ == State::gathering) tell(protocol_, "feed", release());
}

void Connection::end_request() {
    --door_->num_open;
    instance_.reset();
    number_ = 0;
    entry_.reset();
    request_id_ = {};
}

void Connection::answer(const InFlight& request, const Answer& answer, double now_s) {
    if (state_ != State::open) return;
    AnswerHead head;
    head.date = door_->date();
    head.content_type = answer.content_type;
    head.content_length = answer.body.size();
    head.json_length = answer.json_length;
    head.request_id = request.request_id;
    head.closes = closes_;
    std::string text;
    text.reserve(512);
    append_answer_head(head, text);
    door_->write(outlet_, text, answer.body, closes_);
    const double seconds = now_s - request.arrived_s;
    request.entry->counts->add(seconds, answer.num_tokens);
    door_->record(request.entry->counts, request.request_id, seconds);
    end_request();
    last_answer_s_ = now_s;
    if (closes_) {
        state_ = State::closed;
        behind_ = {};
    } else if (behind_.empty()) {
        state_ = State::idle;
        if (behind_.capacity() > kMaxKept) behind_.shrink_to_fit();
    } else {
        state_ = State::going_on;
        tell(protocol_, "go_on");
    }
}

void Connection::hand_over(const InFlight& request, const nb::object& outcome) {
    if (state_ != State::open) return;
    end_request();
    state_ = State::idle;
    std::string bytes(request.bytes.view());
    bytes += std::exchange(behind_, {});
    tell(protocol_, "answer_in_python", bytes_of(bytes), outcome, request.arrived_s);
}

}  // namespace headway::door
