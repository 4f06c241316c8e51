// msgpack (its specification, "Formats") read from the front, without being made into objects. Knows no Python.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace headway {

// What is not there, or not of the kind asked for, sets has_failed, and everything read after it means nothing.
class MsgpackReader {
public:
    static constexpr int kMaxDepth = 64;  // of what is skipped

    enum class Kind { nil, boolean, integer, floating, string, binary, array, map, other };

    explicit MsgpackReader(std::string_view bytes) : bytes_(bytes) {}

    bool has_failed = false;

    size_t place() const { return place_; }
    bool is_at_end() const { return place_ == bytes_.size(); }
    // What was read since `place`.
    std::string_view since(size_t place) const { return bytes_.substr(place, place_ - place); }

    // Of the next value, which stays where it is.
    Kind kind() {
        const uint8_t first = peek();
        if (first <= 0x7F || first >= 0xE0 || (first >= 0xCC && first <= 0xD3)) return Kind::integer;
        if (first <= 0x8F || (first & 0xFE) == 0xDE) return Kind::map;
        if (first <= 0x9F || (first & 0xFE) == 0xDC) return Kind::array;
        if (first <= 0xBF || (first >= 0xD9 && first <= 0xDB)) return Kind::string;
        if (first == 0xC0) return Kind::nil;
        if ((first & 0xFE) == 0xC2) return Kind::boolean;
        if (first >= 0xC4 && first <= 0xC6) return Kind::binary;
        return (first & 0xFE) == 0xCA ? Kind::floating : Kind::other;
    }

    bool try_nil() {
        if (peek() != 0xC0) return false;
        ++place_;
        return true;
    }

    // The next value if it is an integer that is not negative; else it is left where it is.
    std::optional<uint64_t> try_uint() {
        const uint8_t first = peek();
        if (first < 0x80) {
            take(1);
            return first;
        }
        if (first < 0xCC || first > 0xCF) return std::nullopt;
        ++place_;
        return big_endian(size_t{1} << (first - 0xCC));
    }

    // Of integers that try_uint() leaves.
    int64_t signed_integer() {
        const uint8_t first = peek();
        ++place_;
        if (first >= 0xE0) return static_cast<int8_t>(first);
        if (first < 0xD0 || first > 0xD3) {
            fail();
            return 0;
        }
        const size_t size = size_t{1} << (first - 0xD0);
        const int shift = static_cast<int>(64 - 8 * size);
        return static_cast<int64_t>(big_endian(size) << shift) >> shift;
    }

    bool boolean() {
        const uint8_t first = peek();
        ++place_;
        if ((first & 0xFE) != 0xC2) fail();
        return first == 0xC3;
    }

    double floating() {
        const uint8_t first = peek();
        ++place_;
        if (first == 0xCA) return std::bit_cast<float>(static_cast<uint32_t>(big_endian(4)));
        if (first != 0xCB) fail();
        return std::bit_cast<double>(big_endian(8));
    }

    std::string_view string() {
        const uint8_t first = peek();
        ++place_;
        if (first >= 0xA0 && first <= 0xBF) return take(first & 0x1F);
        if (first >= 0xD9 && first <= 0xDB) return take(big_endian(size_t{1} << (first - 0xD9)));
        return fail();
    }

    std::string_view binary() {
        const uint8_t first = peek();
        ++place_;
        if (first >= 0xC4 && first <= 0xC6) return take(big_endian(size_t{1} << (first - 0xC4)));
        return fail();
    }

    uint64_t array_size() { return size_of(0x90, 0xDC); }
    uint64_t map_size() { return size_of(0x80, 0xDE); }

    void skip(int depth = 0) {
        const uint8_t first = peek();
        if (depth > kMaxDepth || has_failed) {
            fail();
        } else if (first <= 0x7F) {
            take(1);
        } else if (first <= 0x8F || (first & 0xFE) == 0xDE) {
            skip_many(map_size(), 2, depth);
        } else if (first <= 0x9F || (first & 0xFE) == 0xDC) {
            skip_many(array_size(), 1, depth);
        } else {
            ++place_;
            skip_scalar(first);
        }
    }

private:
    uint8_t peek() {
        if (place_ < bytes_.size()) return static_cast<uint8_t>(bytes_[place_]);
        fail();
        return 0xC1;  // the one byte that the format never uses
    }

    std::string_view fail() {
        has_failed = true;
        return {};
    }

    std::string_view take(uint64_t size) {
        if (has_failed || place_ > bytes_.size() || size > bytes_.size() - place_) return fail();
        const std::string_view taken = bytes_.substr(place_, size);
        place_ += size;
        return taken;
    }

    uint64_t big_endian(size_t size) {
        uint64_t value = 0;
        for (const char byte : take(size)) value = value << 8 | static_cast<uint8_t>(byte);
        return value;
    }

    // Of a container: up to 15 in the first byte itself, else in 2 or 4 bytes behind it.
    uint64_t size_of(uint8_t small, uint8_t large) {
        const uint8_t first = peek();
        ++place_;
        if ((first & 0xF0) == small) return first & 0x0F;
        if ((first & 0xFE) == large) return big_endian(first == large ? 2 : 4);
        fail();
        return 0;
    }

    void skip_many(uint64_t count, uint64_t values_each, int depth) {
        for (uint64_t i = 0; i < count * values_each && !has_failed; ++i) skip(depth + 1);
    }

    void skip_scalar(uint8_t first) {
        if (first >= 0xE0 || first == 0xC0 || first == 0xC2 || first == 0xC3) return;
        if (first <= 0xBF) {
            take(first & 0x1F);
        } else if (first >= 0xC4 && first <= 0xC6) {
            take(big_endian(size_t{1} << (first - 0xC4)));
        } else if (first >= 0xCA && first <= 0xCB) {
            take(first == 0xCA ? 4 : 8);
        } else if (first >= 0xCC && first <= 0xD3) {
            take(size_t{1} << (first - 0xCC) % 4);
        } else if (first >= 0xD9 && first <= 0xDB) {
            take(big_endian(size_t{1} << (first - 0xD9)));
        } else {
            fail();  // extensions: the wire has none
        }
    }

    std::string_view bytes_;
    size_t place_ = 0;
};

}  // namespace headway
