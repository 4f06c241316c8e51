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

// 32 numbers of 16 bits in the order that packing leaves: 4 of each part's first halves, then 4 of each one's second.
struct Shorts32 {
    __m256i half[2];  // of parts 0 and 1, of 2 and 3
};

HEADWAY_INLINE Shorts32 fine_codes_of(const Group32& x, float inverse) {
    __m256i fine[4];
    for (int i = 0; i < 4; ++i) fine[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x.part[i], _mm256_set1_ps(inverse)));
    return {{_mm256_packs_epi32(fine[0], fine[1]), _mm256_packs_epi32(fine[2], fine[3])}};
}

// 8 sums of the squares of what is lost where fine codes become codes.
HEADWAY_INLINE __m256i errors_of(const Shorts32& raised) {
    __m256i squares[2];
    for (int i = 0; i < 2; ++i) {
        const __m256i fraction = _mm256_and_si256(raised.half[i], _mm256_set1_epi16(255));
        const __m256i lost = _mm256_sub_epi16(fraction, _mm256_set1_epi16(128));
        squares[i] = _mm256_madd_epi16(lost, lost);
    }
    return _mm256_add_epi32(squares[0], squares[1]);
}

// All bits of the lowest lane where the second scale loses less.
HEADWAY_INLINE __m128 prefers_second(__m256i first, __m256i second) {
    const __m256i pairs = _mm256_hadd_epi32(first, second);
    __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1));
    const __m128 weighed = _mm_mul_ps(_mm_cvtepi32_ps(sums), _mm_setr_ps(first_weight, 0.0f, second_weight, 0.0f));
    return _mm_cmplt_ps(_mm_movehl_ps(weighed, weighed), weighed);
}

// 32 codes in order.
HEADWAY_INLINE __m256i codes_of(const Shorts32& raised) {
    const __m256i packed = _mm256_packs_epi16(_mm256_srai_epi16(raised.half[0], 8), _mm256_srai_epi16(raised.half[1], 8));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

struct Quantised {
    __m256i codes;
    float scale;
};

HEADWAY_INLINE Quantised quantised(const Group32& x) {
    const float largest = largest_magnitude(x);
    if (!has_codes(largest)) return {_mm256_setzero_si256(), scale_without_codes(largest)};
    const Shorts32 fine = fine_codes_of(x, fine_largest / largest);
    Shorts32 first, second;  // raised by half a code: cut off, they are rounded
    for (int i = 0; i < 2; ++i) {
        first.half[i] = _mm256_add_epi16(fine.half[i], _mm256_set1_epi16(128));
        const __m256i less = _mm256_mulhrs_epi16(fine.half[i], _mm256_set1_epi16(second_share));
        second.half[i] = _mm256_sub_epi16(first.half[i], less);
    }
    const __m128 choice = prefers_second(errors_of(first), errors_of(second));
    const __m256i mask = _mm256_castps_si256(_mm256_broadcastss_ps(choice));
    for (int i = 0; i < 2; ++i) first.half[i] = _mm256_blendv_epi8(first.half[i], second.half[i], mask);
    const __m128 divisor = _mm_blendv_ps(_mm_set_ss(first_largest), _mm_set_ss(second_largest), choice);
    return {codes_of(first), largest / _mm_cvtss_f32(divisor)};
}

struct CodeSums {
    int32_t all;
    int32_t second_half;
};

// Raised by 128, codes are bytes without a sign, of which eight are added at once.
HEADWAY_INLINE CodeSums sums_of(__m256i codes) {
    const __m256i raised = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    const __m256i eights = _mm256_sad_epu8(raised, _mm256_setzero_si256());
    const __m128i low = _mm256_castsi256_si128(eights), high = _mm256_extracti128_si256(eights, 1);
    const __m128i halves = _mm_add_epi32(_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high));
    const int32_t second_half = _mm_extract_epi32(halves, 2) - 16 * 128;
    return {_mm_cvtsi128_si32(halves) - 16 * 128 + second_half, second_half};
}

HEADWAY_INLINE void quantise_group(const Group32& x, int32_t group, int32_t r, const Tile& tile) {
    const Quantised made = quantised(x);
    alignas(32) int32_t words[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(words), made.codes);
    int8_t* q = tile.q + (int64_t{group} * 8 * tile.rows + r) * 4;
    for (int i = 0; i < 8; ++i) __builtin_memcpy(q + int64_t{i} * tile.rows * 4, words + i, 4);
    const CodeSums sums = sums_of(made.codes);
    int32_t* both = tile.sums + int64_t{group} * 2 * tile.rows + r;
    both[0] = sums.all;
    both[tile.rows] = sums.second_half;
    tile.scales[int64_t{group} * tile.rows + r] = made.scale;
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
