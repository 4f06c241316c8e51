#include "door/json_value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "door/number_text.h"
#include "msgpack_writer.h"
#include "stream/plain_text.h"

namespace headway::door {
namespace {

constexpr int kMaxLevels = 60;  // /predict takes 64, and refuses more in its own words

// The keys of one object, which are few as a rule.
class Keys {
public:
    void add(std::string_view key) {
        if (count_ < few_.size()) {
            few_[count_] = key;
        } else {
            if (count_ == few_.size()) many_.assign(few_.begin(), few_.end());
            many_.push_back(key);
        }
        ++count_;
    }
    size_t count() const { return count_; }
    bool is_only(std::string_view key) const { return count_ == 1 && few_[0] == key; }

    bool are_distinct() {
        std::string_view* first = count_ > few_.size() ? many_.data() : few_.data();
        if (count_ < 2) return true;
        if (count_ == 2) return first[0] != first[1];
        std::sort(first, first + count_);
        return std::adjacent_find(first, first + count_) == first + count_;
    }

private:
    std::array<std::string_view, 16> few_;
    std::vector<std::string_view> many_;
    size_t count_ = 0;
};

bool append_value(JsonReader& reader, int level, std::string& out);

bool append_list(JsonReader& reader, int level, std::string& out) {
    const size_t begin = out.size();
    size_t count = 0;
    bool has_more = reader.take('[');
    out += '\0';
    for (;; ++count) {
        if (!reader.next(']', count == 0, has_more)) return false;
        if (!has_more) break;
        if (!append_value(reader, level + 1, out)) return false;
    }
    set_msgpack_head(Container::array, begin, count, out);
    return true;
}

bool append_object(JsonReader& reader, int level, std::string& out) {
    const size_t begin = out.size();
    Keys keys;
    bool has_more = reader.take('{');
    out += '\0';
    while (true) {
        std::string_view key;
        if (!reader.next('}', keys.count() == 0, has_more)) return false;
        if (!has_more) break;
        if (!reader.plain_string(key) || !reader.take(':')) return false;
        keys.add(key);
        append_msgpack_string(key, out);
        if (!append_value(reader, level + 1, out)) return false;
    }
    if (keys.is_only("b64") || !keys.are_distinct()) return false;
    set_msgpack_head(Container::map, begin, keys.count(), out);
    return true;
}

bool append_number(JsonReader& reader, std::string& out) {
    JsonNumber number;
    if (!reader.number(number)) return false;
    if (!number.is_integer) {
        append_msgpack_double(number.floating, out);
    } else if (number.is_negative) {
        append_msgpack_int(number.as_int64(), out);
    } else {
        append_msgpack_uint(number.magnitude, out);
    }
    return true;
}

bool append_value(JsonReader& reader, int level, std::string& out) {
    const char first = reader.peek();
    if (first == '[') return level < kMaxLevels && append_list(reader, level, out);
    if (first == '{') return level < kMaxLevels && append_object(reader, level, out);
    if (first == '"') {
        std::string_view text;
        if (!reader.string(text)) return false;
        append_msgpack_string(text, out);
    } else if (first == 't' || first == 'f') {
        bool value = false;
        if (!reader.boolean(value)) return false;
        append_msgpack_bool(value, out);
    } else if (first == 'n') {
        append_msgpack_nil(out);
        return reader.take_word("null");
    } else {
        return append_number(reader, out);
    }
    return true;
}

void append_base64(std::string_view bytes, std::string& out) {
    constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out += '"';
    for (size_t i = 0; i < bytes.size(); i += 3) {
        const size_t count = std::min<size_t>(3, bytes.size() - i);
        uint32_t bits = 0;
        for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < count ? static_cast<uint8_t>(bytes[i + j]) : 0);
        for (size_t j = 0; j < 4; ++j) out += j <= count ? letters[bits >> (18 - 6 * j) & 0x3F] : '=';
    }
    out += '"';
}

bool append_text(std::string_view text, std::string& out) {
    append_json_string(text, out);
    return is_utf8(text);
}

bool append_told(MsgpackReader& reader, int level, std::string& out);

bool append_array(MsgpackReader& reader, int level, std::string& out) {
    const uint64_t count = reader.array_size();
    out += '[';
    for (uint64_t i = 0; i < count; ++i) {
        if (i > 0) out += ',';
        if (!append_told(reader, level + 1, out)) return false;
    }
    out += ']';
    return !reader.has_failed;
}

bool append_map(MsgpackReader& reader, int level, std::string& out) {
    const uint64_t count = reader.map_size();
    Keys keys;
    out += '{';
    for (uint64_t i = 0; i < count; ++i) {
        if (i > 0) out += ',';
        const std::string_view key = reader.string();
        if (reader.has_failed || !append_text(key, out)) return false;
        keys.add(key);
        out += ':';
        if (!append_told(reader, level + 1, out)) return false;
    }
    out += '}';
    return !reader.has_failed && keys.are_distinct();
}

void append_integer(MsgpackReader& reader, std::string& out) {
    const std::optional<uint64_t> value = reader.try_uint();
    if (value) {
        append_uint(*value, out);
    } else {
        append_int(reader.signed_integer(), out);
    }
}

void append_floating(double value, std::string& out) {
    if (std::isfinite(value)) {
        append_double(value, ExponentSign::none, out);
    } else {
        out += "null";
    }
}

bool append_told(MsgpackReader& reader, int level, std::string& out) {
    using Kind = MsgpackReader::Kind;
    switch (reader.kind()) {
        case Kind::nil: out += reader.try_nil() ? "null" : ""; break;
        case Kind::boolean: out += reader.boolean() ? "true" : "false"; break;
        case Kind::integer: append_integer(reader, out); break;
        case Kind::floating: append_floating(reader.floating(), out); break;
        case Kind::string: return append_text(reader.string(), out) && !reader.has_failed;
        case Kind::binary: append_base64(reader.binary(), out); break;
        case Kind::array: return level < kMaxLevels && append_array(reader, level, out);
        case Kind::map: return level < kMaxLevels && append_map(reader, level, out);
        case Kind::other: return false;
    }
    return !reader.has_failed;
}

}  // namespace

bool append_msgpack_value(JsonReader& reader, std::string& out) { return append_value(reader, 0, out); }

bool append_json_value(MsgpackReader& reader, std::string& out) { return append_told(reader, 0, out); }

}  // namespace headway::door
