// The door: which paths have a native way, and what all connections of a server share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "bindings_writes.h"
#include "door/held_bytes.h"
#include "door/http_head.h"
#include "door/in_flight.h"

namespace headway::door {

struct TransparentHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// Seconds of Python's time.monotonic().
double monotonic_s();

// An answered request, as its log line tells it.
struct Record {
    std::shared_ptr<Counts> counts;
    std::string request_id;
    double seconds;
};

constexpr std::string_view kPredictPath = "/predict";

struct DoorSettings {
    std::vector<std::string> hosts;     // names that a Host header may have; empty: any
    std::vector<std::string> api_keys;  // empty: no key is asked for
    size_t max_body_bytes;              // a longer one is refused in Python
    size_t max_held_bytes;              // of all requests that are kept as they came
};

class Door {
public:
    static constexpr size_t kMaxBodyBytes = 1 << 20;  // of a request that is kept as it came

    // schedule: called with no arguments where the queue has to be flushed at the end of the turn; on_records the same
    // where there are records; on_gathering where a request is not whole, so that expire() has to be called in a while.
    Door(std::shared_ptr<WriteQueue> queue, nanobind::object schedule, DoorSettings settings, nanobind::object on_records,
         nanobind::object on_gathering)
        : queue_(std::move(queue)),
          schedule_(std::move(schedule)),
          settings_(std::move(settings)),
          on_records_(std::move(on_records)),
          on_gathering_(std::move(on_gathering)) {}

    // What a path leads to; of kPredictPath it leads there where the body names `model`.
    void add(std::string path, std::shared_ptr<Entry> entry) { by_path_.insert_or_assign(std::move(path), std::move(entry)); }
    void add_predict(std::string model, std::shared_ptr<Entry> entry) {
        by_model_.insert_or_assign(std::move(model), std::move(entry));
    }
    void drop() {
        by_path_.clear();
        by_model_.clear();
    }
    size_t num_entries() const { return by_path_.size() + by_model_.size(); }
    // Whether find() may find something.
    bool may_know(std::string_view target) const;
    // nullptr: there is none.
    std::shared_ptr<Entry> find(std::string_view target, std::string_view body) const;

    // Whether a request is called by a name of ours, and has a key where one is asked for; false: Python may know better.
    bool admits(const RequestHead& head) const;
    bool takes_body(size_t num_bytes) const { return num_bytes <= kMaxBodyBytes && num_bytes <= settings_.max_body_bytes; }

    // What is kept of a request: nothing yet.
    HeldBytes make_held() const { return HeldBytes(num_held_); }
    // So many bytes more.
    bool can_hold(size_t num_bytes) const { return *num_held_ + num_bytes <= settings_.max_held_bytes; }
    size_t num_held_bytes() const { return *num_held_; }

    void write(const std::shared_ptr<Outlet>& outlet, std::string_view head, std::string_view body, bool ends);
    std::string_view date();
    std::string make_request_id();
    uint64_t next_number() { return ++last_number_; }

    // Log lines of this turn.
    bool keeps_records = true;
    void record(const std::shared_ptr<Counts>& counts, std::string request_id, double seconds);
    std::vector<Record> take_records() { return std::exchange(records_, {}); }

    // Once until expire() finds that it does not.
    void add_gathering(const std::shared_ptr<Connection>& connection);
    // Those whose request has not become whole within `limit_s` go on in Python. Whether some are left.
    bool expire(double now_s, double limit_s);

    int64_t num_open = 0;  // requests

private:
    std::shared_ptr<WriteQueue> queue_;
    nanobind::object schedule_;
    DoorSettings settings_;
    std::shared_ptr<size_t> num_held_ = std::make_shared<size_t>(0);
    nanobind::object on_records_, on_gathering_;
    using Entries = std::unordered_map<std::string, std::shared_ptr<Entry>, TransparentHash, std::equal_to<>>;
    Entries by_path_, by_model_;
    std::vector<std::weak_ptr<Connection>> gathering_;
    std::vector<Record> records_;
    int64_t date_s_ = -1;
    std::string date_;
    uint64_t last_number_ = 0;
    std::string random_;  // hexadecimal digits for ids
};

}  // namespace headway::door
