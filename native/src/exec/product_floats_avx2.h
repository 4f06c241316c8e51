// Products of many rows with bf16 and float32 matrices with AVX2. Columns go by in blocks: the weights of one, unpacked once,
// and the same columns of a tile of rows stay in the first-level cache. Sums wait in y from block to block, so the chains are
// those of product_avx2.h.
#pragma once

#include "product_parts_avx2.h"

namespace headway {
namespace {

constexpr int32_t float_block_groups = 4;  // 8 KB of weights, 6 KB of a tile
constexpr int32_t least_float_rows = 24;
// Twice so many sums and one column of weights fit the registers.
constexpr int32_t most_float_rows = 6;

// `count` columns of a panel from `group` on, as [count][16 lanes] float32.
HEADWAY_INLINE void unpack_floats(const MatrixView& w, const uint8_t* panel, int32_t group, int32_t count, float* to) {
    const uint8_t* from = panel + group * group_bytes(w);
    if (w.form == Form::f32) {
        __builtin_memcpy(to, from, static_cast<size_t>(count) * panel_lanes * sizeof(float));
        return;
    }
    const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    for (int32_t pair = 0; pair < count / 2; ++pair, from += 64, to += 2 * panel_lanes) {
        for (int half = 0; half < 2; ++half) {
            const __m256i both = load_bytes32(from + half * 32);
            _mm256_store_ps(to + half * half_lanes, _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)));
            _mm256_store_ps(to + panel_lanes + half * half_lanes, _mm256_castsi256_ps(_mm256_and_si256(both, mask)));
        }
    }
}

// Adds `count` columns of `rows` rows to y: x [count][stride].
template <int rows>
HEADWAY_ALONE void add_columns(const float* weights, const float* x, int64_t stride, int32_t count, float* y) {
    __m256 totals[rows][2];
#pragma GCC unroll 6
    for (int row = 0; row < rows; ++row) {
        for (int half = 0; half < 2; ++half) totals[row][half] = _mm256_loadu_ps(y + row * y_ld + half * half_lanes);
    }
    for (int32_t k = 0; k < count; ++k, weights += panel_lanes, x += stride) {
        const __m256 halves[2] = {_mm256_load_ps(weights), _mm256_load_ps(weights + half_lanes)};
#pragma GCC unroll 6
        for (int row = 0; row < rows; ++row) {
            const __m256 factor = _mm256_set1_ps(x[row]);
            for (int half = 0; half < 2; ++half) {
                totals[row][half] = _mm256_fmadd_ps(factor, halves[half], totals[row][half]);
            }
        }
    }
    store_rows<rows>(totals, y);
}

// A tile in one or two parts that are as alike as may be.
HEADWAY_INLINE void add_columns_of_tile(const float* weights, const Tile& tile, int32_t first, int32_t count, float* y) {
    const float* x = tile.f32 + int64_t{first} * tile.rows;
    const int32_t num_parts = (tile.rows + most_float_rows - 1) / most_float_rows;
    for (int32_t r = 0, part = 0; part < num_parts; ++part) {
        const int32_t rows = (tile.rows - r + num_parts - part - 1) / (num_parts - part);
        float* sums = y + r * y_ld;
        switch (rows) {
            case 1: add_columns<1>(weights, x + r, tile.rows, count, sums); break;
            case 2: add_columns<2>(weights, x + r, tile.rows, count, sums); break;
            case 3: add_columns<3>(weights, x + r, tile.rows, count, sums); break;
            case 4: add_columns<4>(weights, x + r, tile.rows, count, sums); break;
            case 5: add_columns<5>(weights, x + r, tile.rows, count, sums); break;
            default: add_columns<6>(weights, x + r, tile.rows, count, sums); break;
        }
        r += rows;
    }
}

}  // namespace
}  // namespace headway
