// JSON (RFC 8259) read from the front, as orjson reads it: what it refuses is refused here, but for UTF-8, which is looked
// at once for the whole text (is_utf8). Knows no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headway::door {

// Well-formed UTF-8 (Unicode 16, table 3-7).
bool is_utf8(std::string_view text);

// A number as orjson tells it: an integer where it is written as one and 64 bits hold it, else a double, rounded to the
// nearest. -0 is the integer 0.
struct JsonNumber {
    bool is_integer = false;
    bool is_negative = false;  // of an integer
    uint64_t magnitude = 0;    // of an integer
    double floating = 0;       // of either; finite

    bool fits_int64() const { return is_integer && magnitude <= (is_negative ? uint64_t{1} << 63 : INT64_MAX); }
    int64_t as_int64() const { return static_cast<int64_t>(is_negative ? -magnitude : magnitude); }
};

// Each function passes over the white space before what it reads; false: it is not there, and the reader is spent.
class JsonReader {
public:
    static constexpr int kMaxDepth = 64;  // of lists and objects within each other that are skipped

    explicit JsonReader(std::string_view text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

    // The next character, which is left; 0 at the end.
    char peek();
    bool take(char wanted);
    // As take(), but what is not there is left, and the reader can be used on.
    bool try_take(char wanted);
    bool take_word(std::string_view word);
    bool is_at_end() { return peek() == 0 && at_ == end_; }

    // A string's text, valid until the next string is read.
    bool string(std::string_view& text);
    // One without escapes: a view into the JSON.
    bool plain_string(std::string_view& text);
    bool number(JsonNumber& number);
    // true or false.
    bool boolean(bool& value);
    // Digits that begin with no zero but the one; at most `most`.
    bool size(uint64_t most, uint64_t& value);
    // Any value, which is checked, but for the range of its numbers.
    bool skip(int depth = 0);

    // The steps of an object or list: behind its opening or a value. has_more: another follows, and its comma is taken.
    bool next(char closing, bool is_first, bool& has_more);

    size_t place() const { return static_cast<size_t>(at_ - begin_); }
    std::string_view since(size_t place) const { return {begin_ + place, static_cast<size_t>(at_ - begin_) - place}; }
    std::string_view rest() const { return {at_, static_cast<size_t>(end_ - at_)}; }

private:
    // A number's text: digits times 10 to the exponent.
    struct Written {
        std::string_view text;
        uint64_t digits = 0;
        ptrdiff_t num_digits = 0;  // at most 19 are counted
        int32_t exponent = 0;
        bool is_negative = false;
        bool is_integer = true;  // written as one
        bool is_exact = true;    // digits holds all of them
    };

    void pass_space();
    bool unescape(const char* begin);
    bool escape();
    bool hex4(uint32_t& code);
    bool take_digits(Written& written);
    bool take_exponent(Written& written);
    bool take_number(Written& written);
    static bool convert(const Written& written, double& value);

    const char* begin_;
    const char* at_;
    const char* end_;
    std::string text_;  // of a string with escapes
};

}  // namespace headway::door
