#include "door/outputs_message.h"

#include "door/json_reader.h"
#include "msgpack_reader.h"

namespace headway::door {
namespace {

std::string_view read_text(MsgpackReader& reader) {
    const std::string_view text = reader.string();
    if (!is_utf8(text)) reader.has_failed = true;
    return text;
}

// Sizes that are not negative: no tensor has others.
bool read_shape(MsgpackReader& reader, std::vector<uint64_t>& sizes) {
    for (uint64_t left = reader.array_size(); left > 0; --left) {
        const std::optional<uint64_t> size = reader.try_uint();
        if (!size || reader.has_failed) return false;
        sizes.push_back(*size);
    }
    return !reader.has_failed;
}

// All four fields, each once.
bool read_tensor(MsgpackReader& reader, OutputTensor& tensor, std::vector<uint64_t>& sizes) {
    constexpr uint64_t num_fields = 4;
    unsigned came = 0;
    if (reader.map_size() != num_fields) return false;
    for (uint64_t i = 0; i < num_fields && !reader.has_failed; ++i) {
        const std::string_view key = reader.string();
        if (key == "name") {
            tensor.name = read_text(reader);
            came |= 1;
        } else if (key == "datatype") {
            tensor.datatype = read_text(reader);
            came |= 2;
        } else if (key == "shape") {
            tensor.first_size = sizes.size();
            if (!read_shape(reader, sizes)) return false;
            tensor.num_axes = sizes.size() - tensor.first_size;
            came |= 4;
        } else if (key == "data") {
            tensor.data = reader.binary();
            came |= 8;
        } else {
            return false;
        }
    }
    return came == 15 && !reader.has_failed;
}

}  // namespace

void OutputsMessage::clear() {
    request_id = value = {};
    tensors.clear();
    sizes.clear();
    labels.clear();
    has_labels = has_error = false;
}

bool OutputsMessage::read(std::string_view message) {
    clear();
    MsgpackReader reader(message);
    enum Field : unsigned { kType = 1, kId = 2, kTensors = 4, kValue = 8, kLabels = 16, kError = 32 };
    unsigned came = 0;
    for (uint64_t left = reader.map_size(); left > 0 && !reader.has_failed; --left) {
        const std::string_view key = reader.string();
        Field field = kType;
        if (key == "type") {
            if (reader.string() != "outputs") return false;
        } else if (key == "request_id") {
            field = kId;
            request_id = read_text(reader);
        } else if (key == "tensors") {
            field = kTensors;
            read_tensors(reader);
        } else if (key == "value") {
            field = kValue;
            const size_t begin = reader.place();
            reader.skip();
            value = reader.since(begin);
        } else if (key == "labels") {
            field = kLabels;
            read_labels(reader);
        } else if (key == "error") {
            field = kError;
            has_error = !reader.try_nil();
            if (has_error) reader.skip();
        } else {
            return false;
        }
        if ((came & field) != 0) return false;
        came |= field;
    }
    return (came & (kType | kId)) == (kType | kId) && !reader.has_failed && reader.is_at_end();
}

void OutputsMessage::read_tensors(MsgpackReader& reader) {
    for (uint64_t left = reader.array_size(); left > 0 && !reader.has_failed; --left) {
        if (!read_tensor(reader, tensors.emplace_back(), sizes)) reader.has_failed = true;
    }
}

void OutputsMessage::read_labels(MsgpackReader& reader) {
    if (reader.try_nil()) return;
    has_labels = true;
    for (uint64_t left = reader.array_size(); left > 0 && !reader.has_failed; --left) labels.push_back(read_text(reader));
}

}  // namespace headway::door
