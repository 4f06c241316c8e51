// A request on the native way, and what all requests of a path share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "door/codec.h"
#include "door/held_bytes.h"
#include "stream/token_times.h"

namespace headway::door {

class Connection;
class Model;

// What was answered here since Python took the counts over.
struct Counts {
    std::string handler;  // the route, for metrics and the log
    std::shared_ptr<HistogramCounts> http_seconds, infer_seconds;  // infer_seconds: of the model; nullptr: told elsewhere

    uint64_t num_answered = 0, num_tokens = 0;
    double seconds = 0;
    int64_t last_unix_ms = 0;

    void add(double duration_s, uint64_t more_tokens);
};

// Where a path leads.
struct Entry {
    std::shared_ptr<Counts> counts;
    std::shared_ptr<Model> model;
    std::shared_ptr<const Codec> codec;
    double timeout_s = std::numeric_limits<double>::infinity();
};

struct InFlight {
    std::shared_ptr<Entry> entry;
    std::shared_ptr<Connection> connection;  // nullptr: nobody waits for the answer any more
    std::unique_ptr<Asked> asked;
    HeldBytes bytes;         // as it came: Python can be given it at any time
    std::string request_id;  // of its head
    double arrived_s = 0;    // monotonic
    uint64_t num_bytes = 0;  // of its inputs

    double deadline_s() const { return arrived_s + entry->timeout_s; }
};

}  // namespace headway::door
