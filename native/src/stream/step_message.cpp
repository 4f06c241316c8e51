#include "stream/step_message.h"

#include <optional>

namespace headway {
namespace {

constexpr int kMaxDepth = 16;  // a Step's values lie no deeper than 6

// Reads msgpack (its specification, "Formats") from the front. What is not there or not of the kind asked for sets
// has_failed, and everything read after it means nothing.
class Reader {
public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}

    bool has_failed = false;

    size_t place() const { return place_; }
    bool is_at_end() const { return place_ == bytes_.size(); }

    bool try_nil() {
        if (peek() != 0xC0) return false;
        ++place_;
        return true;
    }

    // The next value if it is an integer that is not negative; else it is left where it is.
    std::optional<uint64_t> try_uint() {
        const uint8_t kind = peek();
        if (kind < 0x80) {
            take(1);
            return kind;
        }
        if (kind < 0xCC || kind > 0xCF) return std::nullopt;
        ++place_;
        return big_endian(size_t{1} << (kind - 0xCC));
    }

    std::string_view string() {
        const uint8_t kind = peek();
        ++place_;
        if (kind >= 0xA0 && kind <= 0xBF) return take(kind & 0x1F);
        if (kind >= 0xD9 && kind <= 0xDB) return take(big_endian(size_t{1} << (kind - 0xD9)));
        return fail();
    }

    uint64_t array_size() { return size_of(0x90, 0xDC); }
    uint64_t map_size() { return size_of(0x80, 0xDE); }

    void skip(int depth = 0) {
        const uint8_t kind = peek();
        if (depth > kMaxDepth || has_failed) {
            fail();
        } else if (kind <= 0x8F || (kind & 0xFE) == 0xDE) {
            if (kind < 0x80) {
                take(1);
            } else {
                skip_many(map_size(), 2, depth);
            }
        } else if (kind <= 0x9F || (kind & 0xFE) == 0xDC) {
            skip_many(array_size(), 1, depth);
        } else {
            ++place_;
            skip_scalar(kind);
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

    // Of a container: up to 15 in the kind itself, else in 2 or 4 bytes behind it.
    uint64_t size_of(uint8_t small, uint8_t large) {
        const uint8_t kind = peek();
        ++place_;
        if ((kind & 0xF0) == small) return kind & 0x0F;
        if ((kind & 0xFE) == large) return big_endian(kind == large ? 2 : 4);
        fail();
        return 0;
    }

    void skip_many(uint64_t count, uint64_t values_each, int depth) {
        for (uint64_t i = 0; i < count * values_each && !has_failed; ++i) skip(depth + 1);
    }

    void skip_scalar(uint8_t kind) {
        if (kind >= 0xE0 || kind == 0xC0 || kind == 0xC2 || kind == 0xC3) return;
        if (kind <= 0xBF) {
            take(kind & 0x1F);
        } else if (kind >= 0xC4 && kind <= 0xC6) {
            take(big_endian(size_t{1} << (kind - 0xC4)));
        } else if (kind >= 0xCA && kind <= 0xCB) {
            take(kind == 0xCA ? 4 : 8);
        } else if (kind >= 0xCC && kind <= 0xD3) {
            take(size_t{1} << (kind - 0xCC) % 4);
        } else if (kind >= 0xD9 && kind <= 0xDB) {
            take(big_endian(size_t{1} << (kind - 0xD9)));
        } else {
            fail();  // extensions: the wire has none
        }
    }

    std::string_view bytes_;
    size_t place_ = 0;
};

constexpr uint64_t kNumFields = 9;  // of a TokenEvent

// Appends the ids; false: there are none, or what is there are not all ids.
bool read_ids(Reader& reader, std::vector<int64_t>& token_ids) {
    const uint64_t count = reader.array_size();
    for (uint64_t i = 0; i < count && !reader.has_failed; ++i) {
        const std::optional<uint64_t> id = reader.try_uint();
        if (!id || *id > INT64_MAX) return false;
        token_ids.push_back(static_cast<int64_t>(*id));
    }
    return count > 0 && !reader.has_failed;
}

// The fields of a plain event, in the order of headway_wire.TokenEvent; false: it is another one.
bool read_plain(Reader& reader, StepEvent& event, std::vector<int64_t>& token_ids) {
    const uint64_t num_fields = reader.array_size();
    event.request_id = reader.string();
    if (num_fields != kNumFields || reader.has_failed || reader.try_uint() != uint64_t{0}) return false;
    event.first_id = token_ids.size();
    if (!read_ids(reader, token_ids)) return false;
    event.num_ids = token_ids.size() - event.first_id;
    if (!reader.try_nil() || !reader.try_nil() || !reader.try_nil()) return false;  // logprobs, finish and stop reason
    if (!reader.try_uint() || !reader.try_nil()) return false;  // tokens that were cached, the error
    const std::optional<uint64_t> num_forced = reader.try_uint();
    event.num_forced = num_forced.value_or(0);
    return num_forced.has_value() && !reader.has_failed;
}

void append_array_size(size_t size, std::string& out) {
    if (size < 16) {
        out += static_cast<char>(0x90 | size);
        return;
    }
    out += static_cast<char>(size < 0x10000 ? 0xDC : 0xDD);
    for (int shift = size < 0x10000 ? 8 : 24; shift >= 0; shift -= 8) out += static_cast<char>(size >> shift);
}

}  // namespace

bool StepMessage::read(std::string_view message) {
    events.clear();
    token_ids.clear();
    before_ = after_ = {};
    Reader reader(message);
    bool is_step = false;
    for (uint64_t field = reader.map_size(); field > 0 && !reader.has_failed; --field) {
        const std::string_view key = reader.string();
        if (key == "type") {
            is_step = reader.string() == "step";
            if (!is_step) return false;
        } else if (key != "events") {
            reader.skip();
        } else if (before_.empty()) {
            before_ = message.substr(0, reader.place());
            for (uint64_t left = reader.array_size(); left > 0 && !reader.has_failed; --left) {
                if (events.size() == kMaxEvents) return false;
                const size_t begin = reader.place();
                StepEvent event;
                Reader fields(message.substr(begin));
                event.is_plain = read_plain(fields, event, token_ids);
                reader.skip();
                event.bytes = message.substr(begin, reader.place() - begin);
                events.push_back(event);
            }
            after_ = message.substr(reader.has_failed ? message.size() : reader.place());
        } else {
            return false;
        }
    }
    return is_step && !before_.empty() && !reader.has_failed && reader.is_at_end();
}

std::string StepMessage::with_events(const std::vector<size_t>& kept) const {
    std::string out(before_);
    append_array_size(kept.size(), out);
    for (const size_t index : kept) out += events[index].bytes;
    return out += after_;
}

}  // namespace headway
