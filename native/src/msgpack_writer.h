// msgpack appended to a string, each value in its shortest form, as msgspec writes it. Knows no Python.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headway {

inline void append_big_endian(uint64_t value, size_t size, std::string& out) {
    char bytes[8];
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(value >> 8 * (size - 1 - i));
    out.append(bytes, size);
}

// Its first byte, and the value in 1, 2, 4 or 8 bytes behind it.
inline void append_sized(uint8_t first, uint64_t value, size_t size, std::string& out) {
    out += static_cast<char>(first);
    append_big_endian(value, size, out);
}

inline void append_msgpack_uint(uint64_t value, std::string& out) {
    if (value < 0x80) return append_big_endian(value, 1, out);
    if (value <= 0xFF) return append_sized(0xCC, value, 1, out);
    if (value <= 0xFFFF) return append_sized(0xCD, value, 2, out);
    if (value <= 0xFFFFFFFF) return append_sized(0xCE, value, 4, out);
    append_sized(0xCF, value, 8, out);
}

inline void append_msgpack_int(int64_t value, std::string& out) {
    const auto bits = static_cast<uint64_t>(value);
    if (value >= 0) return append_msgpack_uint(bits, out);
    if (value >= -0x20) return append_big_endian(bits, 1, out);
    if (value >= -0x80) return append_sized(0xD0, bits, 1, out);
    if (value >= -0x8000) return append_sized(0xD1, bits, 2, out);
    if (value >= -0x80000000LL) return append_sized(0xD2, bits, 4, out);
    append_sized(0xD3, bits, 8, out);
}

inline void append_msgpack_double(double value, std::string& out) {
    append_sized(0xCB, std::bit_cast<uint64_t>(value), 8, out);
}

inline void append_msgpack_bool(bool value, std::string& out) { out += value ? '\xC3' : '\xC2'; }
inline void append_msgpack_nil(std::string& out) { out += '\xC0'; }

// Text is UTF-8.
inline void append_msgpack_string(std::string_view text, std::string& out) {
    const size_t size = text.size();
    if (size < 0x20) {
        out += static_cast<char>(0xA0 | size);
    } else if (size <= 0xFF) {
        append_sized(0xD9, size, 1, out);
    } else if (size <= 0xFFFF) {
        append_sized(0xDA, size, 2, out);
    } else {
        append_sized(0xDB, size, 4, out);
    }
    out += text;
}

// So many bytes follow.
inline void append_msgpack_binary_head(size_t size, std::string& out) {
    if (size <= 0xFF) return append_sized(0xC4, size, 1, out);
    if (size <= 0xFFFF) return append_sized(0xC5, size, 2, out);
    append_sized(0xC6, size, 4, out);
}

enum class Container : uint8_t { map = 0x80, array = 0x90 };

// So many values follow, of a map pairs.
inline void append_msgpack_head(Container container, size_t size, std::string& out) {
    const auto small = static_cast<uint8_t>(container);
    const uint8_t large = container == Container::map ? 0xDE : 0xDC;
    if (size < 0x10) {
        out += static_cast<char>(small | size);
    } else if (size <= 0xFFFF) {
        append_sized(large, size, 2, out);
    } else {
        append_sized(large + 1, size, 4, out);
    }
}

// A container's head in place of the one byte at `begin`, which was left for it while its values were not counted.
inline void set_msgpack_head(Container container, size_t begin, size_t count, std::string& out) {
    std::string head;
    append_msgpack_head(container, count, head);
    out.replace(begin, 1, head);
}

}  // namespace headway
