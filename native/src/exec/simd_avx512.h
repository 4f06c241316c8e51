// simd_plain.h over 16 lanes of AVX-512; dot_pairs where HEADWAY_AVX512_BF16 is defined before. The meaning of each
// function is said there.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace headway {
namespace {

#define HEADWAY_INLINE inline __attribute__((always_inline))

constexpr int width = 16;
constexpr int num_registers = 32;

typedef __m512 Floats;
typedef __m512i Ints;
typedef __mmask16 Mask;

HEADWAY_INLINE Floats splat(float value) { return _mm512_set1_ps(value); }
HEADWAY_INLINE Ints splat_int(int32_t value) { return _mm512_set1_epi32(value); }
HEADWAY_INLINE Floats load(const float* x) { return _mm512_loadu_ps(x); }
HEADWAY_INLINE void store(float* x, Floats value) { _mm512_storeu_ps(x, value); }
HEADWAY_INLINE Ints load_ints(const void* x) { return _mm512_loadu_si512(x); }
HEADWAY_INLINE void store_ints(void* x, Ints value) { _mm512_storeu_si512(x, value); }
HEADWAY_INLINE void store_low_halves(void* x, Ints value) {
    _mm256_storeu_si256(static_cast<__m256i*>(x), _mm512_cvtepi32_epi16(value));
}

HEADWAY_INLINE Mask first_lanes(int n) { return static_cast<Mask>((1u << n) - 1u); }
HEADWAY_INLINE Floats load_some(const float* x, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), x); }
HEADWAY_INLINE void store_some(float* x, Floats value, int n) { _mm512_mask_storeu_ps(x, first_lanes(n), value); }

HEADWAY_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
HEADWAY_INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
HEADWAY_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
HEADWAY_INLINE Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
HEADWAY_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
HEADWAY_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
HEADWAY_INLINE Floats root(Floats a) { return _mm512_sqrt_ps(a); }

HEADWAY_INLINE Ints bits_of(Floats a) { return _mm512_castps_si512(a); }
HEADWAY_INLINE Floats floats_of(Ints a) { return _mm512_castsi512_ps(a); }
HEADWAY_INLINE Ints bits_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
HEADWAY_INLINE Ints bits_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
HEADWAY_INLINE Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
template <int count>
HEADWAY_INLINE Ints shift_left(Ints a) {
    return _mm512_slli_epi32(a, count);
}
template <int count>
HEADWAY_INLINE Ints shift_right(Ints a) {
    return _mm512_srli_epi32(a, count);
}
template <int count>
HEADWAY_INLINE Ints shift_right_signed(Ints a) {
    return _mm512_srai_epi32(a, count);
}
HEADWAY_INLINE Floats from_ints(Ints a) { return _mm512_cvtepi32_ps(a); }

HEADWAY_INLINE Mask less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
HEADWAY_INLINE Mask is_nan(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
HEADWAY_INLINE Floats select(Mask mask, Floats yes, Floats no) { return _mm512_mask_blend_ps(mask, no, yes); }
HEADWAY_INLINE Mask lanes_between(int first, int begin, int end) {
    Mask mask = 0xffff;
    if (end - first < width) mask = end > first ? first_lanes(end - first) : 0;
    if (begin > first) mask = begin - first < width ? mask & static_cast<Mask>(~first_lanes(begin - first)) : 0;
    return mask;
}

HEADWAY_INLINE Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
HEADWAY_INLINE Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
HEADWAY_INLINE Floats nearest(Floats a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
HEADWAY_INLINE Floats power_of_two(Floats n) {
    return floats_of(shift_left<23>(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127))));
}

HEADWAY_INLINE __m256 upper_half(Floats a) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
}
HEADWAY_INLINE float sum_lanes(Floats a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), upper_half(a));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HEADWAY_INLINE float largest_lane(Floats a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), upper_half(a));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

HEADWAY_INLINE Floats even_of_pairs(Ints pairs) { return floats_of(shift_left<16>(pairs)); }
HEADWAY_INLINE Floats odd_of_pairs(Ints pairs) { return floats_of(bits_and(pairs, splat_int(-0x10000))); }

HEADWAY_INLINE Floats load_bytes(const int8_t* x) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}

HEADWAY_INLINE Floats load_float16(const uint16_t* x) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
HEADWAY_INLINE void store_float16(uint16_t* x, Floats value) {
    const __m256i halves = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), halves);
}

#ifdef HEADWAY_AVX512_BF16
constexpr bool dots_bf16 = true;
HEADWAY_INLINE Floats dot_pairs(Floats sum, Ints a, Ints b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
#else
constexpr bool dots_bf16 = false;
HEADWAY_INLINE Floats dot_pairs(Floats sum, Ints, Ints) { return sum; }
#endif

}  // namespace
}  // namespace headway
