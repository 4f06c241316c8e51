// Stands for <immintrin.h> in the emulated files: AVX2, FMA and F16C are the compiler's own, AVX-512 is SIMDe's (0.7.4,
// Debian's libsimde-dev), and what that lacks is written here after Intel's pseudocode.
#pragma once

// The compiler's headers refuse to be included alone, and its whole immintrin.h would declare AVX-512, too.
#define _IMMINTRIN_H_INCLUDED
#include <mmintrin.h>
#include <xmmintrin.h>
#include <emmintrin.h>
#include <pmmintrin.h>
#include <tmmintrin.h>
#include <smmintrin.h>
#include <wmmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <fmaintrin.h>
#include <f16cintrin.h>

#if defined(HEADWAY_EMULATE_AVX512)
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

typedef simde__mmask8 __mmask8;
typedef simde__mmask16 __mmask16;
typedef float EmulatedFloats __attribute__((vector_size(64)));
typedef int EmulatedInts __attribute__((vector_size(64)));

static inline __m512i emulated_join(__m256i low, __m256i high) {
    return simde_mm512_inserti64x4(simde_mm512_castsi256_si512(low), high, 1);
}
static inline __m512 emulated_join_ps(__m256 low, __m256 high) {
    return simde_mm512_castsi512_ps(emulated_join(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}
static inline __m256i emulated_low(__m512i x) { return simde_mm512_castsi512_si256(x); }
static inline __m256i emulated_high(__m512i x) { return simde_mm512_extracti64x4_epi64(x, 1); }
static inline __m256 emulated_low_ps(__m512 x) { return _mm256_castsi256_ps(emulated_low(simde_mm512_castps_si512(x))); }
static inline __m256 emulated_high_ps(__m512 x) { return _mm256_castsi256_ps(emulated_high(simde_mm512_castps_si512(x))); }

static inline __m512 _mm512_cvtepi32_ps(__m512i x) {
    return emulated_join_ps(_mm256_cvtepi32_ps(emulated_low(x)), _mm256_cvtepi32_ps(emulated_high(x)));
}
static inline __m512i _mm512_cvtps_epi32(__m512 x) {
    return emulated_join(_mm256_cvtps_epi32(emulated_low_ps(x)), _mm256_cvtps_epi32(emulated_high_ps(x)));
}
static inline __m512i _mm512_cvtepi8_epi32(__m128i x) {
    return emulated_join(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)));
}
static inline __m256i emulated_cvtps_ph(__m512 x) {
    return _mm256_set_m128i(_mm256_cvtps_ph(emulated_high_ps(x), 0), _mm256_cvtps_ph(emulated_low_ps(x), 0));
}
#define _mm512_cvtps_ph(x, rounding) emulated_cvtps_ph(x)
static inline __m512 _mm512_cvtph_ps(__m256i x) {
    return emulated_join_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
// SIMDe's alias has the arguments of the masked one.
#undef _mm512_madd_epi16
static inline __m512i _mm512_madd_epi16(__m512i x, __m512i y) { return simde_mm512_madd_epi16(x, y); }
static inline __m512i _mm512_srai_epi32(__m512i x, unsigned count) {
    const int bits = static_cast<int>(count);
    return emulated_join(_mm256_srai_epi32(emulated_low(x), bits), _mm256_srai_epi32(emulated_high(x), bits));
}
static inline __m256i _mm512_cvtepi32_epi16(__m512i x) {
    const EmulatedInts values = reinterpret_cast<EmulatedInts>(x);
    short halves[16];
    for (int i = 0; i < 16; ++i) halves[i] = static_cast<short>(values[i]);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
}
// Only the lanes of the mask are touched in memory: beyond them may be no page.
static inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* from) {
    EmulatedFloats loaded = {};
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) loaded[i] = static_cast<const float*>(from)[i];
    }
    return reinterpret_cast<__m512>(loaded);
}
static inline __m256i _mm256_maskz_loadu_epi32(__mmask8 mask, const void* from) {
    int loaded[8] = {};
    for (int i = 0; i < 8; ++i) {
        if (mask >> i & 1) loaded[i] = static_cast<const int*>(from)[i];
    }
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(loaded));
}
static inline __m256 _mm256_maskz_loadu_ps(__mmask8 mask, const void* from) {
    return _mm256_castsi256_ps(_mm256_maskz_loadu_epi32(mask, from));
}
static inline void _mm512_mask_storeu_ps(void* to, __mmask16 mask, __m512 x) {
    const EmulatedFloats values = reinterpret_cast<EmulatedFloats>(x);
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) static_cast<float*>(to)[i] = values[i];
    }
}

// The odd number of each pair is added first; each sum is rounded.
static inline __m512 emulated_dpbf16(__m512 sum, __m512i x, __m512i y) {
    EmulatedFloats total = reinterpret_cast<EmulatedFloats>(sum);
    const EmulatedInts a = reinterpret_cast<EmulatedInts>(x), b = reinterpret_cast<EmulatedInts>(y);
    total += reinterpret_cast<EmulatedFloats>(a & ~0xffff) * reinterpret_cast<EmulatedFloats>(b & ~0xffff);
    total += reinterpret_cast<EmulatedFloats>(a << 16) * reinterpret_cast<EmulatedFloats>(b << 16);
    return reinterpret_cast<__m512>(total);
}
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps(sum, x, y) emulated_dpbf16(sum, reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y))
#endif

#if defined(HEADWAY_EMULATE_AVXVNNI)
// Four products of an unsigned and a signed byte are added to each 32 bits, without saturation.
static inline __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i x, __m256i y) {
    const __m256i low_bytes = _mm256_set1_epi16(255);
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, low_bytes), _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(y, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
#define __AVXVNNI__ 1
#endif
