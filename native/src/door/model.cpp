#include "door/model.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <nanobind/stl/string.h>

#include "bindings.h"
#include "door/connection.h"
#include "door/door.h"
#include "msgpack_reader.h"

namespace nb = nanobind;

namespace headway::door {
namespace {

// The number of an answer to one of ours, 0: it is something else.
uint64_t answered_number(std::string_view payload) {
    MsgpackReader reader(payload);
    bool is_answer = false;
    std::string_view id;
    const uint64_t num_fields = reader.map_size();
    for (uint64_t i = 0; i < num_fields && !reader.has_failed; ++i) {
        const std::string_view name = reader.string();
        if (name == "type") {
            const std::string_view type = reader.string();
            if (type != "outputs" && type != "embedding" && type != "refused") return 0;
            is_answer = true;
        } else if (name == "request_id") {
            id = reader.string();
        } else {
            reader.skip();
        }
        if (is_answer && !id.empty()) break;
    }
    return is_answer && !reader.has_failed ? number_of(id) : 0;
}

}  // namespace

void call_guarded(const nb::object& callable) {
    if (!callable.is_valid()) return;
    try {
        callable();
    } catch (nb::python_error& error) {
        error.discard_as_unraisable(callable);
    }
}

std::string wire_id(uint64_t number) {
    std::string id(1, 'n');
    id += std::to_string(number);
    return id;
}

uint64_t number_of(std::string_view wire_id) {
    if (wire_id.size() < 2 || wire_id[0] != 'n') return 0;
    uint64_t number = 0;
    const char* end = wire_id.data() + wire_id.size();
    const auto [stop, error] = std::from_chars(wire_id.data() + 1, end, number);
    return error == std::errc() && stop == end ? number : 0;
}

bool Model::has_room(uint64_t num_bytes) const {
    if (num_waiting > 0 || (max_at_work >= 0 && num_at_work >= max_at_work)) return false;
    if (num_at_work == 0) return true;
    if (max_queued >= 0 && num_at_work + 1 - num_places > max_queued) return false;
    return max_open_bytes < 0 || num_open_bytes + static_cast<int64_t>(num_bytes) <= max_open_bytes;
}

std::shared_ptr<Instance> Model::choose(uint64_t num_bytes) {
    if (!has_room(num_bytes)) return nullptr;
    Instance* least = nullptr;
    for (Instance* instance : instances_) {
        if (instance->takes() && (least == nullptr || instance->num_open < least->num_open)) least = instance;
    }
    if (least == nullptr) return nullptr;
    const std::shared_ptr<Instance> chosen = least->shared_from_this();
    if (!is_leased) {
        if (!try_lease.is_valid()) return nullptr;
        try {
            is_leased = nb::cast<bool>(try_lease());
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("a lease for the native way");
        }
    }
    return is_leased && chosen->takes() ? chosen : nullptr;
}

void Model::close() {
    try_lease = nb::object();
    dispatch = nb::object();
}

Instance::Instance(std::shared_ptr<Model> model, std::shared_ptr<FrameWriter> writer, nb::object on_abort,
                   nb::object decode)
    : model_(std::move(model)),
      writer_(std::move(writer)),
      on_abort_(std::move(on_abort)),
      decode_(std::move(decode)) {
    model_->instances_.push_back(this);
}

Instance::~Instance() { std::erase(model_->instances_, this); }

void Instance::send(uint64_t number, InFlight request, std::string_view infer) {
    ++num_open;
    ++model_->num_at_work;
    ++model_->num_in_flight;
    ++model_->num_uses;
    model_->num_open_bytes += static_cast<int64_t>(request.num_bytes);
    in_flight_.emplace(number, std::move(request));
    writer_->write(infer);
}

bool Instance::take(const nb::bytes& payload) {
    if (in_flight_.empty()) return false;
    const auto found = in_flight_.find(answered_number(view_of(payload)));
    if (found == in_flight_.end()) return false;
    Answer answer;
    const bool is_awaited = found->second.connection != nullptr;
    const bool is_plain = is_awaited && found->second.entry->codec->write(view_of(payload), *found->second.asked, answer);
    nb::object outcome;
    if (is_awaited && !is_plain) outcome = decode_(payload);
    const InFlight request = std::move(in_flight_.extract(found).mapped());
    ++model_->num_answered;
    settle(request);
    if (is_plain) {
        request.connection->answer(request, answer, monotonic_s());
    } else if (is_awaited) {
        request.connection->hand_over(request, outcome);
    }
    if (model_->num_waiting > 0) call_guarded(model_->dispatch);
    return true;
}

void Instance::settle(const InFlight& request) {
    --num_open;
    --model_->num_at_work;
    --model_->num_in_flight;
    model_->num_open_bytes -= static_cast<int64_t>(request.num_bytes);
}

void Instance::abandon(uint64_t number) {
    const auto found = in_flight_.find(number);
    if (found == in_flight_.end()) return;
    found->second.connection = nullptr;
    found->second.bytes.clear();  // nobody goes on with it
    try {
        on_abort_(wire_id(number));
    } catch (nb::python_error& error) {
        error.discard_as_unraisable(on_abort_);
    }
}

void Instance::fail(const nb::object& error) {
    is_ready = false;
    const auto failed = std::exchange(in_flight_, {});
    for (const auto& [number, request] : failed) settle(request);
    for (const auto& [number, request] : failed) {
        if (request.connection != nullptr) request.connection->hand_over(request, error);
    }
    // They are its owner's, which would have itself for ever.
    on_abort_ = nb::object();
    decode_ = nb::object();
}

std::vector<std::string> Instance::expire(double now_s, const nb::object& error) {
    std::vector<uint64_t> numbers;
    for (const auto& [number, request] : in_flight_) {
        if (request.connection != nullptr && request.deadline_s() <= now_s) numbers.push_back(number);
    }
    std::vector<std::string> ids;
    for (const uint64_t number : numbers) {
        const auto found = in_flight_.find(number);
        if (found == in_flight_.end()) continue;
        ids.push_back(wire_id(number));
        const std::shared_ptr<Connection> connection = std::move(found->second.connection);
        connection->hand_over(found->second, error);
        const auto told = in_flight_.find(number);  // Python was called
        if (told != in_flight_.end()) told->second.bytes.clear();
    }
    return ids;
}

}  // namespace headway::door
