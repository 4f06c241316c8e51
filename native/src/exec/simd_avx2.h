// simd_plain.h over 8 lanes of AVX2 and FMA. The meaning of each function is said there.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace headway {
namespace {

#define HEADWAY_INLINE inline __attribute__((always_inline))

constexpr int width = 8;
constexpr int num_registers = 16;
constexpr bool dots_bf16 = false;

typedef __m256 Floats;
typedef __m256i Ints;
typedef __m256 Mask;

HEADWAY_INLINE Floats splat(float value) { return _mm256_set1_ps(value); }
HEADWAY_INLINE Ints splat_int(int32_t value) { return _mm256_set1_epi32(value); }
HEADWAY_INLINE Floats load(const float* x) { return _mm256_loadu_ps(x); }
HEADWAY_INLINE void store(float* x, Floats value) { _mm256_storeu_ps(x, value); }
HEADWAY_INLINE Ints load_ints(const void* x) { return _mm256_loadu_si256(static_cast<const __m256i*>(x)); }
HEADWAY_INLINE void store_low_halves(void* x, Ints value) {
    const Ints low = _mm256_and_si256(value, _mm256_set1_epi32(0xffff));
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128(static_cast<__m128i*>(x), halves);
}
HEADWAY_INLINE void store_ints(void* x, Ints value) { _mm256_storeu_si256(static_cast<__m256i*>(x), value); }

HEADWAY_INLINE Ints first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
HEADWAY_INLINE Floats load_some(const float* x, int n) { return _mm256_maskload_ps(x, first_lanes(n)); }
HEADWAY_INLINE void store_some(float* x, Floats value, int n) { _mm256_maskstore_ps(x, first_lanes(n), value); }

HEADWAY_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
HEADWAY_INLINE Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
HEADWAY_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
HEADWAY_INLINE Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
HEADWAY_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
HEADWAY_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
HEADWAY_INLINE Floats root(Floats a) { return _mm256_sqrt_ps(a); }

HEADWAY_INLINE Ints bits_of(Floats a) { return _mm256_castps_si256(a); }
HEADWAY_INLINE Floats floats_of(Ints a) { return _mm256_castsi256_ps(a); }
HEADWAY_INLINE Ints bits_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
HEADWAY_INLINE Ints bits_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
HEADWAY_INLINE Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
template <int count>
HEADWAY_INLINE Ints shift_left(Ints a) {
    return _mm256_slli_epi32(a, count);
}
template <int count>
HEADWAY_INLINE Ints shift_right(Ints a) {
    return _mm256_srli_epi32(a, count);
}
template <int count>
HEADWAY_INLINE Ints shift_right_signed(Ints a) {
    return _mm256_srai_epi32(a, count);
}
HEADWAY_INLINE Floats from_ints(Ints a) { return _mm256_cvtepi32_ps(a); }

HEADWAY_INLINE Mask less(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
HEADWAY_INLINE Mask is_nan(Floats a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
HEADWAY_INLINE Floats select(Mask mask, Floats yes, Floats no) { return _mm256_blendv_ps(no, yes, mask); }
HEADWAY_INLINE Mask lanes_between(int first, int begin, int end) {
    const Ints lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                                                   _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane)));
}

HEADWAY_INLINE Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
HEADWAY_INLINE Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
HEADWAY_INLINE Floats nearest(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
HEADWAY_INLINE Floats power_of_two(Floats n) {
    return floats_of(shift_left<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127))));
}

HEADWAY_INLINE float sum_lanes(Floats a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HEADWAY_INLINE float largest_lane(Floats a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

HEADWAY_INLINE Floats even_of_pairs(Ints pairs) { return floats_of(shift_left<16>(pairs)); }

// The mask stays in memory: the tiles of attention need all 16 registers, and the compiler would keep it in one.
alignas(32) const int32_t high_halves[width] = {-0x10000, -0x10000, -0x10000, -0x10000,
                                                -0x10000, -0x10000, -0x10000, -0x10000};
HEADWAY_INLINE Floats odd_of_pairs(Ints pairs) {
    Floats odd;
    __asm__("vandps %2, %1, %0" : "=x"(odd) : "x"(pairs), "m"(high_halves));
    return odd;
}

HEADWAY_INLINE Floats load_bytes(const int8_t* x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}

HEADWAY_INLINE Floats load_float16(const uint16_t* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
HEADWAY_INLINE void store_float16(uint16_t* x, Floats value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(x), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

HEADWAY_INLINE Floats dot_pairs(Floats sum, Ints, Ints) { return sum; }

}  // namespace
}  // namespace headway
