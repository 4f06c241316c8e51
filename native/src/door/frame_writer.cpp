#include "door/frame_writer.h"

#include <stdexcept>
#include <utility>

namespace nb = nanobind;

namespace headway::door {

FrameWriter::FrameWriter(nb::object transport, int fd, nb::object schedule)
    : outlet_(std::make_shared<Outlet>(std::move(transport), fd)), schedule_(std::move(schedule)) {}

void FrameWriter::write(std::string_view payload) {
    if (payload.size() > kMaxFrameBytes) throw std::length_error("a frame is over the limit of 268435456 bytes");
    if (is_lost_) return;
    const auto size = static_cast<uint32_t>(payload.size());
    const char head[4] = {static_cast<char>(size), static_cast<char>(size >> 8), static_cast<char>(size >> 16),
                          static_cast<char>(size >> 24)};
    if (queue_.add(outlet_, {std::string_view(head, sizeof head), payload}, false)) schedule_();
}

void FrameWriter::lose() {
    is_lost_ = true;
    outlet_->lose();
    schedule_ = nb::object();
}

}  // namespace headway::door
