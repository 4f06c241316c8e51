// A streamed token's text as bytes: tokens spelled, characters made whole, put into an event. Knows no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headway {

// The bytes of each token of a vocabulary, asked for once and then kept.
class TokenSpelling {
public:
    // nullopt: it cannot be told now, and may be asked for again.
    using Spell = std::function<std::optional<std::string>(int64_t token_id)>;

    TokenSpelling(int64_t num_tokens, Spell spell);

    // Empty for an id outside of the vocabulary; nullopt where Spell says so.
    std::optional<std::string_view> bytes_of(int64_t token_id);
    // A special token, which a text may leave out. An id outside of the vocabulary is ignored.
    void set_special(int64_t token_id);
    bool is_special(int64_t token_id) const;

private:
    struct Span {
        uint32_t begin = 0;
        uint32_t size : 30 = 0;
        uint32_t is_known : 1 = 0;
        uint32_t is_special : 1 = 0;
    };

    bool has(int64_t token_id) const { return token_id >= 0 && token_id < static_cast<int64_t>(spans_.size()); }

    std::vector<Span> spans_;
    std::string bytes_;
    Spell spell_;
};

// Bytes in pieces -> well-formed UTF-8: a character that is not whole is held back, and each longest part of what is no
// character (Unicode 16, table 3-7 and "maximal subparts") becomes U+FFFD, as Python's decoder has it with "replace".
class Utf8Pieces {
public:
    static constexpr size_t kMaxHeld = 3;

    // Appends the whole characters to out.
    void push(std::string_view bytes, std::string& out);
    // Takes up where another decoder left off. Throws std::invalid_argument for over kMaxHeld bytes.
    void hold(std::string_view bytes);
    std::string_view held() const { return {held_, num_held_}; }

private:
    char held_[kMaxHeld] = {};
    size_t num_held_ = 0;
};

// Appends a string as JSON writes it, with its quotes; text is UTF-8. Escaped are quotation marks, backslashes and control
// characters, those with a letter of their own by it: msgspec's encoder writes the same bytes.
void append_json_string(std::string_view text, std::string& out);

// Appends a piece of a chunked body (RFC 9112, 7.1) that is the joined parts.
void append_chunk(std::initializer_list<std::string_view> parts, std::string& out);

}  // namespace headway
