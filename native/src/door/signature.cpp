#include "door/signature.h"

#include <algorithm>
#include <array>

namespace headway::door {
namespace {

struct Row {
    std::string_view name;
    size_t item_bytes;
};

// In the order of Datatype.
constexpr std::array<Row, 14> kDatatypes = {{{"BOOL", 1},   {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8},
                                             {"INT8", 1},   {"INT16", 2}, {"INT32", 4},  {"INT64", 8},  {"FP16", 2},
                                             {"BF16", 2},   {"FP32", 4},  {"FP64", 8},   {"BYTES", 0}}};
constexpr uint64_t kMaxElements = uint64_t{1} << 48;

}  // namespace

std::optional<Datatype> find_datatype(std::string_view name) {
    const auto found = std::find_if(kDatatypes.begin(), kDatatypes.end(), [name](const Row& row) { return row.name == name; });
    if (found == kDatatypes.end()) return std::nullopt;
    return static_cast<Datatype>(found - kDatatypes.begin());
}

std::string_view datatype_name(Datatype datatype) { return kDatatypes[static_cast<size_t>(datatype)].name; }
size_t item_bytes(Datatype datatype) { return kDatatypes[static_cast<size_t>(datatype)].item_bytes; }

std::optional<uint64_t> num_elements(std::span<const uint64_t> shape) {
    uint64_t product = 1;  // of what is not zero, which has a limit of its own
    bool has_none = false;
    for (const uint64_t size : shape) {
        has_none = has_none || size == 0;
        if (size > 0 && product > kMaxElements / size) return std::nullopt;
        if (size > 0) product *= size;
    }
    return has_none ? 0 : product;
}

bool TensorSpec::fits(Datatype other, std::span<const uint64_t> sizes) const {
    return datatype == other && std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end(), [](uint64_t size, int64_t want) {
        return want == -1 || (want >= 0 && static_cast<uint64_t>(want) == size);
    });
}

std::optional<size_t> Signature::find_input(std::string_view name) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].name == name) return i;
    }
    return std::nullopt;
}

bool Signature::may_give(std::string_view output) const {
    return outputs.empty() || std::find(outputs.begin(), outputs.end(), output) != outputs.end();
}

bool CameInputs::is_all(const Signature& signature) const {
    for (size_t i = 0; i < signature.inputs.size(); ++i) {
        if (!signature.inputs[i].is_optional && (came_ >> i & 1) == 0) return false;
    }
    return true;
}

}  // namespace headway::door
