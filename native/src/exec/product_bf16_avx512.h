// Products of bfloat16: with AVX-512 BF16 where the file is compiled for it, else as float32.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_parts_avx512.h"

namespace headway {
namespace {

#if defined(HEADWAY_AVX512_BF16)
// Pairs of columns: x[k] * w[k] + x[k + 1] * w[k + 1] in one instruction.
template <int rows, int panels>
HEADWAY_ALONE void multiply_bf16(const Part& part) {
    const MatrixView& w = *part.w;
    const int64_t tile_rows = part.tile->rows;
    const uint16_t* x = part.tile->bf16 + part.r * 2;
    const uint8_t* pairs = part.panel;
    __m512 totals[rows][panels];
    clear_totals(totals);
    for (int32_t pair = 0; pair < w.num_groups * (group_cols / 2); ++pair) {
        __m512i loaded[panels];
        for (int p = 0; p < panels; ++p) loaded[p] = load_bytes64(pairs + p * w.panel_bytes, panels * w.panel_bytes);
        for (int row = 0; row < rows; ++row) {
            const __m512i two = four_bytes(x + row * 2);
            for (int p = 0; p < panels; ++p) {
                totals[row][p] = _mm512_dpbf16_ps(totals[row][p], reinterpret_cast<__m512bh>(loaded[p]),
                                                  reinterpret_cast<__m512bh>(two));
            }
        }
        pairs += 64;
        x += 2 * tile_rows;
    }
    store_part<rows, panels>(totals, part.y);
}
#else
// Two bfloat16 numbers of a lane lie in 32 bits: the upper one is a float32 with a zeroed lower half, the lower one after a
// shift.
template <int rows, int panels>
HEADWAY_ALONE void multiply_bf16(const Part& part) {
    const MatrixView& w = *part.w;
    const int64_t tile_rows = part.tile->rows;
    const __m512i mask = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
    const float* x = part.tile->f32 + part.r;
    const uint8_t* pairs = part.panel;
    __m512 totals[rows][panels];
    clear_totals(totals);
    for (int32_t pair = 0; pair < w.num_groups * (group_cols / 2); ++pair) {
        __m512 low[panels], high[panels];
        for (int p = 0; p < panels; ++p) {
            const __m512i both = load_bytes64(pairs + p * w.panel_bytes, panels * w.panel_bytes);
            low[p] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            high[p] = _mm512_castsi512_ps(_mm512_and_si512(both, mask));
        }
        for (int row = 0; row < rows; ++row) {
            for (int p = 0; p < panels; ++p) {
                totals[row][p] = _mm512_fmadd_ps(_mm512_set1_ps(x[row]), low[p], totals[row][p]);
            }
        }
        for (int row = 0; row < rows; ++row) {
            for (int p = 0; p < panels; ++p) {
                totals[row][p] = _mm512_fmadd_ps(_mm512_set1_ps(x[tile_rows + row]), high[p], totals[row][p]);
            }
        }
        pairs += 64;
        x += 2 * tile_rows;
    }
    store_part<rows, panels>(totals, part.y);
}
#endif

// Only where the rows are float32: a plan with such matrices takes no kernels that multiply bfloat16.
template <int rows, int panels>
HEADWAY_ALONE void multiply_f32(const Part& part) {
    const MatrixView& w = *part.w;
    const int64_t tile_rows = part.tile->rows;
    const float* x = part.tile->f32 + part.r;
    const uint8_t* weights = part.panel;
    __m512 totals[rows][panels];
    clear_totals(totals);
    for (int32_t k = 0; k < w.num_groups * group_cols; ++k) {
        __m512 loaded[panels];
        for (int p = 0; p < panels; ++p) {
            loaded[p] = _mm512_castsi512_ps(load_bytes64(weights + p * w.panel_bytes, panels * w.panel_bytes));
        }
        for (int row = 0; row < rows; ++row) {
            for (int p = 0; p < panels; ++p) {
                totals[row][p] = _mm512_fmadd_ps(_mm512_set1_ps(x[row]), loaded[p], totals[row][p]);
            }
        }
        weights += 64;
        x += tile_rows;
    }
    store_part<rows, panels>(totals, part.y);
}

}  // namespace
}  // namespace headway
