// Products with AVX-512 VNNI, and AVX-512 BF16 where the file is compiled for it. A panel's 16 lanes are one register.
// A tile goes by in up to 6 rows times 2 panels, or up to 3 times 4: 12 sums that do not wait for each other. bf16
// needs no integer sums beside the totals: up to 12 rows times 2 panels.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_bf16_avx512.h"
#include "product_codes_avx512.h"

namespace headway {
namespace {

template <int rows, int panels, bool has_min>
HEADWAY_INLINE void multiply_codes(const Part& part) {
    if (part.w->form == Form::q4) return multiply_q4<rows, panels, has_min>(part);
    if (part.w->group == 16) return multiply_q8_of_16<rows, panels, has_min>(part);
    return multiply_q8<rows, panels, has_min>(part);
}

template <int rows, int panels>
void multiply_part(const Part& part) {
    if (part.w->form == Form::bf16) return multiply_bf16<rows, panels>(part);
    if (part.w->form == Form::f32) return multiply_f32<rows, panels>(part);
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
        const int32_t most = is_float_form(w) ? row_tile : most_code_rows;
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
