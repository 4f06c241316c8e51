// What headway.server.writes is made of.

#include "bindings_writes.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <utility>

#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"
#include "stream/plain_text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {
namespace {

constexpr size_t kMaxKept = 4096;  // bytes of memory that a connection keeps for its next turn

// The name is made once by the caller: a lookup by characters makes one at each call.
nb::object call(const nb::object& object, PyObject* name) {
    PyObject* self = object.ptr();
    PyObject* result = PyObject_VectorcallMethod(name, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (result == nullptr) nb::raise_python_error();
    return nb::steal(result);
}

// One connection's fault is not the others'.
template <typename Act>
void guard(const Act& act) {
    try {
        act();
    } catch (nb::python_error& error) {
        error.discard_as_unraisable("a write to a connection");
    }
}

}  // namespace

void Outlet::lose() {
    waiting_.clear();
    transport_ = nb::object();
}

bool Outlet::is_closing() const {
    static PyObject* const name = PyUnicode_InternFromString("is_closing");
    return !transport_.is_valid() || nb::cast<bool>(call(transport_, name));
}

bool Outlet::takes_directly() {
    static PyObject* const name = PyUnicode_InternFromString("get_write_buffer_size");
    if (may_hold_back_ && fd_ >= 0) may_hold_back_ = nb::cast<size_t>(call(transport_, name)) != 0;
    return fd_ >= 0 && !may_hold_back_;
}

size_t Outlet::send_waiting() const {
    // An error is the transport's to find out, when it is given the rest.
    const ssize_t num_sent = ::send(fd_, waiting_.data(), waiting_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return num_sent < 0 ? 0 : static_cast<size_t>(num_sent);
}

void Outlet::hand_over(size_t num_sent) {
    if (num_sent < waiting_.size() && transport_.is_valid()) {
        const nb::bytes rest(waiting_.data() + num_sent, waiting_.size() - num_sent);
        waiting_.clear();  // before the call, which may come back to us
        may_hold_back_ = true;
        transport_.attr("write")(rest);
    } else {
        waiting_.clear();
    }
    if (waiting_.empty() && waiting_.capacity() > kMaxKept) waiting_.shrink_to_fit();
}

void Outlet::close() const {
    if (!is_closing()) transport_.attr("close")();
}

bool WriteQueue::add(const std::shared_ptr<Outlet>& outlet, std::initializer_list<std::string_view> parts,
                     bool is_chunk) {
    if (outlet->ends_) return false;
    if (is_chunk) {
        append_chunk(parts, outlet->waiting_);
    } else {
        for (const std::string_view part : parts) outlet->waiting_ += part;
    }
    return enqueue(outlet);
}

bool WriteQueue::add_end(const std::shared_ptr<Outlet>& outlet) {
    outlet->ends_ = true;
    return enqueue(outlet);
}

bool WriteQueue::enqueue(const std::shared_ptr<Outlet>& outlet) {
    if (outlet->is_queued_) return false;
    outlet->is_queued_ = true;
    outlets_.push_back(outlet);
    return outlets_.size() == 1;
}

void WriteQueue::flush() {
    std::vector<std::shared_ptr<Outlet>> outlets;
    outlets.swap(outlets_);
    std::vector<std::pair<Outlet*, size_t>> sent;  // what goes to sockets, and how much they took
    sent.reserve(outlets.size());
    for (const std::shared_ptr<Outlet>& outlet : outlets) outlet->is_queued_ = false;
    for (const std::shared_ptr<Outlet>& outlet : outlets) {
        guard([&] {
            if (outlet->waiting_.empty()) return;
            if (outlet->is_closing()) {
                outlet->waiting_.clear();
            } else if (outlet->takes_directly()) {
                sent.emplace_back(outlet.get(), 0);
            } else {
                outlet->hand_over(0);
            }
        });
    }
    {
        // Nothing of the loop's runs meanwhile, so no descriptor changes hands.
        const nb::gil_scoped_release no_gil;
        for (auto& [outlet, num_sent] : sent) num_sent = outlet->send_waiting();
    }
    for (const auto& [outlet, num_sent] : sent) guard([&, outlet = outlet, num_sent = num_sent] { outlet->hand_over(num_sent); });
    for (const std::shared_ptr<Outlet>& outlet : outlets) {
        if (outlet->ends_) guard([&] { outlet->close(); });
    }
}

void StreamedBody::write(std::initializer_list<std::string_view> parts) {
    if (queue->add(outlet, parts, is_chunked)) schedule();
}

void bind_writes(nb::module_& module) {
    nb::class_<Outlet>(module, "Outlet", "A connection's way out.")
        .def(nb::init<nb::object, int>(), "transport"_a, "fd"_a)
        .def("lose", &Outlet::lose);
    nb::class_<WriteQueue>(module, "WriteQueue", "The writes of one turn of an event loop.")
        .def(nb::init<>())
        .def(
            "add",
            [](WriteQueue& self, const std::shared_ptr<Outlet>& outlet, const nb::bytes& data) {
                return self.add(outlet, {view_of(data)}, false);
            },
            "outlet"_a, "data"_a)
        .def("add_end", &WriteQueue::add_end, "outlet"_a)
        .def("flush", &WriteQueue::flush);
    nb::class_<StreamedBody>(module, "StreamedBody", "The body of one response while its pieces are streamed.")
        .def(
            "__init__",
            [](StreamedBody* self, std::shared_ptr<WriteQueue> queue, std::shared_ptr<Outlet> outlet, bool is_chunked,
               nb::object schedule) {
                new (self) StreamedBody{std::move(queue), std::move(outlet), is_chunked, std::move(schedule)};
            },
            "queue"_a, "outlet"_a, nb::kw_only(), "is_chunked"_a, "schedule"_a)
        .def_rw("can_write", &StreamedBody::can_write)
        .def(
            "write", [](StreamedBody& self, const nb::bytes& data) { self.write({view_of(data)}); }, "data"_a);
}

}  // namespace headway
