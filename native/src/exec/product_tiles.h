// What the products of every instruction set share: where a tile of activations lies, the loops over tiles and panels, the
// last step of a product, and reading one row of a matrix. Included by product_*.h, so all of it is in an unnamed namespace.
#pragma once

#include <stdint.h>

#include "float16.h"
#include "matrix.h"

#define HEADWAY_INLINE inline __attribute__((always_inline))

namespace headway {
namespace {

// One tile of Activations: at most row_tile rows.
struct Tile {
    int32_t first_row;
    int32_t rows;
    int8_t* q;
    float* scales;
    int32_t* sums;
    uint16_t* bf16;
    float* f32;
};

HEADWAY_INLINE int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

// The tile that begins at first_row, a multiple of row_tile.
HEADWAY_INLINE Tile tile_at(const Activations& a, int32_t first_row, int32_t row_tile) {
    const int64_t values = int64_t{first_row} * a.num_groups * group_cols;
    const int64_t groups = int64_t{first_row} * a.num_groups;
    Tile tile{};
    tile.first_row = first_row;
    tile.rows = smaller(row_tile, a.num_rows - first_row);
    if (a.q != nullptr) {
        tile.q = a.q + values;
        tile.scales = a.scales + groups;
        tile.sums = a.sums + groups * 2;
    }
    if (a.bf16 != nullptr) tile.bf16 = a.bf16 + values;
    if (a.f32 != nullptr) tile.f32 = a.f32 + values;
    return tile;
}

HEADWAY_INLINE int64_t group_bytes(const MatrixView& w) {
    return w.form == Form::f32 ? 2048 : w.form == Form::bf16 ? 1024 : w.form == Form::q8 ? 512 : 256;
}

// Whether it is multiplied by rows as they are, and not by codes.
HEADWAY_INLINE bool is_float_form(const MatrixView& w) { return w.form == Form::bf16 || w.form == Form::f32; }

HEADWAY_INLINE const uint8_t* panel_at(const MatrixView& w, int32_t panel) {
    return w.data + int64_t{panel} * w.panel_bytes;
}

// Defined by the layer kernels of the same file: out = kind(gate) * up, element by element; out may be gate.
void gate(Gate kind, const float* gate, const float* up, float* out, int64_t n);

// Whether to fuse is the instruction set's: where there is no fused multiply-add, this rounds twice.
HEADWAY_INLINE float multiply_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF) || defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// Scale or min `index` ([groups][16 lanes]) of a panel.
HEADWAY_INLINE float scale_at(const MatrixView& w, const uint8_t* scales, int64_t index) {
    if (w.wide_scales) return reinterpret_cast<const float*>(scales)[index];
    return float_of_f16(reinterpret_cast<const uint16_t*>(scales)[index]);
}

// A whole panel, by the vectors of the simd_*.h included before: that base and out may be the same keeps the compiler from
// making them.
HEADWAY_INLINE void finish_whole_panel(const float* y, const float* base, float scale, float* out) {
#pragma GCC unroll 4
    for (int32_t lane = 0; lane < panel_lanes; lane += width) {
        const Floats scaled = mul(splat(scale), load(y + lane));
        store(out + lane, base != nullptr ? add(load(base + lane), scaled) : scaled);
    }
}

// `count` values of a panel.
HEADWAY_INLINE void finish_lanes(const float* y, int32_t count, const float* base, float scale, float* out) {
    if (base != nullptr) {
        for (int32_t lane = 0; lane < count; ++lane) out[lane] = base[lane] + scale * y[lane];
    } else {
        for (int32_t lane = 0; lane < count; ++lane) out[lane] = scale * y[lane];
    }
}

HEADWAY_INLINE void finish_panel(const float* y, int32_t count, const float* base, float scale, float* out) {
    if (count >= panel_lanes) {
        finish_whole_panel(y, base, scale, out);
    } else if (count > 0) {
        finish_lanes(y, count, base, scale, out);
    }
}

// One row of `num_panels` panels, y [num_panels][16], goes to its place; y is changed.
HEADWAY_INLINE void finish_row(float* y, int64_t row, int32_t panel, int32_t num_panels, const MatrixView& w,
                               const ProductOut& out) {
    const int32_t first_lane = panel * panel_lanes;
    const int32_t count = smaller(num_panels * panel_lanes, w.num_rows - first_lane);
    if (out.bias != nullptr) {
        for (int32_t lane = 0; lane < count; ++lane) y[lane] += out.bias[first_lane + lane];
    }
    const bool is_gated = out.gate != Gate::none;
    const int32_t step = is_gated ? 2 * panel_lanes : panel_lanes;
    const int32_t column = is_gated ? first_lane / 2 : first_lane;
    const float* base = out.base == nullptr ? nullptr : out.base + row * out.ld_base + column;
    float* to = out.out + row * out.ld + column;
    for (int32_t lane = 0; lane < count; lane += step) {
        float* values = y + lane;
        if (is_gated) gate(out.gate, values, values + panel_lanes, values, panel_lanes);
        finish_panel(values, count - lane - (step - panel_lanes), base, out.scale, to);
        to += panel_lanes;
        if (base != nullptr) base += panel_lanes;
    }
}

// The same of whole panels without a bias, which most are: no lane of a row is asked about.
HEADWAY_INLINE void finish_whole_row(float* y, int32_t num_panels, const ProductOut& out, const float* base, float* to) {
    const int32_t step = out.gate != Gate::none ? 2 : 1;
    for (int32_t panel = 0; panel < num_panels; panel += step) {
        float* values = y + panel * panel_lanes;
        if (step == 2) gate(out.gate, values, values + panel_lanes, values, panel_lanes);
        finish_whole_panel(values, base, out.scale, to);
        to += panel_lanes;
        if (base != nullptr) base += panel_lanes;
    }
}

// All rows of a tile, y [rows][ld].
HEADWAY_INLINE void finish_tile(float* y, int32_t ld, int64_t first_row, int32_t rows, int32_t panel, int32_t num_panels,
                                const MatrixView& w, const ProductOut& out) {
    if (out.bias != nullptr || (panel + num_panels) * panel_lanes > w.num_rows) {
        for (int32_t r = 0; r < rows; ++r) finish_row(y + r * ld, first_row + r, panel, num_panels, w, out);
        return;
    }
    const int64_t column = out.gate != Gate::none ? panel * panel_lanes / 2 : panel * panel_lanes;
    const float* base = out.base == nullptr ? nullptr : out.base + first_row * out.ld_base + column;
    float* to = out.out + first_row * out.ld + column;
    for (int32_t r = 0; r < rows; ++r) {
        finish_whole_row(y + r * ld, num_panels, out, base, to);
        to += out.ld;
        if (base != nullptr) base += out.ld_base;
    }
}

// A block of activations and some panels stay in a core's second-level cache while all of their products are made. Of
// panels one would do, but several next to each other write whole stretches of a row of the result.
constexpr int64_t block_bytes = 192 * 1024;
constexpr int64_t panel_block_bytes = 64 * 1024;

// A whole product. Kernel::multiply(w, panel, num_panels, tile, y) makes y [tile.rows][most_panels * 16] of num_panels <=
// most_panels panels; Kernel::panels_at_once(rows) (at most most_panels, even where it is over 1) is how many it likes.
template <typename Kernel>
HEADWAY_INLINE void run_product(const MatrixView& w, const Activations& a, int32_t row_begin, int32_t row_end,
                                int32_t panel_begin, int32_t panel_end, const ProductOut& out) {
    constexpr int32_t tile_rows = Kernel::row_tile;
    constexpr int32_t ld = Kernel::most_panels * panel_lanes;
    alignas(64) float y[tile_rows * ld];
    const int64_t row_bytes = int64_t{w.num_groups} * group_cols * (is_float_form(w) ? Kernel::bf16_bytes : 1);
    const int32_t block_rows = static_cast<int32_t>(block_bytes / (row_bytes * tile_rows) + 1) * tile_rows;
    const int32_t liked = Kernel::panels_at_once(smaller(tile_rows, row_end - row_begin));
    const int32_t step = out.gate != Gate::none && liked == 1 ? 2 : liked;
    const int32_t block_panels = static_cast<int32_t>(panel_block_bytes / (w.panel_bytes * step) + 1) * step;
    for (int32_t block = row_begin; block < row_end; block += block_rows) {
        const int32_t block_end = smaller(block + block_rows, row_end);
        for (int32_t first = panel_begin; first < panel_end; first += block_panels) {
            const int32_t last = smaller(first + block_panels, panel_end);
            for (int32_t row = block; row < block_end; row += tile_rows) {
                const Tile tile = tile_at(a, row, tile_rows);
                for (int32_t panel = first; panel < last; panel += step) {
                    const int32_t num_panels = smaller(step, last - panel);
                    Kernel::multiply(w, panel, num_panels, tile, y);
                    finish_tile(y, ld, row, tile.rows, panel, num_panels, w, out);
                }
            }
        }
    }
}

// How activations are quantised: matrix.h says it.
constexpr float first_largest = 127.0f;  // the code of a group's largest, by its first scale and by its second
constexpr float second_largest = 125.0f;
constexpr float fine_largest = 256.0f * first_largest;
constexpr int16_t second_share = 516;  // of 2^15: so much smaller are the second's fine codes
constexpr float first_weight = second_largest * second_largest;  // of a sum of squares
constexpr float second_weight = first_largest * first_largest;

HEADWAY_INLINE bool has_codes(float largest) { return largest >= 0x1p-110f && largest < __builtin_inff(); }

// Of a group that is not: bits of infinity and NaN count as larger than all numbers.
HEADWAY_INLINE float scale_without_codes(float largest) { return largest < 0x1p-110f ? 0.0f : __builtin_nanf(""); }

// 32 activations of one row, as they are: zeros from num_cols on.
struct RowGroup {
    float values[group_cols];
};

HEADWAY_INLINE void load_group(const float* x, int32_t group, int32_t num_cols, RowGroup& loaded) {
    const int32_t first = group * group_cols;
    for (int32_t i = 0; i < group_cols; ++i) loaded.values[i] = first + i < num_cols ? x[first + i] : 0.0f;
}

HEADWAY_INLINE float weight_at(const MatrixView& w, const uint8_t* panel, int32_t lane, int32_t k) {
    const int32_t inner = k % group_cols;
    const uint8_t* codes = panel + k / group_cols * group_bytes(w);
    if (w.form == Form::bf16) {
        return float_of_bf16(reinterpret_cast<const uint16_t*>(codes)[(inner / 2 * panel_lanes + lane) * 2 + inner % 2]);
    }
    if (w.form == Form::f32) return reinterpret_cast<const float*>(codes)[inner * panel_lanes + lane];
    int32_t code = 0;
    if (w.form == Form::q8) {
        code = codes[(inner / 4 * panel_lanes + lane) * 4 + inner % 4] - 128;
    } else {
        code = (codes[(inner % 16 / 4 * panel_lanes + lane) * 4 + inner % 4] >> (inner / 16 * 4)) & 15;
        if (!w.has_min) code -= 8;
    }
    const int64_t index = int64_t{k / w.group} * panel_lanes + lane;
    const float value = scale_at(w, panel + w.scales_offset, index) * static_cast<float>(code);
    return w.has_min ? value + scale_at(w, panel + w.mins_offset, index) : value;
}

void read_row(const MatrixView* w, int32_t row, float scale, float* out) {
    const uint8_t* panel = panel_at(*w, row / panel_lanes);
    for (int32_t k = 0; k < w->num_cols; ++k) out[k] = weight_at(*w, panel, row % panel_lanes, k) * scale;
}

}  // namespace
}  // namespace headway
