// Products with AVX-512 VNNI, and AVX-512 BF16 where the file is compiled for it. A panel's 16 lanes are one register. A
// tile goes by in up to 6 rows times 2 panels, or up to 3 times 4: 12 sums that do not wait for each other. bf16 needs no
// integer sums beside the totals: up to 12 rows times 2 panels.
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

template <int rows, int panels, bool has_min>
HEADWAY_INLINE void multiply_codes(const Part& part) {
    if (part.w->form == Form::q4) return multiply_q4<rows, panels, has_min>(part);
    if (part.w->group == 16) return multiply_q8_of_16<rows, panels, has_min>(part);
    return multiply_q8<rows, panels, has_min>(part);
}

template <int rows, int panels>
void multiply_part(const Part& part) {
    if (part.w->form == Form::bf16) return multiply_bf16<rows, panels>(part);
    if constexpr (rows <= most_code_rows) {
        part.w->has_min ? multiply_codes<rows, panels, true>(part) : multiply_codes<rows, panels, false>(part);
    }
}

// `panels` at a time while there are as many, then one by one.
template <int rows, int panels>
HEADWAY_INLINE void multiply_panels(Part part, int32_t num_panels) {
    while (num_panels > 0) {
        const int32_t taken = num_panels >= panels ? panels : 1;
        taken == panels ? multiply_part<rows, panels>(part) : multiply_part<rows, 1>(part);
        part.panel += taken * part.w->panel_bytes;
        part.y += taken * panel_lanes;
        num_panels -= taken;
    }
}

// For a number of rows that is known only now.
template <int rows = row_tile>
HEADWAY_INLINE void multiply_rows_of_part(int32_t num_rows, const Part& part, int32_t num_panels) {
    if constexpr (rows > 0) {
        if (num_rows == rows) return multiply_panels<rows, panels_beside(rows)>(part, num_panels);
        multiply_rows_of_part<rows - 1>(num_rows, part, num_panels);
    }
}

struct Avx512Product {
    static constexpr int32_t row_tile = headway::row_tile;
    static constexpr int32_t most_panels = headway::most_panels;
    static constexpr int32_t bf16_bytes = multiplies_bf16 ? 2 : 4;

    static int32_t panels_at_once(int32_t rows) { return panels_beside(rows); }

    // A tile of codes goes by in equal parts of at most most_code_rows rows.
    static void multiply(const MatrixView& w, int32_t panel, int32_t num_panels, const Tile& tile, float* y) {
        const int32_t most = w.form == Form::bf16 ? row_tile : most_code_rows;
        for (int32_t r = 0; r < tile.rows;) {
            const int32_t left = tile.rows - r, rows = left > most ? (left + 1) / 2 : left;
            multiply_rows_of_part(rows, {&w, panel_at(w, panel), &tile, r, y + r * y_ld}, num_panels);
            r += rows;
        }
    }
};

void product(const MatrixView* w, const Activations* a, int32_t row_begin, int32_t row_end, int32_t panel_begin,
             int32_t panel_end, const ProductOut* out) {
    run_product<Avx512Product>(*w, *a, row_begin, row_end, panel_begin, panel_end, *out);
}

}  // namespace
}  // namespace headway

#include "product_rows_avx512.h"
#if defined(HEADWAY_AVX512_BF16)
#include "product_rows_bf16.h"
#else
#include "product_rows_f32.h"
#endif
