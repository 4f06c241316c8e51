#include "door/json_tensor.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "door/json_steps.h"
#include "door/number_text.h"
#include "msgpack_writer.h"

namespace headway::door {
namespace {

static_assert(std::endian::native == std::endian::little);  // as the protocol's layout is

template <typename T>
bool to_integer(const JsonNumber& number, T& value) {
    if (!number.is_integer) return false;
    if (number.is_negative) {
        if (!std::is_signed_v<T> || !number.fits_int64()) return false;
        if (number.as_int64() < static_cast<int64_t>(std::numeric_limits<T>::min())) return false;
        value = static_cast<T>(number.as_int64());
        return true;
    }
    if (number.magnitude > static_cast<uint64_t>(std::numeric_limits<T>::max())) return false;
    value = static_cast<T>(number.magnitude);
    return true;
}

struct Half {
    uint16_t bits;
};

bool read_element(JsonReader& reader, bool& value) { return reader.boolean(value); }

template <typename T>
bool read_element(JsonReader& reader, T& value) {
    JsonNumber number;
    if (!reader.number(number)) return false;
    if constexpr (std::is_same_v<T, Half>) {
        return to_half(number.floating, value.bits);
    } else if constexpr (std::is_floating_point_v<T>) {
        value = static_cast<T>(number.floating);
        return std::isfinite(value);
    } else {
        return to_integer(number, value);
    }
}

// The lists of one axis and of those behind it; `take` is called for each element.
template <typename Take>
bool read_axes(JsonReader& reader, std::span<const uint64_t> sizes, const Take& take) {
    bool has_more = true;
    if (!reader.take('[')) return false;
    for (uint64_t index = 0; index < sizes[0]; ++index) {
        if (!reader.next(']', index == 0, has_more) || !has_more) return false;
        if (!(sizes.size() == 1 ? take(reader) : read_axes(reader, sizes.subspan(1), take))) return false;
    }
    return reader.take(']');
}

// The list in either form; of a shape without elements an empty one is flat.
template <typename Take>
bool read_either(JsonReader& reader, std::span<const uint64_t> shape, uint64_t count, const Take& take) {
    JsonReader ahead(reader.rest());
    if (!ahead.take('[')) return false;
    const bool is_nested = shape.size() > 1 && ahead.peek() == '[';
    return read_axes(reader, is_nested ? shape : std::span(&count, 1), take);
}

enum class Form { list, scalar };

template <typename Take>
bool read_elements(JsonReader& reader, Form form, std::span<const uint64_t> shape, uint64_t count, const Take& take) {
    if (form == Form::list) return read_either(reader, shape, count, take);
    return count == 1 && take(reader);
}

using NumBytes = std::optional<uint64_t>;

template <typename T>
NumBytes append_numbers(JsonReader& reader, Form form, std::span<const uint64_t> shape, uint64_t count, std::string& out) {
    if (count > reader.rest().size()) return std::nullopt;  // each has a character at least
    append_msgpack_binary_head(count * sizeof(T), out);
    const size_t begin = out.size();
    out.resize(begin + count * sizeof(T));
    char* to = out.data() + begin;
    const bool is_right = read_elements(reader, form, shape, count, [&to](JsonReader& from) {
        T value{};
        if (!read_element(from, value)) return false;
        std::memcpy(to, &value, sizeof value);
        to += sizeof value;
        return true;
    });
    return is_right ? NumBytes(count * sizeof(T)) : std::nullopt;
}

NumBytes append_texts(JsonReader& reader, Form form, std::span<const uint64_t> shape, uint64_t count, std::string& out) {
    std::string packed;
    const bool is_right = read_elements(reader, form, shape, count, [&packed](JsonReader& from) {
        std::string_view text;
        if (!from.string(text)) return false;
        const auto size = static_cast<uint32_t>(text.size());
        for (int shift = 0; shift < 32; shift += 8) packed += static_cast<char>(size >> shift);
        packed += text;
        return true;
    });
    append_msgpack_binary_head(packed.size(), out);
    out += packed;
    return is_right ? NumBytes(packed.size()) : std::nullopt;
}

NumBytes append_elements(JsonReader& reader, Form form, Datatype datatype, std::span<const uint64_t> shape,
                         std::string& out) {
    const std::optional<uint64_t> elements = num_elements(shape);
    if (!elements || shape.size() > kMaxAxes) return std::nullopt;
    const uint64_t count = *elements;
    switch (datatype) {
        case Datatype::boolean: return append_numbers<bool>(reader, form, shape, count, out);
        case Datatype::uint8: return append_numbers<uint8_t>(reader, form, shape, count, out);
        case Datatype::uint16: return append_numbers<uint16_t>(reader, form, shape, count, out);
        case Datatype::uint32: return append_numbers<uint32_t>(reader, form, shape, count, out);
        case Datatype::uint64: return append_numbers<uint64_t>(reader, form, shape, count, out);
        case Datatype::int8: return append_numbers<int8_t>(reader, form, shape, count, out);
        case Datatype::int16: return append_numbers<int16_t>(reader, form, shape, count, out);
        case Datatype::int32: return append_numbers<int32_t>(reader, form, shape, count, out);
        case Datatype::int64: return append_numbers<int64_t>(reader, form, shape, count, out);
        case Datatype::fp16: return append_numbers<Half>(reader, form, shape, count, out);
        case Datatype::bf16: return std::nullopt;
        case Datatype::fp32: return append_numbers<float>(reader, form, shape, count, out);
        case Datatype::fp64: return append_numbers<double>(reader, form, shape, count, out);
        case Datatype::bytes: return append_texts(reader, form, shape, count, out);
    }
    return std::nullopt;
}

}  // namespace

bool read_shape(JsonReader& reader, Shape& shape) {
    constexpr uint64_t most = uint64_t{1} << 48;
    return read_list(reader, [&] {
        uint64_t size = 0;
        return reader.size(most, size) && shape.add(size);
    });
}

NumBytes append_json_tensor(JsonReader& reader, Datatype datatype, std::span<const uint64_t> shape, std::string& out) {
    return append_elements(reader, Form::list, datatype, shape, out);
}

NumBytes append_json_scalar(JsonReader& reader, Datatype datatype, std::span<const uint64_t> shape, std::string& out) {
    return append_elements(reader, Form::scalar, datatype, shape, out);
}

bool are_texts(std::string_view data, uint64_t count) {
    uint64_t found = 0;
    while (!data.empty()) {
        if (data.size() < 4 || found == count) return false;
        size_t size = 0;
        for (size_t i = 0; i < 4; ++i) size |= static_cast<size_t>(static_cast<uint8_t>(data[i])) << 8 * i;
        if (size > data.size() - 4) return false;
        data.remove_prefix(4 + size);
        ++found;
    }
    return found == count;
}

}  // namespace headway::door
