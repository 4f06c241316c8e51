// Activations made ready with AVX2: quantised in groups of 32, or laid out as float32. For product_avx2.h.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_tiles.h"

namespace headway {
namespace {

struct Group32 {
    __m256 part[4];
};

HEADWAY_INLINE Group32 load_row_group(const float* x, int32_t group, int32_t num_cols) {
    RowGroup padded;
    const float* from = x + int64_t{group} * group_cols;
    if ((group + 1) * group_cols > num_cols) {
        load_group(x, group, num_cols, padded);
        from = padded.values;
    }
    Group32 loaded;
    for (int i = 0; i < 4; ++i) loaded.part[i] = _mm256_loadu_ps(from + i * 8);
    return loaded;
}

// The largest |x|. Bits are compared, as integers: so infinity and NaN are larger than all numbers.
HEADWAY_INLINE float largest_magnitude(const Group32& x) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    for (const __m256& part : x.part) {
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(part), mask));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return float_of_bits(static_cast<uint32_t>(_mm_cvtsi128_si32(four)));
}

HEADWAY_INLINE float scale_of(float largest) {
    if (!(largest < __builtin_inff())) return __builtin_nanf("");
    return largest < 0x1p-110f ? 0.0f : largest / 127.0f;
}

// 32 codes in order: packing works in halves of 128 bits and leaves them in the order 0 2 4 6 1 3 5 7.
HEADWAY_INLINE __m256i codes_of(const Group32& x, float inverse) {
    __m256i codes[4];
    for (int i = 0; i < 4; ++i) codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x.part[i], _mm256_set1_ps(inverse)));
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

HEADWAY_INLINE int32_t sum_of_four(__m128i four) {
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}

HEADWAY_INLINE void quantise_group(const Group32& x, int32_t group, int32_t r, const Tile& tile) {
    const float scale = scale_of(largest_magnitude(x));
    const __m256i codes = scale > 0.0f ? codes_of(x, 1.0f / scale) : _mm256_setzero_si256();
    alignas(32) int32_t words[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(words), codes);
    int8_t* q = tile.q + (int64_t{group} * 8 * tile.rows + r) * 4;
    for (int i = 0; i < 8; ++i) __builtin_memcpy(q + int64_t{i} * tile.rows * 4, words + i, 4);
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
    const int32_t second = sum_of_four(_mm256_extracti128_si256(sums, 1));
    int32_t* both = tile.sums + int64_t{group} * 2 * tile.rows + r;
    both[0] = sum_of_four(_mm256_castsi256_si128(sums)) + second;
    both[tile.rows] = second;
    tile.scales[int64_t{group} * tile.rows + r] = scale;
}

void quantise_rows(const float* x, int64_t ld, int32_t row_begin, int32_t row_end, const Activations* a) {
    for (int32_t row = row_begin; row < row_end; ++row) {
        const Tile tile = tile_at(*a, row / row_tile * row_tile, row_tile);
        for (int32_t group = 0; group < a->num_groups; ++group) {
            quantise_group(load_row_group(x + row * ld, group, a->num_cols), group, row % row_tile, tile);
        }
    }
}

}  // namespace
}  // namespace headway
