// What the products with AVX2 are made of. A panel is two times 8 lanes: the codes of 4 columns lie unpacked in registers, and
// up to 4 rows of the tile go by them.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_tiles.h"

namespace headway {
namespace {

constexpr int32_t row_tile = 12;
constexpr bool multiplies_bf16 = false;
constexpr int32_t half_lanes = 8;
constexpr int32_t most_panels = 4;
constexpr int32_t y_ld = most_panels * panel_lanes;

// GCC would make all products of a group first and add them later, from memory: a sum that is kept is made here and now.
#define HEADWAY_KEEP(value) asm("" : "+x"(value))

// Inlined into its caller, a loop would have to share the registers with it.
#define HEADWAY_ALONE __attribute__((noinline))
#define HEADWAY_ALWAYS __attribute__((always_inline))

HEADWAY_INLINE __m256i load_bytes32(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// The same place of the next panel is asked for while this one is multiplied: few rows wait for memory alone. Past the last
// panel nothing happens.
HEADWAY_INLINE void ask_for(const uint8_t* at, int64_t panel_bytes, int32_t count) {
    for (int32_t i = 0; i < count; i += 64) __builtin_prefetch(at + panel_bytes + i);
}

HEADWAY_INLINE __m256i four_bytes(const int8_t* q) {
    int32_t bytes;
    __builtin_memcpy(&bytes, q, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

// 8 scales or mins: `index` counts from the first of the panel.
template <bool wide>
HEADWAY_INLINE __m256 load_scales(const uint8_t* scales, int64_t index) {
    if (wide) return _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + index);
    const auto* halves = reinterpret_cast<const __m128i*>(reinterpret_cast<const uint16_t*>(scales) + index);
    return _mm256_cvtph_ps(_mm_loadu_si128(halves));
}

HEADWAY_INLINE __m256 accumulate(__m256i dot, __m256 scales, float a_scale, __m256 y) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scales, _mm256_set1_ps(a_scale)), y);
}

// a_scale * float(sum of q) of rows from r on.
template <int rows>
HEADWAY_INLINE void scale_sums(const float* a_scales, const int32_t* sums, float* scaled) {
    if constexpr (rows == 4) {
        const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sums));
        _mm_storeu_ps(scaled, _mm_mul_ps(_mm_loadu_ps(a_scales), _mm_cvtepi32_ps(four)));
    } else {
        for (int i = 0; i < rows; ++i) scaled[i] = a_scales[i] * static_cast<float>(sums[i]);
    }
}

// In a loop: an initialiser becomes `rep stos`, which takes as long as a group.
template <int rows>
HEADWAY_INLINE void zero_rows(__m256 (&totals)[rows][2]) {
    for (int i = 0; i < rows; ++i) {
        for (int half = 0; half < 2; ++half) totals[i][half] = _mm256_setzero_ps();
    }
}

template <int rows>
HEADWAY_INLINE void store_rows(const __m256 (&totals)[rows][2], float* y) {
    for (int i = 0; i < rows; ++i) {
        for (int half = 0; half < 2; ++half) _mm256_storeu_ps(y + i * y_ld + half * half_lanes, totals[i][half]);
    }
}

// Where a product of some rows with one panel stands: the group's codes of the activations, their scales and sums.
struct GroupOfRows {
    const int8_t* q;
    const float* a_scales;
    const int32_t* a_sums;
    int64_t stride;
    int32_t rows;

    HEADWAY_INLINE GroupOfRows(const Tile& tile, int32_t r)
        : q(tile.q + r * 4), a_scales(tile.scales + r), a_sums(tile.sums + r), stride(int64_t{tile.rows} * 4), rows(tile.rows) {}
    HEADWAY_INLINE void advance() {
        q += 8 * stride;
        a_scales += rows;
        a_sums += 2 * rows;
    }
};

// Adds a group to the totals: dot(row, half) gives the integer sums of 8 lanes.
template <int rows, bool has_min, bool wide, typename Dot>
HEADWAY_INLINE void add_group(const MatrixView& w, const uint8_t* panel, int32_t group, const GroupOfRows& a, Dot dot,
                              __m256 (&totals)[rows][2]) {
    float scaled_sums[rows];
    if (has_min) scale_sums<rows>(a.a_scales, a.a_sums, scaled_sums);
    for (int half = 0; half < 2; ++half) {
        const int64_t index = int64_t{group} * panel_lanes + half * half_lanes;
        const __m256 scales = load_scales<wide>(panel + w.scales_offset, index);
        const __m256 mins = has_min ? load_scales<wide>(panel + w.mins_offset, index) : _mm256_setzero_ps();
        for (int row = 0; row < rows; ++row) {
            __m256& total = totals[row][half];
            total = accumulate(dot(row, half), scales, a.a_scales[row], total);
            if (has_min) total = _mm256_fmadd_ps(mins, _mm256_set1_ps(scaled_sums[row]), total);
        }
    }
}

}  // namespace
}  // namespace headway
