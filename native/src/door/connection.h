// A client's connection, as the native way sees it: one request at a time, whole, and what came behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nanobind/nanobind.h>

#include "bindings_writes.h"
#include "door/in_flight.h"

namespace headway::door {

class Door;
class Instance;
struct RequestHead;

class Connection : public std::enable_shared_from_this<Connection> {
public:
    // protocol: see headway.server.connection; it has answer_in_python() and go_on().
    Connection(std::shared_ptr<Door> door, std::shared_ptr<Outlet> outlet, nanobind::object protocol);

    bool is_listed = false;  // by the Door, as one whose request is not whole

    // A request of it is on the native way, or its answer's end was not told yet: whatever comes has to come here.
    bool is_busy() const { return state_ != State::idle && state_ != State::gathering; }
    // A request is not whole yet; it came first at since_s().
    bool is_gathering() const { return state_ == State::gathering; }
    double since_s() const { return since_s_; }
    double last_answer_s() const { return last_answer_s_; }
    size_t num_bytes_behind() const { return behind_.size(); }
    bool closes() const { return closes_; }

    // Bytes that came. nullopt: they are dealt with; else what the Python way has to be given, now. Must be called only
    // where a request may begin here, or one has: the Python way is between two requests.
    std::optional<nanobind::bytes> take(const nanobind::bytes& data);
    // What was held of a request that is not whole, or came behind the last one; the Python way is given it, or take()
    // once more.
    nanobind::bytes release();
    // Its request does not become whole: it goes on in Python.
    void give_up();
    // The connection ends with the answer of its request.
    void close_after() { closes_ = true; }
    // It is lost. Seconds since the request that is open came, and that one's id; nullopt: there is none.
    std::optional<std::pair<double, std::string>> lose();
    // Of the request that is open; nullptr: there is none.
    const std::shared_ptr<Entry>& entry() const { return entry_; }

    // The request's answer.
    void answer(const InFlight& request, const Answer& answer, double now_s);
    // The request goes the Python way, where `outcome` is what its model says: Outputs, or an error.
    void hand_over(const InFlight& request, const nanobind::object& outcome);

private:
    enum class State { idle, gathering, open, going_on, closed };

    // Whether a request begins with this, so that nothing is left of it. is_gathered: it is gathered_, and held already.
    enum class Fate { taken, partial, other };
    Fate try_begin(std::string_view bytes, bool is_gathered);
    // False: so much can not be held.
    bool begin_to_gather(std::string_view bytes);
    // A request that is whole goes to its model's process. False: it is not plain, or not now; then it is as it was.
    bool begin(InFlight& request, const RequestHead& head, std::string_view body);
    void end_request();

    std::shared_ptr<Door> door_;
    std::shared_ptr<Outlet> outlet_;
    nanobind::object protocol_;
    State state_ = State::idle;
    bool closes_ = false;
    double since_s_ = 0, last_answer_s_ = 0;
    HeldBytes gathered_;      // of a request that is not whole
    size_t num_awaited_ = 0;  // bytes of it, where its head is whole: until then there is nothing to look at
    std::string behind_;      // came after the open request
    std::weak_ptr<Instance> instance_;
    uint64_t number_ = 0;
    std::shared_ptr<Entry> entry_;
    std::string request_id_;
};

}  // namespace headway::door
