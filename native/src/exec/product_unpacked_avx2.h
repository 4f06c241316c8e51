// Products of many rows with AVX2: the weights of a panel are unpacked once, into what is multiplied, and all rows go by
// them. product_nibbles_avx2.h, product_bytes_avx2.h and product_floats_avx2.h have the sums, which are the same.
#pragma once

#include "product_avx2.h"
#include "product_floats_avx2.h"

namespace headway {
namespace {

// [groups][4][2 halves][low, high][32]
HEADWAY_INLINE void unpack_nibbles(const uint8_t* panel, int32_t num_groups, uint8_t* unpacked) {
    const __m256i mask = _mm256_set1_epi8(15);
    auto* to = reinterpret_cast<__m256i*>(unpacked);
    for (int32_t i = 0; i < num_groups * 8; ++i) {
        const __m256i packed = load_bytes32(panel + i * 32);
        _mm256_store_si256(to + 2 * i, _mm256_and_si256(packed, mask));
        _mm256_store_si256(to + 2 * i + 1, _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask));
    }
}

// [groups][8][2 halves][codes without their offset, magnitudes][32].
HEADWAY_INLINE void unpack_bytes(const uint8_t* panel, int32_t num_groups, uint8_t* unpacked) {
    auto* to = reinterpret_cast<__m256i*>(unpacked);
    for (int32_t i = 0; i < num_groups * 16; ++i) {
        const __m256i codes = without_offset(load_bytes32(panel + i * 32));
        _mm256_store_si256(to + 2 * i, codes);
        _mm256_store_si256(to + 2 * i + 1, _mm256_abs_epi8(codes));
    }
}

// From so many rows on, codes are unpacked before they are multiplied, up to so many bytes of a panel. 8-bit codes gain less.
constexpr int32_t least_nibble_rows = 24;
constexpr int32_t least_byte_rows = 60;
constexpr int32_t most_unpacked_rows = 96;
constexpr int32_t most_unpacked_bytes = 64 * 1024;
static_assert(most_unpacked_rows % row_tile == 0);

// Unpacked they are twice as many bytes. AVX-VNNI multiplies 8-bit codes as they lie.
bool should_unpack(const MatrixView& w, int32_t num_rows) {
    if (is_float_form(w)) return num_rows >= least_float_rows;
    if (num_rows < (w.form == Form::q4 ? least_nibble_rows : least_byte_rows)) return false;
    const bool is_packed = w.form == Form::q4 || (w.form == Form::q8 && ByteSums::offset == 0);
    return is_packed && w.num_groups * group_bytes(w) * 2 <= most_unpacked_bytes;
}

void unpack_panel(const MatrixView& w, const uint8_t* panel, uint8_t* unpacked) {
    if (w.form == Form::q4) {
        unpack_nibbles(panel, w.num_groups, unpacked);
    } else {
        unpack_bytes(panel, w.num_groups, unpacked);
    }
}

// Part `part` of `num_parts` of the panel behind this one: it comes from memory while this one is multiplied. Asked for all
// at once, most of it would have to be waited for.
HEADWAY_INLINE void ask_for_next(const MatrixView& w, const uint8_t* panel, int32_t part, int32_t num_parts) {
    const int64_t lines = w.panel_bytes / 64;
    const int64_t first = lines * part / num_parts, last = lines * (part + 1) / num_parts;
    ask_for(panel + first * 64, w.panel_bytes, static_cast<int32_t>((last - first) * 64));
}

// One panel of codes times the rows [row_begin, row_end), to y.
void multiply_panel_of_codes(const MatrixView& w, const uint8_t* panel, const Activations& a, int32_t row_begin,
                             int32_t row_end, float* y) {
    alignas(64) uint8_t codes[most_unpacked_bytes];
    const int32_t num_tiles = (row_end - row_begin + row_tile - 1) / row_tile;
    unpack_panel(w, panel, codes);
    for (int32_t tile = 0; tile < num_tiles; ++tile) {
        ask_for_next(w, panel, tile, num_tiles);
        const int32_t row = tile * row_tile;
        multiply_tile(w, panel, codes, tile_at(a, row_begin + row, row_tile), y + row * y_ld);
    }
}

// The same of bf16 and float32.
void multiply_panel_of_floats(const MatrixView& w, const uint8_t* panel, const Activations& a, int32_t row_begin,
                              int32_t row_end, float* y) {
    alignas(64) float weights[float_block_groups * group_cols * panel_lanes];
    const int32_t num_tiles = (row_end - row_begin + row_tile - 1) / row_tile;
    const int32_t num_blocks = (w.num_groups + float_block_groups - 1) / float_block_groups;
    for (int32_t row = 0; row < row_end - row_begin; ++row) __builtin_memset(y + row * y_ld, 0, panel_lanes * sizeof(float));
    for (int32_t block = 0; block < num_blocks; ++block) {
        const int32_t group = block * float_block_groups;
        const int32_t count = smaller(float_block_groups, w.num_groups - group) * group_cols;
        unpack_floats(w, panel, group, count, weights);
        for (int32_t tile = 0; tile < num_tiles; ++tile) {
            ask_for_next(w, panel, block * num_tiles + tile, num_blocks * num_tiles);
            const int32_t row = tile * row_tile;
            add_columns_of_tile(weights, tile_at(a, row_begin + row, row_tile), group * group_cols, count, y + row * y_ld);
        }
    }
}

// A product whose panels go by one after the other, each with all rows.
void run_unpacked(const MatrixView& w, const Activations& a, int32_t row_begin, int32_t row_end, int32_t panel_begin,
                  int32_t panel_end, const ProductOut& out) {
    alignas(64) float y[most_unpacked_rows * y_ld];
    const auto multiply_panel = is_float_form(w) ? multiply_panel_of_floats : multiply_panel_of_codes;
    for (int32_t panel = panel_begin; panel < panel_end; panel += most_panels) {
        const int32_t num_panels = smaller(most_panels, panel_end - panel);
        for (int32_t p = 0; p < num_panels; ++p) {
            multiply_panel(w, panel_at(w, panel + p), a, row_begin, row_end, y + p * panel_lanes);
        }
        finish_tile(y, y_ld, row_begin, row_end - row_begin, panel, num_panels, w, out);
    }
}

}  // namespace
}  // namespace headway
