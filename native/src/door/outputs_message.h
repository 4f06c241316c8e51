// headway_wire.Outputs, read from its msgpack without being made into objects. Knows no Python.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "msgpack_reader.h"

namespace headway::door {

// Views are into the message.
struct OutputTensor {
    std::string_view name, datatype, data;
    size_t first_size = 0, num_axes = 0;  // a run of OutputsMessage::sizes
};

// One is used again and again, so that its memory is.
class OutputsMessage {
public:
    std::string_view request_id;
    std::vector<OutputTensor> tensors;
    std::vector<uint64_t> sizes;
    std::string_view value;  // msgpack; empty: none
    std::vector<std::string_view> labels;
    bool has_labels = false;
    bool has_error = false;

    std::span<const uint64_t> shape(const OutputTensor& tensor) const {
        return std::span(sizes).subspan(tensor.first_size, tensor.num_axes);
    }

    // The message must outlive what is told of it. False: it is no Outputs, or not whole and right; its texts are UTF-8.
    bool read(std::string_view message);

private:
    void clear();
    void read_tensors(MsgpackReader& reader);
    void read_labels(MsgpackReader& reader);
};

}  // namespace headway::door
