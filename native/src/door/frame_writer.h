// What goes down to a worker process: all frames of one turn of the event loop, at its end in one write.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include <nanobind/nanobind.h>

#include "bindings_writes.h"

namespace headway::door {

// Each write would wake the child, which has a core to itself seldom, and would take its first request alone where it
// could take a batch.
class FrameWriter {
public:
    static constexpr size_t kMaxFrameBytes = 256 * 1024 * 1024;  // headway_wire/framing

    // schedule: called with no arguments where flush() has to be called at the end of the turn.
    FrameWriter(nanobind::object transport, int fd, nanobind::object schedule);

    // Throws std::length_error for a payload over kMaxFrameBytes. Nothing happens if the transport is closing by then.
    void write(std::string_view payload);
    void flush() { queue_.flush(); }
    // The connection is lost: what waits is dropped, and what comes.
    void lose();

private:
    WriteQueue queue_;
    std::shared_ptr<Outlet> outlet_;
    nanobind::object schedule_;
    bool is_lost_ = false;
};

}  // namespace headway::door
