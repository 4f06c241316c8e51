// Products with AVX2, FMA and F16C, and with AVX-VNNI where the file is compiled for it: which kernel takes what.
#pragma once

#include "product_bytes_avx2.h"
#include "product_nibbles_avx2.h"

namespace headway {
namespace {

// Two bfloat16 numbers of a lane lie in 32 bits: the upper one is a float32 with a zeroed lower half, the lower one after a
// shift.
template <int rows>
HEADWAY_ALONE void multiply_bf16(const MatrixView& w, const uint8_t* panel, const Tile& tile, int32_t r, float* y) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    const float* x = tile.f32 + r;
    __m256 totals[rows][2];
    zero_rows<rows>(totals);
    for (int32_t pair = 0; pair < w.num_groups * (group_cols / 2); ++pair) {
        ask_for(panel, w.panel_bytes, 64);
        __m256 low[2], high[2];
        for (int half = 0; half < 2; ++half) {
            const __m256i both = load_bytes32(panel + half * 32);
            low[half] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
            high[half] = _mm256_castsi256_ps(_mm256_and_si256(both, mask));
        }
        for (int row = 0; row < rows; ++row) {
            for (int half = 0; half < 2; ++half) {
                totals[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(x[row]), low[half], totals[row][half]);
            }
        }
        for (int row = 0; row < rows; ++row) {
            for (int half = 0; half < 2; ++half) {
                totals[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(x[tile.rows + row]), high[half], totals[row][half]);
            }
        }
        panel += 64;
        x += 2 * tile.rows;
    }
    store_rows<rows>(totals, y);
}

template <int rows>
HEADWAY_ALONE void multiply_f32(const MatrixView& w, const uint8_t* panel, const Tile& tile, int32_t r, float* y) {
    const float* x = tile.f32 + r;
    const auto* weights = reinterpret_cast<const float*>(panel);
    __m256 totals[rows][2];
    zero_rows<rows>(totals);
    for (int32_t k = 0; k < w.num_groups * group_cols; ++k) {
        ask_for(reinterpret_cast<const uint8_t*>(weights), w.panel_bytes, 64);
        const __m256 halves[2] = {_mm256_loadu_ps(weights), _mm256_loadu_ps(weights + half_lanes)};
        for (int row = 0; row < rows; ++row) {
            for (int half = 0; half < 2; ++half) {
                totals[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(x[row]), halves[half], totals[row][half]);
            }
        }
        weights += panel_lanes;
        x += tile.rows;
    }
    store_rows<rows>(totals, y);
}

template <int rows, bool is_unpacked>
void multiply_codes(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile, int32_t r,
                    float* y) {
    if (w.form == Form::q4) {
        if (!w.has_min) return multiply_q4<rows, false, false, is_unpacked>(w, panel, unpacked, tile, r, y);
        if (!w.wide_scales) return multiply_q4<rows, true, false, is_unpacked>(w, panel, unpacked, tile, r, y);
        return multiply_q4<rows, true, true, is_unpacked>(w, panel, unpacked, tile, r, y);
    }
    if (w.group == 16) return multiply_q8_of_16<rows, is_unpacked>(w, panel, unpacked, tile, r, y);
    if (!w.has_min) return multiply_q8<rows, false, false, is_unpacked>(w, panel, unpacked, tile, r, y);
    if (!w.wide_scales) return multiply_q8<rows, true, false, is_unpacked>(w, panel, unpacked, tile, r, y);
    return multiply_q8<rows, true, true, is_unpacked>(w, panel, unpacked, tile, r, y);
}

// `rows` rows of a tile from r on, 16 lanes each.
template <int rows>
void multiply_rows(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile, int32_t r,
                   float* y) {
    if (w.form == Form::bf16) return multiply_bf16<rows>(w, panel, tile, r, y);
    if (w.form == Form::f32) return multiply_f32<rows>(w, panel, tile, r, y);
    if (unpacked != nullptr) return multiply_codes<rows, true>(w, panel, unpacked, tile, r, y);
    return multiply_codes<rows, false>(w, panel, nullptr, tile, r, y);
}

// A tile goes by in fours; 5 rows as 3 and 2, 6 as 3 and 3, so that none goes alone.
void multiply_tile(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile, float* y) {
    for (int32_t r = 0; r < tile.rows;) {
        const int32_t left = tile.rows - r;
        const int32_t rows = left <= 4 ? left : left == 5 || left == 6 ? 3 : 4;
        switch (rows) {
            case 1: multiply_rows<1>(w, panel, unpacked, tile, r, y + r * y_ld); break;
            case 2: multiply_rows<2>(w, panel, unpacked, tile, r, y + r * y_ld); break;
            case 3: multiply_rows<3>(w, panel, unpacked, tile, r, y + r * y_ld); break;
            default: multiply_rows<4>(w, panel, unpacked, tile, r, y + r * y_ld); break;
        }
        r += rows;
    }
}

struct Avx2Product {
    static constexpr int32_t row_tile = headway::row_tile;
    static constexpr int32_t most_panels = headway::most_panels;
    static constexpr int32_t bf16_bytes = 4;

    static int32_t panels_at_once(int32_t) { return 1; }

    static void multiply(const MatrixView& w, int32_t panel, int32_t num_panels, const Tile& tile, float* y) {
        for (int32_t p = 0; p < num_panels; ++p) multiply_tile(w, panel_at(w, panel + p), nullptr, tile, y + p * panel_lanes);
    }
};

}  // namespace
}  // namespace headway

#include "product_unpacked_avx2.h"

namespace headway {
namespace {

void product(const MatrixView* w, const Activations* a, int32_t row_begin, int32_t row_end, int32_t panel_begin,
             int32_t panel_end, const ProductOut* out) {
    while (should_unpack(*w, row_end - row_begin)) {
        const int32_t last = smaller(row_begin + most_unpacked_rows, row_end);
        run_unpacked(*w, *a, row_begin, last, panel_begin, panel_end, *out);
        row_begin = last;
    }
    run_product<Avx2Product>(*w, *a, row_begin, row_end, panel_begin, panel_end, *out);
}

}  // namespace
}  // namespace headway

#include "product_rows_avx2.h"
#include "product_rows_f32.h"
