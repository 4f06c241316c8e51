#include "door/json_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace headway::door {
namespace {

// Bytes of the character that begins here; 0: it is none.
size_t character_size(const unsigned char* at, size_t left) {
    const auto follows = [&](size_t index, unsigned char least, unsigned char most) {
        return index < left && at[index] >= least && at[index] <= most;
    };
    const unsigned char lead = at[0];
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    if (lead < 0xE0) return follows(1, 0x80, 0xBF) ? 2 : 0;
    if (lead < 0xF0) {
        const bool is_right = follows(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && follows(2, 0x80, 0xBF);
        return is_right ? 3 : 0;
    }
    const bool is_right = follows(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && follows(2, 0x80, 0xBF) &&
                          follows(3, 0x80, 0xBF);
    return is_right ? 4 : 0;
}

void append_utf8(uint32_t code, std::string& out) {
    if (code < 0x80) {
        out += static_cast<char>(code);
        return;
    }
    const int num_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr std::array<uint32_t, 4> leads = {0, 0xC0, 0xE0, 0xF0};
    out += static_cast<char>(leads[static_cast<size_t>(num_more)] | code >> 6 * num_more);
    for (int i = num_more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> 6 * i & 0x3F));
}

constexpr std::array<double, 23> kPowersOf10 = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr uint64_t kMaxExact = uint64_t{1} << 53;  // integers up to here are doubles
constexpr int32_t kMaxExponent = 100000;           // what is over it is so too with every digit that a text can have

bool is_digit(char one) { return static_cast<unsigned char>(one - '0') < 10; }

}  // namespace

bool is_utf8(std::string_view text) {
    const auto* at = reinterpret_cast<const unsigned char*>(text.data());
    size_t left = text.size();
    while (left > 0) {
        uint64_t eight;
        if (left >= sizeof eight && (std::memcpy(&eight, at, sizeof eight), (eight & 0x8080808080808080) == 0)) {
            at += sizeof eight;
            left -= sizeof eight;
            continue;
        }
        const size_t size = character_size(at, left);
        if (size == 0) return false;
        at += size;
        left -= size;
    }
    return true;
}

void JsonReader::pass_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
}

char JsonReader::peek() {
    pass_space();
    return at_ == end_ ? '\0' : *at_;
}

bool JsonReader::try_take(char wanted) {
    pass_space();
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
}

bool JsonReader::take(char wanted) { return try_take(wanted); }

bool JsonReader::take_word(std::string_view word) {
    pass_space();
    if (!rest().starts_with(word)) return false;
    at_ += word.size();
    return true;
}

bool JsonReader::next(char closing, bool is_first, bool& has_more) {
    has_more = !try_take(closing);
    return !has_more || is_first || take(',');
}

bool JsonReader::boolean(bool& value) {
    value = peek() == 't';
    return take_word(value ? "true" : "false");
}

bool JsonReader::plain_string(std::string_view& text) {
    if (!take('"')) return false;
    const char* begin = at_;
    while (at_ != end_ && static_cast<unsigned char>(*at_) >= 0x20 && *at_ != '"' && *at_ != '\\') ++at_;
    text = {begin, static_cast<size_t>(at_ - begin)};
    if (at_ == end_ || *at_ != '"') return false;
    ++at_;
    return true;
}

bool JsonReader::string(std::string_view& text) {
    if (peek() != '"') return false;
    const char* begin = at_ + 1;
    if (plain_string(text)) return true;
    if (at_ == end_ || *at_ != '\\' || !unescape(begin)) return false;
    text = text_;
    return true;
}

// From a string's first escape on; its text before that begins at `begin`.
bool JsonReader::unescape(const char* begin) {
    text_.assign(begin, static_cast<size_t>(at_ - begin));
    while (at_ != end_ && static_cast<unsigned char>(*at_) >= 0x20) {
        const char one = *at_++;
        if (one == '"') return true;
        if (one != '\\') {
            text_ += one;
        } else if (!escape()) {
            return false;
        }
    }
    return false;
}

bool JsonReader::escape() {
    constexpr std::string_view letters = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
    if (at_ == end_) return false;
    const char letter = *at_++;
    if (letter != 'u') {
        const size_t found = letters.find(letter);
        if (found == std::string_view::npos) return false;
        text_ += meant[found];
        return true;
    }
    uint32_t code = 0, low = 0;
    if (!hex4(code) || (code >= 0xDC00 && code <= 0xDFFF)) return false;
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (!rest().starts_with("\\u")) return false;
        at_ += 2;
        if (!hex4(low) || low < 0xDC00 || low > 0xDFFF) return false;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(code, text_);
    return true;
}

bool JsonReader::hex4(uint32_t& code) {
    if (end_ - at_ < 4) return false;
    const auto [end, error] = std::from_chars(at_, at_ + 4, code, 16);
    if (error != std::errc() || end != at_ + 4) return false;
    at_ = end;
    return true;
}

bool JsonReader::take_digits(Written& written) {
    const char* first = at_;
    uint64_t digits = written.digits;
    // 19 digits are below 2^64 in any case.
    const char* last = end_ - at_ > 19 - written.num_digits ? at_ + (19 - written.num_digits) : end_;
    for (; at_ < last && is_digit(*at_); ++at_) digits = digits * 10 + static_cast<uint64_t>(*at_ - '0');
    for (; at_ != end_ && is_digit(*at_); ++at_) {
        const auto digit = static_cast<uint64_t>(*at_ - '0');
        written.is_exact = written.is_exact && digits <= (UINT64_MAX - digit) / 10;
        digits = digits * 10 + digit;
    }
    written.digits = digits;
    written.num_digits = std::min<ptrdiff_t>(written.num_digits + (at_ - first), 19);
    return at_ != first;
}

// The digits of an exponent behind its e; one that is out of all bounds stays there.
bool JsonReader::take_exponent(Written& written) {
    const bool is_small = at_ != end_ && *at_ == '-';
    if (at_ != end_ && (*at_ == '-' || *at_ == '+')) ++at_;
    if (at_ == end_ || !is_digit(*at_)) return false;
    int32_t exponent = 0;
    for (; at_ != end_ && is_digit(*at_); ++at_) exponent = std::min(exponent * 10 + (*at_ - '0'), kMaxExponent);
    written.exponent += is_small ? -exponent : exponent;
    return true;
}

bool JsonReader::take_number(Written& written) {
    pass_space();
    const char* begin = at_;
    written.is_negative = at_ != end_ && *at_ == '-';
    if (written.is_negative) ++at_;
    const char* first = at_;
    if (!take_digits(written) || (*first == '0' && at_ - first > 1)) return false;
    if (at_ != end_ && *at_ == '.') {
        written.is_integer = false;
        const char* point = at_++;
        if (!take_digits(written)) return false;
        written.exponent = -static_cast<int32_t>(std::min<ptrdiff_t>(at_ - point - 1, kMaxExponent));
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
        written.is_integer = false;
        ++at_;
        if (!take_exponent(written)) return false;
    }
    written.text = {begin, static_cast<size_t>(at_ - begin)};
    return true;
}

bool JsonReader::number(JsonNumber& number) {
    Written written;
    if (!take_number(written)) return false;
    const uint64_t most = written.is_negative ? uint64_t{1} << 63 : UINT64_MAX;
    if (!written.is_integer || !written.is_exact || written.digits > most) {
        number = {};
        return convert(written, number.floating);
    }
    const auto magnitude = static_cast<double>(written.digits);
    const bool is_negative = written.is_negative && written.digits != 0;
    number = {true, is_negative, written.digits, is_negative ? -magnitude : magnitude};
    return true;
}

// Where digits and exponent are few (W. D. Clinger, How to read floating point numbers accurately, 1990) one exact product
// or quotient; else from_chars() makes it.
bool JsonReader::convert(const Written& written, double& value) {
    constexpr auto most = static_cast<int32_t>(kPowersOf10.size()) - 1;
    const int32_t exponent = written.exponent;
    if (written.is_exact && written.digits <= kMaxExact && exponent >= -most && exponent <= most) {
        const auto digits = static_cast<double>(written.digits);
        const double magnitude = exponent < 0 ? digits / kPowersOf10[static_cast<size_t>(-exponent)]
                                              : digits * kPowersOf10[static_cast<size_t>(exponent)];
        value = written.is_negative ? -magnitude : magnitude;
        return true;
    }
    const char* last = written.text.data() + written.text.size();
    const auto [end, error] = std::from_chars(written.text.data(), last, value);
    // Out of range: zero or infinite, and left to who tells them apart.
    return error == std::errc() && end == last && std::isfinite(value);
}

bool JsonReader::size(uint64_t most, uint64_t& value) {
    Written written;
    if (peek() == '-' || !take_number(written)) return false;
    value = written.digits;
    return written.is_integer && written.is_exact && value <= most;
}

bool JsonReader::skip(int depth) {
    std::string_view text;
    Written written;
    bool value;
    const char first = peek();
    if (first == '"') return string(text);
    if (first == 't' || first == 'f') return boolean(value);
    if (first == 'n') return take_word("null");
    if (first != '[' && first != '{') return take_number(written);
    if (depth == kMaxDepth) return false;
    ++at_;
    const char closing = first == '[' ? ']' : '}';
    bool has_more = true;
    for (bool is_first = true;; is_first = false) {
        if (!next(closing, is_first, has_more)) return false;
        if (!has_more) return true;
        if (first == '{' && (!string(text) || !take(':'))) return false;
        if (!skip(depth + 1)) return false;
    }
}

}  // namespace headway::door
