// float16 and bfloat16 to float32 and back, in plain C++. Everything is static: files of every instruction set include
// this, and none may lend its copy to another.
#pragma once

#include <stdint.h>

namespace headway {

static inline float float_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
static inline uint32_t bits_of_float(float value) { return __builtin_bit_cast(uint32_t, value); }

static inline float float_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

// Nearest even; a NaN stays one.
static inline uint16_t bf16_of_float(float value) {
    const uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Exponent and mantissa are moved into place, and a multiplication by 2^112 corrects the exponent: it makes subnormal
// numbers right, too. Infinity and NaN come out as 2^16 and more, and get the largest exponent.
static inline float float_of_f16(uint16_t half) {
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
    const float scaled = float_of_bits(magnitude) * 0x1p112f;
    const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    return float_of_bits(bits_of_float(scaled) | special | (static_cast<uint32_t>(half & 0x8000u) << 16));
}

// Nearest even; from 65,520 on infinity; a NaN stays one.
static inline uint16_t f16_of_float(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
        return static_cast<uint16_t>(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u));
    }
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

}  // namespace headway
