#include "door/connection.h"

#include <utility>

#include "bindings.h"
#include "door/door.h"
#include "door/http_answer.h"
#include "door/http_head.h"
#include "door/model.h"

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
        if (state_ != State::closed) bytes_ += view_of(data);
        return std::nullopt;
    }
    const bool was_gathering = state_ == State::gathering;
    if (was_gathering) bytes_ += view_of(data);
    // What begins below may change bytes_: it is looked at where it stays.
    const std::string gathered = was_gathering ? std::exchange(bytes_, {}) : std::string();
    state_ = State::idle;
    const std::string_view bytes = was_gathering ? std::string_view(gathered) : view_of(data);
    switch (try_begin(bytes)) {
        case Fate::taken:
            return std::nullopt;
        case Fate::partial:
            bytes_ = bytes;
            state_ = State::gathering;
            if (!was_gathering) {
                since_s_ = monotonic_s();
                door_->add_gathering(shared_from_this());
            }
            return std::nullopt;
        case Fate::other:
            break;
    }
    return was_gathering ? bytes_of(bytes) : data;
}

Connection::Fate Connection::try_begin(std::string_view bytes) {
    if (door_->num_entries() == 0) return Fate::other;
    RequestHead head;
    const HeadState state = read_head(bytes, head);
    if (state == HeadState::other) return Fate::other;
    if (state == HeadState::partial) return Fate::partial;
    if (!door_->may_know(head.target) || head.content_length > kMaxRequestBytes) return Fate::other;
    const size_t num_bytes = head.head_bytes + head.content_length;
    if (bytes.size() < num_bytes) return Fate::partial;
    const std::string_view body = bytes.substr(head.head_bytes, head.content_length);
    std::shared_ptr<Entry> entry = door_->find(head.target, body);
    if (entry == nullptr || !door_->admits(head)) return Fate::other;
    const uint64_t number = door_->next_number();
    std::string infer;
    std::unique_ptr<Asked> asked = entry->codec->read(head, body, wire_id(number), infer);
    if (asked == nullptr || infer.size() > FrameWriter::kMaxFrameBytes) return Fate::other;
    const std::shared_ptr<Instance> instance = entry->model->choose(asked->num_bytes);
    if (instance == nullptr) return Fate::other;
    InFlight request;
    request.entry = entry;
    request.connection = shared_from_this();
    request.num_bytes = asked->num_bytes;
    request.asked = std::move(asked);
    request.bytes = bytes.substr(0, num_bytes);
    request.request_id = head.request_id.empty() ? door_->make_request_id() : std::string(head.request_id);
    request.arrived_s = since_s_ = monotonic_s();
    bytes_ = bytes.substr(num_bytes);
    state_ = State::open;
    instance_ = instance;
    number_ = number;
    entry_ = std::move(entry);
    request_id_ = request.request_id;
    ++door_->num_open;
    instance->send(number, std::move(request), infer);
    return Fate::taken;
}

nb::bytes Connection::release() {
    if (state_ == State::gathering || state_ == State::going_on) state_ = State::idle;
    const std::string held = std::exchange(bytes_, {});
    return bytes_of(held);
}

std::optional<std::pair<double, std::string>> Connection::lose() {
    std::optional<std::pair<double, std::string>> left;
    const bool was_open = state_ == State::open;
    state_ = State::closed;
    bytes_ = {};
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
    request.entry->counts->add(seconds);
    door_->record(request.entry->counts, request.request_id, seconds);
    end_request();
    last_answer_s_ = now_s;
    if (closes_) {
        state_ = State::closed;
        bytes_ = {};
    } else if (bytes_.empty()) {
        state_ = State::idle;
        if (bytes_.capacity() > kMaxKept) bytes_.shrink_to_fit();
    } else {
        state_ = State::going_on;
        tell(protocol_, "go_on");
    }
}

void Connection::hand_over(const InFlight& request, const nb::object& outcome) {
    if (state_ != State::open) return;
    end_request();
    state_ = State::idle;
    const std::string behind = std::exchange(bytes_, {});
    tell(protocol_, "answer_in_python", bytes_of(request.bytes + behind), outcome, request.arrived_s);
}

}  // namespace headway::door
