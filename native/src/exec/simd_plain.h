// Vectors for the machines that nothing is known of: four lanes, as the compiler makes them. simd_avx2.h and
// simd_avx512.h have the same functions over wider ones; what each does is said here. Every file that includes one is
// compiled with its own flags, so all of it has internal linkage.
#pragma once

#include <stdint.h>

#include "float16.h"

namespace headway {
namespace {

#define HEADWAY_INLINE inline __attribute__((always_inline))

constexpr int width = 4;
constexpr int num_registers = 16;  // for the tiles of attention
constexpr bool dots_bf16 = false;  // dot_pairs is there

typedef float Floats __attribute__((vector_size(width * 4)));
typedef int32_t Ints __attribute__((vector_size(width * 4)));
typedef uint32_t Words __attribute__((vector_size(width * 4)));
typedef Ints Mask;  // all bits of a lane, or none
typedef float LooseFloats __attribute__((vector_size(width * 4), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(width * 2)));
typedef int32_t LooseInts __attribute__((vector_size(width * 4), aligned(1), may_alias));

HEADWAY_INLINE Floats splat(float value) { return Floats{value, value, value, value}; }
HEADWAY_INLINE Ints splat_int(int32_t value) { return Ints{value, value, value, value}; }
HEADWAY_INLINE Floats load(const float* x) { return *reinterpret_cast<const LooseFloats*>(x); }
HEADWAY_INLINE void store(float* x, Floats value) { *reinterpret_cast<LooseFloats*>(x) = value; }
HEADWAY_INLINE Ints load_ints(const void* x) { return *static_cast<const LooseInts*>(x); }
HEADWAY_INLINE void store_ints(void* x, Ints value) { *static_cast<LooseInts*>(x) = value; }
// The lower 16 bits of each lane, side by side.
HEADWAY_INLINE void store_low_halves(void* x, Ints value) {
    uint16_t halves[width];
    for (int i = 0; i < width; ++i) halves[i] = static_cast<uint16_t>(value[i]);
    __builtin_memcpy(x, halves, sizeof halves);
}

// The first n < width lanes; the others load as 0 and are not stored.
HEADWAY_INLINE Floats load_some(const float* x, int n) {
    Floats value = splat(0.0f);
    for (int i = 0; i < n; ++i) value[i] = x[i];
    return value;
}
HEADWAY_INLINE void store_some(float* x, Floats value, int n) {
    for (int i = 0; i < n; ++i) x[i] = value[i];
}

HEADWAY_INLINE Floats add(Floats a, Floats b) { return a + b; }
HEADWAY_INLINE Floats sub(Floats a, Floats b) { return a - b; }
HEADWAY_INLINE Floats mul(Floats a, Floats b) { return a * b; }
HEADWAY_INLINE Floats div(Floats a, Floats b) { return a / b; }

// a * b + c, rounded once where the machine does that fast, else twice.
HEADWAY_INLINE Floats fma(Floats a, Floats b, Floats c) {
#ifdef __FP_FAST_FMAF
    Floats sum;
    for (int i = 0; i < width; ++i) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#else
    return a * b + c;
#endif
}
HEADWAY_INLINE Floats fnma(Floats a, Floats b, Floats c) { return fma(-a, b, c); }  // c - a * b

HEADWAY_INLINE Floats root(Floats a) {
    for (int i = 0; i < width; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
}

HEADWAY_INLINE Ints bits_of(Floats a) { return reinterpret_cast<Ints>(a); }
HEADWAY_INLINE Floats floats_of(Ints a) { return reinterpret_cast<Floats>(a); }
HEADWAY_INLINE Ints bits_and(Ints a, Ints b) { return a & b; }
HEADWAY_INLINE Ints bits_or(Ints a, Ints b) { return a | b; }
HEADWAY_INLINE Ints add_ints(Ints a, Ints b) {  // wraps around
    return reinterpret_cast<Ints>(reinterpret_cast<Words>(a) + reinterpret_cast<Words>(b));
}
template <int count>
HEADWAY_INLINE Ints shift_left(Ints a) {
    return reinterpret_cast<Ints>(reinterpret_cast<Words>(a) << count);
}
template <int count>  // fills with zeros
HEADWAY_INLINE Ints shift_right(Ints a) {
    return reinterpret_cast<Ints>(reinterpret_cast<Words>(a) >> count);
}
template <int count>  // fills with the sign
HEADWAY_INLINE Ints shift_right_signed(Ints a) {
    return a >> count;
}
HEADWAY_INLINE Floats from_ints(Ints a) { return __builtin_convertvector(a, Floats); }

HEADWAY_INLINE Mask less(Floats a, Floats b) { return a < b; }  // false where one is NaN
HEADWAY_INLINE Mask is_nan(Floats a) { return a != a; }
HEADWAY_INLINE Floats select(Mask mask, Floats yes, Floats no) {
    return floats_of((mask & bits_of(yes)) | (~mask & bits_of(no)));
}
// Lanes first + i of [begin, end).
HEADWAY_INLINE Mask lanes_between(int first, int begin, int end) {
    const Ints lane = Ints{0, 1, 2, 3} + first;
    return (lane >= begin) & (lane < end);
}

// The second where one is NaN.
HEADWAY_INLINE Floats larger(Floats a, Floats b) { return select(a > b, a, b); }
HEADWAY_INLINE Floats smaller(Floats a, Floats b) { return select(a < b, a, b); }

// To the nearest integer, ties to even, for |a| < 2^22.
HEADWAY_INLINE Floats nearest(Floats a) {
    const Floats magic = splat(12582912.0f);  // 1.5 * 2^23
    return (a + magic) - magic;
}

// 2^n for integers -126 to 127.
HEADWAY_INLINE Floats power_of_two(Floats n) {
    return floats_of(shift_left<23>(add_ints(__builtin_convertvector(n, Ints), splat_int(127))));
}

// Lanes i and i + half, then halves again: a fixed order.
HEADWAY_INLINE float sum_lanes(Floats a) { return (a[0] + a[2]) + (a[1] + a[3]); }
HEADWAY_INLINE float largest_lane(Floats a) {
    const float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
}

// Of pairs of bfloat16: the first (low) and the second of each lane.
HEADWAY_INLINE Floats even_of_pairs(Ints pairs) { return floats_of(shift_left<16>(pairs)); }
HEADWAY_INLINE Floats odd_of_pairs(Ints pairs) { return floats_of(bits_and(pairs, splat_int(-0x10000))); }

// `width` signed bytes.
HEADWAY_INLINE Floats load_bytes(const int8_t* x) {
    return Floats{static_cast<float>(x[0]), static_cast<float>(x[1]), static_cast<float>(x[2]),
                  static_cast<float>(x[3])};
}

// `width` float16: float_of_f16() in each lane.
HEADWAY_INLINE Floats load_float16(const uint16_t* x) {
    Halves halves;
    __builtin_memcpy(&halves, x, sizeof halves);
    const Words words = __builtin_convertvector(halves, Words);
    const Words magnitude = (words & 0x7fffu) << 13;
    const Floats scaled = reinterpret_cast<Floats>(magnitude) * splat(0x1p112f);
    const Words special = reinterpret_cast<Words>(magnitude >= 0x0f800000u) & 0x7f800000u;
    return reinterpret_cast<Floats>(reinterpret_cast<Words>(scaled) | special | (words & 0x8000u) << 16);
}
// To nearest even, from 65,520 on infinity.
HEADWAY_INLINE void store_float16(uint16_t* x, Floats value) {
    for (int i = 0; i < width; ++i) x[i] = f16_of_float(value[i]);
}

// Pairs of bfloat16 times pairs, added to a lane: only where dots_bf16.
HEADWAY_INLINE Floats dot_pairs(Floats sum, Ints, Ints) { return sum; }

}  // namespace
}  // namespace headway
