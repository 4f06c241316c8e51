// What all products with AVX-512 share: how much they take at a time, and loading weights.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_tiles.h"

namespace headway {
namespace {

constexpr int32_t row_tile = 12;
constexpr int32_t most_code_rows = 6;
constexpr int32_t most_panels = 4;
constexpr int32_t y_ld = most_panels * panel_lanes;
#if defined(HEADWAY_AVX512_BF16)
constexpr bool multiplies_bf16 = true;
#else
constexpr bool multiplies_bf16 = false;
#endif

constexpr int32_t panels_beside(int32_t rows) { return rows <= 3 ? 4 : 2; }

// Inlined into its caller, a loop would have to share the registers with it.
#define HEADWAY_ALONE __attribute__((noinline))

// Weights come from memory once a step: while some panels are multiplied, the same place of those after them is asked for.
// Past the last panel nothing happens.
HEADWAY_INLINE void ask_for(const uint8_t* at) { __builtin_prefetch(at, 0, 2); }

HEADWAY_INLINE __m512i load_bytes64(const uint8_t* from, int64_t next) {
    ask_for(from + next);
    return _mm512_loadu_si512(from);
}

HEADWAY_INLINE __m512i four_bytes(const void* from) {
    int32_t bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    return _mm512_set1_epi32(bytes);
}

// 16 scales or mins of one of `panels` panels: `index` counts from the first of the panel.
HEADWAY_INLINE __m512 load_scales(const MatrixView& w, const uint8_t* scales, int64_t index, int32_t panels) {
    const uint8_t* from = scales + index * (w.wide_scales ? 4 : 2);
    ask_for(from + panels * w.panel_bytes);
    if (w.wide_scales) return _mm512_loadu_ps(from);
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

HEADWAY_INLINE __m512 accumulate(__m512i dot, __m512 scales, float a_scale, __m512 y) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scales, _mm512_set1_ps(a_scale)), y);
}

// Panels from the first on, of `rows` rows of a tile from `r` on.
struct Part {
    const MatrixView* w;
    const uint8_t* panel;
    const Tile* tile;
    int32_t r;
    float* y;
};

// The loops over totals are unrolled by pragma: GCC would leave the larger arrays in memory, and clear and store them there
// once a group.
template <int rows, int panels>
HEADWAY_INLINE void clear_totals(__m512 (&totals)[rows][panels]) {
#pragma GCC unroll 12
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) totals[row][p] = _mm512_setzero_ps();
    }
}

template <int rows, int panels>
HEADWAY_INLINE void store_part(const __m512 (&totals)[rows][panels], float* y) {
#pragma GCC unroll 12
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) _mm512_storeu_ps(y + row * y_ld + p * panel_lanes, totals[row][p]);
    }
}

}  // namespace
}  // namespace headway
