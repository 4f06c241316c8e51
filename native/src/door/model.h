// A model that takes tensors, as the native way sees it: what is open there, and the processes that compute it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nanobind/nanobind.h>

#include "door/frame_writer.h"
#include "door/in_flight.h"

namespace headway::door {

class Instance;

// Counts and limits that the native way shares with worker/infer_client, whose requests and ours are one crowd.
class Model {
public:
    int64_t num_at_work = 0, num_waiting = 0, num_open_bytes = 0;
    // -1: no limit.
    int64_t max_at_work = -1, max_queued = -1, max_open_bytes = -1;
    int64_t num_places = 1;

    // Of the native way alone.
    int64_t num_in_flight = 0;
    bool is_leased = false;    // set by whoever holds the lease (service/standing_lease)
    uint64_t num_uses = 0;     // requests since the lease began
    uint64_t num_answered = 0; // of these

    nanobind::object try_lease;  // () -> bool
    nanobind::object dispatch;   // () -> None: there is a place for one that waits

    // Where a request of so many bytes goes, which is the process with the fewest; nullptr: it would have to wait, or
    // be refused, or there is no lease to be had at once.
    std::shared_ptr<Instance> choose(uint64_t num_bytes);
    // It ended: nothing calls Python any more.
    void close();

private:
    friend class Instance;

    bool has_room(uint64_t num_bytes) const;

    std::vector<Instance*> instances_;
};

// A process of it. Answers are told apart by their ids: "n" and a number are ours.
class Instance : public std::enable_shared_from_this<Instance> {
public:
    // on_abort: called with the id of a request whose client left. decode: a payload as a message; may raise.
    Instance(std::shared_ptr<Model> model, std::shared_ptr<FrameWriter> writer, nanobind::object on_abort,
             nanobind::object decode);
    ~Instance();
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;

    int64_t num_open = 0;  // requests, those of worker/infer_instance too
    bool is_ready = false;

    bool takes() const { return is_ready && writer_ != nullptr; }
    size_t num_in_flight() const { return in_flight_.size(); }
    // Puts it on its way; `infer` is its message.
    void send(uint64_t number, InFlight request, std::string_view infer);
    // Whether a payload was an answer to one of ours: then it is dealt with.
    // Raises what decoding an answer that is not plain does; then nothing has changed.
    bool take(const nanobind::bytes& payload);
    // The client of one is gone: its answer is still owed.
    void abandon(uint64_t number);
    // Those that are open end in Python, with this error. The process is gone: nothing is owed any more.
    void fail(const nanobind::object& error);
    // Those whose deadline is over do so too, but their answers are owed. Their ids.
    std::vector<std::string> expire(double now_s, const nanobind::object& error);

private:
    // It is open no more.
    void settle(const InFlight& request);

    std::shared_ptr<Model> model_;
    std::shared_ptr<FrameWriter> writer_;
    nanobind::object on_abort_, decode_;
    std::unordered_map<uint64_t, InFlight> in_flight_;
};

// Calls it without arguments; what it raises is reported, and goes no further.
void call_guarded(const nanobind::object& callable);

// "n12": the id on the wire of one of ours.
std::string wire_id(uint64_t number);
// 0: it is none.
uint64_t number_of(std::string_view wire_id);

}  // namespace headway::door
