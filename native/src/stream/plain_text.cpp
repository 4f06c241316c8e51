#include "stream/plain_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <utility>

namespace headway {

TokenSpelling::TokenSpelling(int64_t num_tokens, Spell spell) : spell_(std::move(spell)) {
    if (num_tokens < 0) throw std::invalid_argument("num_tokens is negative");
    spans_.resize(static_cast<size_t>(num_tokens));
}

std::optional<std::string_view> TokenSpelling::bytes_of(int64_t token_id) {
    if (!has(token_id)) return std::string_view();
    Span& span = spans_[static_cast<size_t>(token_id)];
    if (!span.is_known) {
        const std::optional<std::string> spelled = spell_(token_id);
        const uint32_t most = std::numeric_limits<uint32_t>::max() / 4;  // what a Span's size holds
        if (!spelled || spelled->size() >= most || bytes_.size() >= most) return std::nullopt;
        span.begin = static_cast<uint32_t>(bytes_.size());
        span.size = static_cast<uint32_t>(spelled->size()) ;
        bytes_ += *spelled;
        span.is_known = 1;
    }
    return std::string_view(bytes_).substr(span.begin, span.size);
}

void TokenSpelling::set_special(int64_t token_id) {
    if (has(token_id)) spans_[static_cast<size_t>(token_id)].is_special = 1;
}

bool TokenSpelling::is_special(int64_t token_id) const {
    return has(token_id) && spans_[static_cast<size_t>(token_id)].is_special;
}

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_ascii(std::string_view bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](char one) { return static_cast<unsigned char>(one) < 0x80; });
}

// What a lead byte says of its character.
struct Lead {
    size_t size = 0;  // bytes in all; 0: no character begins so
    unsigned char least = 0x80, most = 0xBF;  // of the second byte
};

Lead read_lead(unsigned char byte) {
    if (byte < 0x80) return {1};
    if (byte < 0xC2) return {0};
    if (byte < 0xE0) return {2};
    if (byte < 0xF0) return {3, byte == 0xE0 ? uint8_t{0xA0} : uint8_t{0x80}, byte == 0xED ? uint8_t{0x9F} : uint8_t{0xBF}};
    if (byte < 0xF5) return {4, byte == 0xF0 ? uint8_t{0x90} : uint8_t{0x80}, byte == 0xF4 ? uint8_t{0x8F} : uint8_t{0xBF}};
    return {0};
}

// How many of the bytes at the front can be the beginning of the lead's character, the lead's own included.
size_t count_right(const Lead& lead, std::string_view bytes) {
    size_t count = 1;
    for (; count < lead.size && count < bytes.size(); ++count) {
        const auto byte = static_cast<unsigned char>(bytes[count]);
        const bool is_right = count == 1 ? byte >= lead.least && byte <= lead.most : byte >= 0x80 && byte <= 0xBF;
        if (!is_right) break;
    }
    return count;
}

// Two bytes of three that stand for a surrogate, which is no character; Python's decoder waits for the third all the same.
bool is_cut_surrogate(std::string_view bytes) {
    return bytes.size() == 2 && bytes[0] == '\xED' && static_cast<unsigned char>(bytes[1]) >= 0xA0 &&
           static_cast<unsigned char>(bytes[1]) <= 0xBF;
}

}  // namespace

void Utf8Pieces::push(std::string_view bytes, std::string& out) {
    if (num_held_ == 0 && is_ascii(bytes)) {
        out += bytes;
        return;
    }
    const std::string joined = std::string(held()).append(bytes);
    std::string_view rest = joined;
    num_held_ = 0;
    while (!rest.empty()) {
        const Lead lead = read_lead(static_cast<unsigned char>(rest[0]));
        const size_t count = count_right(lead, rest);
        if ((count < lead.size && count == rest.size()) || is_cut_surrogate(rest)) {
            hold(rest);
            return;
        }
        out += count == lead.size ? rest.substr(0, count) : kReplacement;
        rest.remove_prefix(count);
    }
}

void Utf8Pieces::hold(std::string_view bytes) {
    if (bytes.size() > kMaxHeld) {
        throw std::invalid_argument("over 3 bytes are held back, and no character that is not whole has more");
    }
    std::copy(bytes.begin(), bytes.end(), held_);
    num_held_ = bytes.size();
}

namespace {

// Of each byte: 0 as it is, 'u' by its number, else the letter behind the backslash.
constexpr std::array<char, 256> kEscapes = [] {
    std::array<char, 256> escapes{};
    for (size_t byte = 0; byte < 0x20; ++byte) escapes[byte] = 'u';
    escapes['\b'] = 'b';
    escapes['\t'] = 't';
    escapes['\n'] = 'n';
    escapes['\f'] = 'f';
    escapes['\r'] = 'r';
    escapes['"'] = '"';
    escapes['\\'] = '\\';
    return escapes;
}();

}  // namespace

void append_json_string(std::string_view text, std::string& out) {
    out += '"';
    for (const char one : text) {
        const auto byte = static_cast<unsigned char>(one);
        const char escape = kEscapes[byte];
        if (escape == 0) {
            out += one;
        } else if (escape == 'u') {
            out += byte < 0x10 ? "\\u000" : "\\u001";
            out += "0123456789abcdef"[byte % 16];
        } else {
            out += '\\';
            out += escape;
        }
    }
    out += '"';
}

void append_chunk(std::initializer_list<std::string_view> parts, std::string& out) {
    size_t size = 0;
    for (const std::string_view part : parts) size += part.size();
    char digits[2 * sizeof size];
    const char* end = std::to_chars(digits, digits + sizeof digits, size, 16).ptr;
    out.append(digits, static_cast<size_t>(end - digits)).append("\r\n");
    for (const std::string_view part : parts) out += part;
    out += "\r\n";
}

}  // namespace headway
