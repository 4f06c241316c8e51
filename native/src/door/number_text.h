// Numbers as JSON tells them, digit for digit as the libraries of the Python way write them.
#pragma once

#include <cstdint>
#include <string>

namespace headway::door {

// 1e16 as 1e16 (msgspec, orjson before 3.12) or as 1e+16 (orjson since).
enum class ExponentSign { none, plus };

// The shortest digits that are read back as the same number, of a finite one.
void append_float(float value, ExponentSign sign, std::string& out);
void append_double(double value, ExponentSign sign, std::string& out);
void append_int(int64_t value, std::string& out);
void append_uint(uint64_t value, std::string& out);

// IEEE 754's half precision. False: it is over what a half holds.
bool to_half(double value, uint16_t& half);
float from_half(uint16_t half);

}  // namespace headway::door
