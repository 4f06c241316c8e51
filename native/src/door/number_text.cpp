#include "door/number_text.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <string_view>

namespace headway::door {
namespace {

// Where a number is written without an exponent: with its point within or behind so many digits, or behind 0. and fewer
// than so many zeros (as ryu's "pretty" form has it).
struct Layout {
    int max_point;
    int max_zeros;
};
constexpr Layout kFloatLayout = {13, 6}, kDoubleLayout = {16, 5};

// Digits d1d2d3... and the place of the point behind d1 by `exponent`.
void append_digits(std::string_view digits, int exponent, Layout layout, ExponentSign sign, std::string& out) {
    const int count = static_cast<int>(digits.size()), point = exponent + 1;
    if (point > 0 && point <= layout.max_point) {
        if (point >= count) {
            out.append(digits).append(static_cast<size_t>(point - count), '0').append(".0");
        } else {
            out.append(digits.substr(0, static_cast<size_t>(point)));
            (out += '.').append(digits.substr(static_cast<size_t>(point)));
        }
    } else if (point <= 0 && -point < layout.max_zeros) {
        out.append("0.").append(static_cast<size_t>(-point), '0').append(digits);
    } else {
        out += digits[0];
        if (count > 1) (out += '.').append(digits.substr(1));
        out += 'e';
        if (exponent > 0 && sign == ExponentSign::plus) out += '+';
        append_int(exponent, out);
    }
}

template <typename T>
void append_shortest(T value, Layout layout, ExponentSign sign, std::string& out) {
    if (std::signbit(value)) out += '-';
    value = std::fabs(value);
    if (value == 0) {
        out += "0.0";
        return;
    }
    char text[32];  // d.ddde-xxx
    const char* end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
    const char* mark = end;
    while (*--mark != 'e') {
    }
    int exponent = 0;
    const char* number = mark + 1 + (mark[1] == '+');
    std::from_chars(number, end, exponent);
    size_t count = 1;
    if (text[1] == '.') {  // over the point
        count = static_cast<size_t>(mark - text) - 1;
        text[1] = text[0];
        append_digits({text + 1, count}, exponent, layout, sign, out);
        return;
    }
    append_digits({text, count}, exponent, layout, sign, out);
}

template <typename T>
void append_integer(T value, std::string& out) {
    char text[24];
    const char* end = std::to_chars(text, text + sizeof text, value).ptr;
    out.append(text, static_cast<size_t>(end - text));
}

}  // namespace

void append_float(float value, ExponentSign sign, std::string& out) { append_shortest(value, kFloatLayout, sign, out); }
void append_double(double value, ExponentSign sign, std::string& out) {
    append_shortest(value, kDoubleLayout, sign, out);
}
void append_int(int64_t value, std::string& out) { append_integer(value, out); }
void append_uint(uint64_t value, std::string& out) { append_integer(value, out); }

// Rounded once, to the nearest and on a tie to the even one, as Python's struct does it.
bool to_half(double value, uint16_t& half) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    constexpr double smallest_normal = 0x1p-14, unit = 0x1p-24;  // of those below it
    const double magnitude = std::fabs(value);
    if (!std::isfinite(value)) return false;
    if (magnitude < smallest_normal) {
        half = static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude / unit)));
        return true;
    }
    int exponent = 0;
    const double fraction = std::frexp(magnitude, &exponent);  // 0.5 to below 1
    if (exponent > 16) return false;
    // 11 bits, of which the first is not kept; one that rounds up to 12 carries into the exponent.
    const auto bits = static_cast<uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));
    const uint32_t joined = (static_cast<uint32_t>(exponent + 13) << 10) + bits;
    half = static_cast<uint16_t>(sign | joined);
    return joined < 0x7C00;
}

float from_half(uint16_t half) {
    const uint32_t exponent = half >> 10 & 0x1F, fraction = half & 0x3FF;
    float magnitude = 0;
    if (exponent == 0) {
        magnitude = std::ldexp(static_cast<float>(fraction), -24);
    } else if (exponent == 0x1F) {
        magnitude = std::bit_cast<float>(0x7F800000 | fraction << 13);
    } else {
        magnitude = std::bit_cast<float>((exponent + 112) << 23 | fraction << 13);
    }
    return half & 0x8000 ? -magnitude : magnitude;
}

}  // namespace headway::door
