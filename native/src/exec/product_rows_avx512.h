// quantise_rows with AVX-512: four rows of a tile at a time, which lie side by side in it, so that their codes, scales
// and sums are made and stored together.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_tiles.h"

namespace headway {
namespace {

constexpr int32_t most_rows_together = 4;

// 32 columns of up to four rows; zeros where there is no row and behind the last column.
struct RowGroups {
    __m512 first[most_rows_together];
    __m512 second[most_rows_together];
};

template <int rows>
HEADWAY_INLINE RowGroups load_row_groups(const float* x, int64_t ld, int32_t count) {
    RowGroups loaded;
    for (int row = 0; row < most_rows_together; ++row) {
        const float* from = row < rows ? x + row * ld : x;
        if (row >= rows) {
            loaded.first[row] = loaded.second[row] = _mm512_setzero_ps();
        } else if (count >= group_cols) {
            loaded.first[row] = _mm512_loadu_ps(from);
            loaded.second[row] = _mm512_loadu_ps(from + width);
        } else {
            loaded.first[row] = count >= width ? load(from) : load_some(from, count);
            loaded.second[row] = count > width ? load_some(from + width, count - width) : _mm512_setzero_ps();
        }
    }
    return loaded;
}

struct Larger {
    HEADWAY_INLINE __m512i operator()(__m512i a, __m512i b) const { return _mm512_max_epi32(a, b); }
    HEADWAY_INLINE __m128i operator()(__m128i a, __m128i b) const { return _mm_max_epi32(a, b); }
};

struct Sum {
    HEADWAY_INLINE __m512i operator()(__m512i a, __m512i b) const { return _mm512_add_epi32(a, b); }
    HEADWAY_INLINE __m128i operator()(__m128i a, __m128i b) const { return _mm_add_epi32(a, b); }
};

template <typename Join>
HEADWAY_INLINE __m128i fold(__m512i x, Join join) {
    const __m256i low = _mm512_castsi512_si256(x), high = _mm512_extracti64x4_epi64(x, 1);
    return join(join(_mm256_castsi256_si128(low), _mm256_castsi256_si128(high)),
                join(_mm256_extracti128_si256(low, 1), _mm256_extracti128_si256(high, 1)));
}

// Of each row all 16 joined.
template <typename Join>
HEADWAY_INLINE __m128i fold_each(const __m512i (&x)[most_rows_together], Join join) {
    __m512i two[2];
    for (int i = 0; i < 2; ++i) {
        two[i] = join(_mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]));
    }
    return fold(join(_mm512_unpacklo_epi64(two[0], two[1]), _mm512_unpackhi_epi64(two[0], two[1])), join);
}

// The largest |x| of each row. Bits are compared, as integers: so infinity and NaN are larger than all numbers.
HEADWAY_INLINE __m128 largest_magnitudes(const RowGroups& x) {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i largest[most_rows_together];
    for (int row = 0; row < most_rows_together; ++row) {
        largest[row] = _mm512_max_epi32(_mm512_and_si512(bits_of(x.first[row]), mask),
                                        _mm512_and_si512(bits_of(x.second[row]), mask));
    }
    return _mm_castsi128_ps(fold_each(largest, Larger()));
}

// All bits of the rows that are quantised.
HEADWAY_INLINE __m128 have_codes(__m128 largest) {
    return _mm_and_ps(_mm_cmpge_ps(largest, _mm_set1_ps(0x1p-110f)), _mm_cmplt_ps(largest, _mm_set1_ps(__builtin_inff())));
}

// Of each row: NaN where it is not finite, 0 where it counts as zeros.
HEADWAY_INLINE __m128 scales_of(__m128 largest, __m128 with_codes, __m128 takes_second) {
    const __m128 divisor = _mm_blendv_ps(_mm_set1_ps(first_largest), _mm_set1_ps(second_largest), takes_second);
    const __m128 is_tiny = _mm_cmplt_ps(largest, _mm_set1_ps(0x1p-110f));
    const __m128 without = _mm_andnot_ps(is_tiny, _mm_set1_ps(__builtin_nanf("")));
    return _mm_blendv_ps(without, _mm_div_ps(largest, divisor), with_codes);
}

// 32 numbers of 16 bits of each row, raised by half a code: cut off, they are rounded. Each 128 bits: 4 of the first
// columns, 4 of the second.
struct FineCodes {
    __m512i first[most_rows_together];
    __m512i less[most_rows_together];  // first - less: by the second scale
};

HEADWAY_INLINE FineCodes fine_codes_of(const RowGroups& x, __m128 largest) {
    alignas(16) float inverse[most_rows_together];
    _mm_store_ps(inverse, _mm_div_ps(_mm_set1_ps(fine_largest), largest));
    FineCodes made;
    for (int row = 0; row < most_rows_together; ++row) {
        const __m512 factor = _mm512_set1_ps(inverse[row]);
        const __m512i fine = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x.first[row], factor)),
                                                _mm512_cvtps_epi32(_mm512_mul_ps(x.second[row], factor)));
        made.first[row] = _mm512_add_epi16(fine, _mm512_set1_epi16(128));
        made.less[row] = _mm512_mulhrs_epi16(fine, _mm512_set1_epi16(second_share));
    }
    return made;
}

// 16 sums of the squares of what is lost where fine codes become codes.
HEADWAY_INLINE __m512i errors_of(__m512i raised) {
    const __m512i fraction = _mm512_and_si512(raised, _mm512_set1_epi16(255));
    const __m512i lost = _mm512_sub_epi16(fraction, _mm512_set1_epi16(128));
    return _mm512_madd_epi16(lost, lost);
}

// All bits of the rows whose second scale loses less.
HEADWAY_INLINE __m128 prefer_second(const FineCodes& fine) {
    __m512i first[most_rows_together], second[most_rows_together];
    for (int row = 0; row < most_rows_together; ++row) {
        first[row] = errors_of(fine.first[row]);
        second[row] = errors_of(_mm512_sub_epi16(fine.first[row], fine.less[row]));
    }
    const __m128 first_error = _mm_cvtepi32_ps(fold_each(first, Sum()));
    const __m128 second_error = _mm_cvtepi32_ps(fold_each(second, Sum()));
    return _mm_cmplt_ps(_mm_mul_ps(second_error, _mm_set1_ps(second_weight)),
                        _mm_mul_ps(first_error, _mm_set1_ps(first_weight)));
}

// Codes of four columns in each 128 bits, for the four rows: of columns 4 * i to 4 * i + 3 for i = 0 to 3, then 4 to 7.
struct CodesOfRows {
    __m512i columns[2];
};

HEADWAY_INLINE CodesOfRows codes_of(const FineCodes& fine, __m128 with_codes, __m128 takes_second) {
    alignas(16) int32_t is_used[most_rows_together], is_second[most_rows_together];
    _mm_store_si128(reinterpret_cast<__m128i*>(is_used), _mm_castps_si128(with_codes));
    _mm_store_si128(reinterpret_cast<__m128i*>(is_second), _mm_castps_si128(takes_second));
    __m512i words[most_rows_together];
    for (int row = 0; row < most_rows_together; ++row) {
        const __m512i less = _mm512_and_si512(fine.less[row], _mm512_set1_epi32(is_second[row]));
        words[row] = _mm512_srai_epi16(_mm512_sub_epi16(fine.first[row], less), 8);
        words[row] = _mm512_and_si512(words[row], _mm512_set1_epi32(is_used[row]));
    }
    const __m512 low = floats_of(_mm512_packs_epi16(words[0], words[1]));  // of each row the first 16 columns, the others
    const __m512 high = floats_of(_mm512_packs_epi16(words[2], words[3]));
    return {{bits_of(_mm512_shuffle_ps(low, high, 0x88)), bits_of(_mm512_shuffle_ps(low, high, 0xdd))}};
}

HEADWAY_INLINE __m128i sums_of(__m512i codes) {
    return fold(_mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes), Sum());
}

template <int rows>
HEADWAY_INLINE void store_rows(void* to, __m128i values) {
    __builtin_memcpy(to, &values, rows * 4);
}

template <int rows>
HEADWAY_INLINE void store_codes(int8_t* q, int64_t stride, __m512i columns) {
    const __m256i low = _mm512_castsi512_si256(columns), high = _mm512_extracti64x4_epi64(columns, 1);
    store_rows<rows>(q, _mm256_castsi256_si128(low));
    store_rows<rows>(q + stride, _mm256_extracti128_si256(low, 1));
    store_rows<rows>(q + 2 * stride, _mm256_castsi256_si128(high));
    store_rows<rows>(q + 3 * stride, _mm256_extracti128_si256(high, 1));
}

// Rows from r on of a tile; x is the first of them.
template <int rows>
void quantise_together(const float* x, int64_t ld, const Activations& a, const Tile& tile, int32_t r) {
    const int64_t stride = int64_t{tile.rows} * 4;
    int8_t* q = tile.q + r * 4;
    float* to_scales = tile.scales + r;
    int32_t* to_sums = tile.sums + r;
    for (int32_t group = 0; group < a.num_groups; ++group) {
        const int32_t column = group * group_cols;
        const RowGroups loaded = load_row_groups<rows>(x + column, ld, a.num_cols - column);
        const __m128 largest = largest_magnitudes(loaded), with_codes = have_codes(largest);
        const FineCodes fine = fine_codes_of(loaded, largest);
        const __m128 takes_second = prefer_second(fine);
        const CodesOfRows codes = codes_of(fine, with_codes, takes_second);
        const __m128i second = sums_of(codes.columns[1]);
        store_codes<rows>(q, stride, codes.columns[0]);
        store_codes<rows>(q + 4 * stride, stride, codes.columns[1]);
        store_rows<rows>(to_scales, _mm_castps_si128(scales_of(largest, with_codes, takes_second)));
        store_rows<rows>(to_sums, _mm_add_epi32(sums_of(codes.columns[0]), second));
        store_rows<rows>(to_sums + tile.rows, second);
        q += 8 * stride;
        to_scales += tile.rows;
        to_sums += 2 * tile.rows;
    }
}

void quantise_rows(const float* x, int64_t ld, int32_t row_begin, int32_t row_end, const Activations* a) {
    for (int32_t row = row_begin; row < row_end;) {
        const int32_t r = row % row_tile;
        const Tile tile = tile_at(*a, row - r, row_tile);
        const int32_t rows = smaller(smaller(row_end - row, row_tile - r), most_rows_together);
        switch (rows) {
            case 1: quantise_together<1>(x + row * ld, ld, *a, tile, r); break;
            case 2: quantise_together<2>(x + row * ld, ld, *a, tile, r); break;
            case 3: quantise_together<3>(x + row * ld, ld, *a, tile, r); break;
            default: quantise_together<4>(x + row * ld, ld, *a, tile, r); break;
        }
        row += rows;
    }
}

}  // namespace
}  // namespace headway
