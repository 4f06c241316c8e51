// What goes out on the connections of an event loop. All of it belongs to the loop's thread.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>

namespace headway {

// A connection's way out: the socket itself while its transport holds nothing back, which costs less than the transport's
// own way there; else the transport, which keeps what the socket does not take and tells of a reader who is behind.
//
// All that is written to the transport must come this way: what it holds back is known by that. Whether it is closing, and
// its descriptor perhaps another connection's already, is asked of it before each write.
class Outlet {
public:
    // fd: of a connected stream socket; -1: everything goes by the transport (an asyncio.Transport).
    Outlet(nanobind::object transport, int fd) : transport_(std::move(transport)), fd_(fd) {}

    // Drops what waits, and the transport: the connection is lost.
    void lose();

private:
    friend class WriteQueue;

    bool is_closing() const;
    bool takes_directly();
    // May be called without the interpreter lock, after takes_directly(). How much the socket took.
    size_t send_waiting() const;
    // Takes num_sent bytes from what waits, and gives the transport the rest.
    void hand_over(size_t num_sent);
    void close() const;

    nanobind::object transport_;
    int fd_;
    std::string waiting_;
    bool ends_ = false;       // it closes after what waits
    bool is_queued_ = false;  // by the WriteQueue
    bool may_hold_back_ = false;  // the transport was given something
};

// The writes of one turn of the event loop, in order: of each connection, and so of all that can be told apart.
class WriteQueue {
public:
    // Both: whether it is the first since flush(), which must follow then, at the end of the turn. Nothing comes behind an
    // end.
    bool add(const std::shared_ptr<Outlet>& outlet, std::initializer_list<std::string_view> parts, bool is_chunk);
    bool add_end(const std::shared_ptr<Outlet>& outlet);
    // Writes all, without the interpreter lock where the sockets take it.
    void flush();

private:
    bool enqueue(const std::shared_ptr<Outlet>& outlet);

    std::vector<std::shared_ptr<Outlet>> outlets_;
};

// The body of one response while its pieces are streamed.
struct StreamedBody {
    std::shared_ptr<WriteQueue> queue;
    std::shared_ptr<Outlet> outlet;
    bool is_chunked;
    nanobind::object schedule;  // called with no arguments where the queue has to be flushed
    bool can_write = false;     // a piece need not wait: set and unset by the owner

    void write(std::initializer_list<std::string_view> parts);
};

}  // namespace headway
