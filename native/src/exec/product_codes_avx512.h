// Products of 8-bit and 4-bit codes with AVX-512 VNNI.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_parts_avx512.h"

namespace headway {
namespace {

// What a group of activations is multiplied with besides its codes, of the rows of a part.
template <int rows>
struct GroupRows {
    const float* scales;
    const int32_t* sums;          // of q
    alignas(32) float scaled[8];  // scale * float(sum); filled where there are mins
};

template <int rows>
constexpr __mmask8 row_mask = static_cast<__mmask8>((1 << rows) - 1);

// The rows lie side by side: one multiplication for all of them.
template <int rows, bool has_min>
HEADWAY_INLINE GroupRows<rows> group_rows(const float* scales, const int32_t* sums) {
    GroupRows<rows> group;
    group.scales = scales;
    group.sums = sums;
    if constexpr (has_min) {
        const __m256 floats = _mm256_cvtepi32_ps(_mm256_maskz_loadu_epi32(row_mask<rows>, sums));
        _mm256_store_ps(group.scaled, _mm256_mul_ps(_mm256_maskz_loadu_ps(row_mask<rows>, scales), floats));
    }
    return group;
}

// Integer sums that begin with -offset * (sum of q), offset = 1 << shift; with 0 where there is none.
template <int rows, int panels, int shift, bool has_offset>
HEADWAY_INLINE void begin_sums(const GroupRows<rows>& group, __m512i (&sums)[rows][panels]) {
    for (int row = 0; row < rows; ++row) {
        __m512i first = _mm512_setzero_si512();
        if (has_offset) first = _mm512_sub_epi32(first, _mm512_slli_epi32(four_bytes(group.sums + row), shift));
        for (int p = 0; p < panels; ++p) sums[row][p] = first;
    }
}

// Four columns of codes.
template <int rows, int panels>
HEADWAY_INLINE void add_columns(const __m512i (&codes)[panels], const int8_t* q, __m512i (&sums)[rows][panels]) {
    for (int row = 0; row < rows; ++row) {
        const __m512i four = four_bytes(q + row * 4);
        for (int p = 0; p < panels; ++p) sums[row][p] = _mm512_dpbusd_epi32(sums[row][p], codes[p], four);
    }
}

// What a group of integer sums adds to the totals.
template <int rows, int panels, bool has_min>
HEADWAY_INLINE void end_group(const MatrixView& w, const uint8_t* panel, int64_t index, const GroupRows<rows>& group,
                              const __m512i (&sums)[rows][panels], __m512 (&totals)[rows][panels]) {
    const uint8_t* scales_at = panel + w.scales_offset;
    __m512 scales[panels];
    for (int p = 0; p < panels; ++p) scales[p] = load_scales(w, scales_at + p * w.panel_bytes, index, panels);
#pragma GCC unroll 12
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) {
            totals[row][p] = accumulate(sums[row][p], scales[p], group.scales[row], totals[row][p]);
        }
    }
    if constexpr (has_min) {
        const uint8_t* mins_at = panel + w.mins_offset;
        __m512 mins[panels];
        for (int p = 0; p < panels; ++p) mins[p] = load_scales(w, mins_at + p * w.panel_bytes, index, panels);
#pragma GCC unroll 12
        for (int row = 0; row < rows; ++row) {
            const __m512 scaled = _mm512_set1_ps(group.scaled[row]);
#pragma GCC unroll 4
            for (int p = 0; p < panels; ++p) {
                totals[row][p] = _mm512_fmadd_ps(mins[p], scaled, totals[row][p]);
            }
        }
    }
}

template <int rows, int panels, bool has_min>
HEADWAY_ALONE void multiply_q4(const Part& part) {
    const MatrixView& w = *part.w;
    const int64_t tile_rows = part.tile->rows, stride = tile_rows * 4;
    const int64_t next = panels * w.panel_bytes;
    const __m512i mask = _mm512_set1_epi8(15);
    const int8_t* q = part.tile->q + part.r * 4;
    const float* a_scales = part.tile->scales + part.r;
    const int32_t* a_sums = part.tile->sums + part.r;
    __m512 totals[rows][panels];
    clear_totals(totals);
    for (int32_t group = 0; group < w.num_groups; ++group) {
        const uint8_t* codes = part.panel + int64_t{group} * 256;
        __m512i sums[rows][panels];
        const GroupRows<rows> group_of_a = group_rows<rows, has_min>(a_scales, a_sums);
        begin_sums<rows, panels, 3, !has_min>(group_of_a, sums);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            __m512i low[panels], high[panels];
            for (int p = 0; p < panels; ++p) {
                const __m512i packed = load_bytes64(codes + p * w.panel_bytes + i * 64, next);
                low[p] = _mm512_and_si512(packed, mask);
                high[p] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), mask);
            }
            add_columns<rows, panels>(low, q + i * stride, sums);
            add_columns<rows, panels>(high, q + (4 + i) * stride, sums);
        }
        end_group<rows, panels, has_min>(w, part.panel, int64_t{group} * panel_lanes, group_of_a, sums, totals);
        q += 8 * stride;
        a_scales += tile_rows;
        a_sums += 2 * tile_rows;
    }
    store_part<rows, panels>(totals, part.y);
}

// Columns [4 * first, 4 * last) of a group of 8-bit codes.
template <int rows, int panels, int first, int last>
HEADWAY_INLINE void add_bytes(const uint8_t* codes, int64_t panel_bytes, const int8_t* q, int64_t stride,
                              __m512i (&sums)[rows][panels]) {
#pragma GCC unroll 8
    for (int i = first; i < last; ++i) {
        __m512i loaded[panels];
        for (int p = 0; p < panels; ++p) loaded[p] = load_bytes64(codes + p * panel_bytes + i * 64, panels * panel_bytes);
        add_columns<rows, panels>(loaded, q + i * stride, sums);
    }
}

template <int rows, int panels, bool has_min>
HEADWAY_ALONE void multiply_q8(const Part& part) {
    const MatrixView& w = *part.w;
    const int64_t tile_rows = part.tile->rows, stride = tile_rows * 4;
    const int8_t* q = part.tile->q + part.r * 4;
    const float* a_scales = part.tile->scales + part.r;
    const int32_t* a_sums = part.tile->sums + part.r;
    __m512 totals[rows][panels];
    clear_totals(totals);
    for (int32_t group = 0; group < w.num_groups; ++group) {
        __m512i sums[rows][panels];
        const GroupRows<rows> group_of_a = group_rows<rows, has_min>(a_scales, a_sums);
        begin_sums<rows, panels, 7, true>(group_of_a, sums);
        add_bytes<rows, panels, 0, 8>(part.panel + int64_t{group} * 512, w.panel_bytes, q, stride, sums);
        end_group<rows, panels, has_min>(w, part.panel, int64_t{group} * panel_lanes, group_of_a, sums, totals);
        q += 8 * stride;
        a_scales += tile_rows;
        a_sums += 2 * tile_rows;
    }
    store_part<rows, panels>(totals, part.y);
}

// The same for groups of 16.
template <int rows, int panels, bool has_min>
HEADWAY_ALONE void multiply_q8_of_16(const Part& part) {
    const MatrixView& w = *part.w;
    const int64_t tile_rows = part.tile->rows, stride = tile_rows * 4;
    __m512 totals[rows][panels];
    clear_totals(totals);
    for (int32_t group = 0; group < w.num_groups; ++group) {
        const int8_t* q = part.tile->q + group * 8 * stride + part.r * 4;
        const float* a_scales = part.tile->scales + group * tile_rows + part.r;
        const int32_t* a_sums = part.tile->sums + group * 2 * tile_rows + part.r;
        alignas(32) int32_t first_sums[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(first_sums),
                           _mm256_sub_epi32(_mm256_maskz_loadu_epi32(row_mask<rows>, a_sums),
                                            _mm256_maskz_loadu_epi32(row_mask<rows>, a_sums + tile_rows)));
        const uint8_t* codes = part.panel + int64_t{group} * 512;
        const int64_t index = int64_t{group} * 2 * panel_lanes;
        __m512i sums[rows][panels];
        const GroupRows<rows> first_half = group_rows<rows, has_min>(a_scales, first_sums);
        begin_sums<rows, panels, 7, true>(first_half, sums);
        add_bytes<rows, panels, 0, 4>(codes, w.panel_bytes, q, stride, sums);
        end_group<rows, panels, has_min>(w, part.panel, index, first_half, sums, totals);
        const GroupRows<rows> second_half = group_rows<rows, has_min>(a_scales, a_sums + tile_rows);
        begin_sums<rows, panels, 7, true>(second_half, sums);
        add_bytes<rows, panels, 4, 8>(codes, w.panel_bytes, q, stride, sums);
        end_group<rows, panels, has_min>(w, part.panel, index + panel_lanes, second_half, sums, totals);
    }
    store_part<rows, panels>(totals, part.y);
}

}  // namespace
}  // namespace headway
