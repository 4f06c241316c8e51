// pack_rows where bf16 matrices are multiplied by bfloat16: pairs of columns of each row, rounded to nearest even.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_tiles.h"

namespace headway {
namespace {

// 8 numbers as bfloat16 in the lower halves; a NaN stays one.
HEADWAY_INLINE __m256i bf16_bits(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounding = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, rounding), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

// 32 columns of one row of a tile: 16 pairs go to places `rows` pairs apart.
HEADWAY_INLINE void pack_group(const float* x, int64_t rows, uint16_t* to) {
    alignas(32) uint16_t packed[group_cols];
    for (int i = 0; i < group_cols; i += 16) {
        const __m256i halves = _mm256_packus_epi32(bf16_bits(_mm256_loadu_ps(x + i)), bf16_bits(_mm256_loadu_ps(x + i + 8)));
        const __m256i in_order = _mm256_permute4x64_epi64(halves, 0xd8);  // packing works in halves of 128 bits
        _mm256_store_si256(reinterpret_cast<__m256i*>(packed + i), in_order);
    }
    for (int pair = 0; pair < group_cols / 2; ++pair) __builtin_memcpy(to + pair * rows * 2, packed + pair * 2, 4);
}

void pack_rows(const float* x, int64_t ld, int32_t row_begin, int32_t row_end, const Activations* a) {
    for (int32_t row = row_begin; row < row_end; ++row) {
        const Tile tile = tile_at(*a, row / row_tile * row_tile, row_tile);
        uint16_t* to = tile.bf16 + row % row_tile * 2;
        for (int32_t group = 0; group < a->num_groups; ++group) {
            const float* from = x + row * ld + group * group_cols;
            RowGroup padded;
            if ((group + 1) * group_cols > a->num_cols) {
                load_group(x + row * ld, group, a->num_cols, padded);
                from = padded.values;
            }
            pack_group(from, tile.rows, to + int64_t{group} * group_cols * tile.rows);
        }
    }
}

}  // namespace
}  // namespace headway
