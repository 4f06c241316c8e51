#include "door/tensor_text.h"

#include <cmath>
#include <cstring>

#include "door/json_reader.h"
#include "door/json_tensor.h"
#include "door/signature.h"
#include "stream/plain_text.h"

namespace headway::door {
namespace {

constexpr uint64_t kMaxEmptyLists = 4096;  // what tells more of them is left to Python, which has a limit for it

// Takes the elements of a tensor one by one.
class Elements {
public:
    Elements(std::string_view data, NumberStyle style) : at_(data.data()), style_(style) {}

    // False: JSON has no word for the next.
    bool append(Datatype datatype, std::string& out) {
        switch (datatype) {
            case Datatype::boolean: out += take<uint8_t>() != 0 ? "true" : "false"; return true;
            case Datatype::uint8: append_uint(take<uint8_t>(), out); return true;
            case Datatype::uint16: append_uint(take<uint16_t>(), out); return true;
            case Datatype::uint32: append_uint(take<uint32_t>(), out); return true;
            case Datatype::uint64: append_uint(take<uint64_t>(), out); return true;
            case Datatype::int8: append_int(take<int8_t>(), out); return true;
            case Datatype::int16: append_int(take<int16_t>(), out); return true;
            case Datatype::int32: append_int(take<int32_t>(), out); return true;
            case Datatype::int64: append_int(take<int64_t>(), out); return true;
            case Datatype::fp16: return append_single(from_half(take<uint16_t>()), out);
            case Datatype::fp32: return append_single(take<float>(), out);
            case Datatype::fp64: return append_wide(take<double>(), out);
            case Datatype::bytes: return append_text(out);
            case Datatype::bf16: return false;
        }
        return false;
    }

private:
    template <typename T>
    T take() {
        T value;
        std::memcpy(&value, at_, sizeof value);
        at_ += sizeof value;
        return value;
    }

    bool append_single(float value, std::string& out) {
        if (style_.numbers == Numbers::python || !std::isfinite(value)) return append_wide(value, out);
        append_float(value, style_.sign, out);
        return true;
    }

    bool append_wide(double value, std::string& out) {
        if (!std::isfinite(value)) return false;
        append_double(value, style_.sign, out);
        return true;
    }

    bool append_text(std::string& out) {
        const uint32_t size = take<uint32_t>();
        const std::string_view text(at_, size);
        at_ += size;
        if (!is_utf8(text)) return false;
        append_json_string(text, out);
        return true;
    }

    const char* at_;
    NumberStyle style_;
};

bool append_row(Elements& elements, Datatype datatype, uint64_t count, std::string& out) {
    out += '[';
    for (uint64_t i = 0; i < count; ++i) {
        if (i > 0) out += ',';
        if (!elements.append(datatype, out)) return false;
    }
    out += ']';
    return true;
}

bool append_axes(Elements& elements, Datatype datatype, std::span<const uint64_t> shape, std::string& out) {
    if (shape.size() == 1) return append_row(elements, datatype, shape[0], out);
    out += '[';
    for (uint64_t i = 0; i < shape[0]; ++i) {
        if (i > 0) out += ',';
        if (!append_axes(elements, datatype, shape.subspan(1), out)) return false;
    }
    out += ']';
    return true;
}

// A known datatype whose bytes fill the shape.
std::optional<Datatype> check_tensor(std::string_view name, std::span<const uint64_t> shape, std::string_view data) {
    const std::optional<Datatype> datatype = find_datatype(name);
    const std::optional<uint64_t> count = num_elements(shape);
    if (!datatype || !count || shape.size() > kMaxAxes) return std::nullopt;
    const bool is_right = *datatype == Datatype::bytes ? are_texts(data, *count)
                                                       : data.size() == *count * item_bytes(*datatype);
    return is_right ? datatype : std::nullopt;
}

// The lists of a shape without elements: those before its first 0.
uint64_t num_empty_lists(std::span<const uint64_t> shape) {
    uint64_t lists = 1;
    for (size_t i = 0; shape[i] != 0; ++i) {
        lists *= shape[i];
        if (lists > kMaxEmptyLists) return lists;
    }
    return lists;
}

}  // namespace

void append_shape(std::span<const uint64_t> shape, std::string& out) {
    out += '[';
    for (size_t i = 0; i < shape.size(); ++i) {
        if (i > 0) out += ',';
        append_uint(shape[i], out);
    }
    out += ']';
}

bool append_flat_text(std::string_view datatype, std::span<const uint64_t> shape, std::string_view data, NumberStyle style,
                      std::string& out) {
    const std::optional<Datatype> known = check_tensor(datatype, shape, data);
    Elements elements(data, style);
    return known && *known != Datatype::bf16 && append_row(elements, *known, *num_elements(shape), out);
}

bool append_nested_text(std::string_view datatype, std::span<const uint64_t> shape, std::string_view data,
                        NumberStyle style, std::string& out) {
    const std::optional<Datatype> known = check_tensor(datatype, shape, data);
    if (!known || *known == Datatype::bf16) return false;
    Elements elements(data, style);
    if (shape.empty()) return elements.append(*known, out);
    if (*num_elements(shape) == 0 && num_empty_lists(shape) > kMaxEmptyLists) return false;
    return append_axes(elements, *known, shape, out);
}

}  // namespace headway::door
