// Products in plain C++: the reference for what the others compute, and what machines without AVX2 run. Codes and
// activations are multiplied as float32, in which the sums of a group are exact integers (at most 32 * 255 * 127 < 2^24).
#pragma once

#include <stdint.h>

#include "product_tiles.h"

namespace headway {
namespace {

constexpr int32_t row_tile = 8;
constexpr bool multiplies_bf16 = false;
constexpr int32_t y_ld = 2 * panel_lanes;

// Infinity where one is not finite.
float largest_magnitude(const RowGroup& x) {
    float largest = 0.0f;
    for (float value : x.values) {
        const float magnitude = __builtin_fabsf(value);
        if (!(magnitude < __builtin_inff())) return __builtin_inff();
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// Nearest even for |x| < 2^22: adding 1.5 * 2^23 leaves no place for a fraction.
int32_t nearest(float x) { return static_cast<int32_t>(x + 12582912.0f - 12582912.0f); }

// Codes of a group by one of its scales, and the sum of the squares of what is lost, in 256ths of a code.
struct Quantised {
    int32_t codes[group_cols];
    int32_t error;
};

Quantised quantised(const int32_t (&fine)[group_cols]) {
    Quantised made;
    made.error = 0;
    for (int32_t i = 0; i < group_cols; ++i) {
        made.codes[i] = (fine[i] + 128) >> 8;
        const int32_t lost = fine[i] - made.codes[i] * 256;
        made.error += lost * lost;
    }
    return made;
}

void store_group(const Quantised& made, float scale, int32_t group, int32_t r, const Tile& tile) {
    int8_t* q = tile.q + (int64_t{group} * 8 * tile.rows + r) * 4;
    int32_t sums[2] = {0, 0};
    for (int32_t i = 0; i < group_cols; ++i) {
        q[i / 4 * tile.rows * 4 + i % 4] = static_cast<int8_t>(made.codes[i]);
        sums[i / 16] += made.codes[i];
    }
    tile.scales[int64_t{group} * tile.rows + r] = scale;
    int32_t* both = tile.sums + int64_t{group} * 2 * tile.rows + r;
    both[0] = sums[0] + sums[1];
    both[tile.rows] = sums[1];
}

void quantise_group(const RowGroup& x, int32_t group, int32_t r, const Tile& tile) {
    const float largest = largest_magnitude(x);
    if (!has_codes(largest)) return store_group({}, scale_without_codes(largest), group, r, tile);
    const float inverse = fine_largest / largest;
    int32_t fine[group_cols], second_fine[group_cols];
    for (int32_t i = 0; i < group_cols; ++i) {
        fine[i] = nearest(x.values[i] * inverse);
        second_fine[i] = fine[i] - ((fine[i] * second_share + (1 << 14)) >> 15);
    }
    const Quantised first = quantised(fine), second = quantised(second_fine);
    const bool takes_second =
        static_cast<float>(second.error) * second_weight < static_cast<float>(first.error) * first_weight;
    store_group(takes_second ? second : first, largest / (takes_second ? second_largest : first_largest), group, r, tile);
}

void quantise_rows(const float* x, int64_t ld, int32_t row_begin, int32_t row_end, const Activations* a) {
    RowGroup loaded;
    for (int32_t row = row_begin; row < row_end; ++row) {
        const Tile tile = tile_at(*a, row / row_tile * row_tile, row_tile);
        for (int32_t group = 0; group < a->num_groups; ++group) {
            load_group(x + row * ld, group, a->num_cols, loaded);
            quantise_group(loaded, group, row % row_tile, tile);
        }
    }
}

// Code - offset of `cols` columns from the first of a group on: [cols][16].
void unpack_codes(const MatrixView& w, const uint8_t* codes, int32_t first, int32_t cols, float* unpacked) {
    const bool is_q8 = w.form == Form::q8;
    const int32_t offset = is_q8 ? 128 : w.has_min ? 0 : 8;
    for (int32_t k = first; k < first + cols; ++k) {
        const uint8_t* at = codes + (is_q8 ? k : k % 16) / 4 * 64 + k % 4;
        const int shift = !is_q8 && k >= 16 ? 4 : 0;
        const int mask = is_q8 ? 255 : 15;
        for (int32_t lane = 0; lane < panel_lanes; ++lane) {
            *unpacked++ = static_cast<float>((at[lane * 4] >> shift & mask) - offset);
        }
    }
}

// The part of one group: `cols` columns from `first` of a group of 32 on, whose scale is scales [16].
void add_group(const MatrixView& w, const Tile& tile, int32_t group, int32_t first, const float* unpacked,
               const float* scales, const float* mins, float* y) {
    for (int32_t r = 0; r < tile.rows; ++r) {
        const int8_t* q = tile.q + (int64_t{group} * 8 + first / 4) * tile.rows * 4 + r * 4;
        const float a_scale = tile.scales[int64_t{group} * tile.rows + r];
        float dots[panel_lanes] = {};
        for (int32_t k = 0; k < w.group; ++k) {
            const auto factor = static_cast<float>(q[k / 4 * tile.rows * 4 + k % 4]);
            for (int32_t lane = 0; lane < panel_lanes; ++lane) dots[lane] += factor * unpacked[k * panel_lanes + lane];
        }
        for (int32_t lane = 0; lane < panel_lanes; ++lane) {
            float& sum = y[r * y_ld + lane];
            sum = multiply_add(dots[lane], scales[lane] * a_scale, sum);
        }
        if (mins == nullptr) continue;
        const float scaled_sum = a_scale * static_cast<float>(tile.sums[int64_t{group} * 2 * tile.rows + r]);
        for (int32_t lane = 0; lane < panel_lanes; ++lane) {
            float& sum = y[r * y_ld + lane];
            sum = multiply_add(mins[lane], scaled_sum, sum);
        }
    }
}

void multiply_quantised(const MatrixView& w, const uint8_t* panel, const Tile& tile, float* y) {
    float unpacked[group_cols * panel_lanes], scales[panel_lanes], mins[panel_lanes];
    for (int32_t group = 0; group < w.num_groups; ++group) {
        for (int32_t first = 0; first < group_cols; first += w.group) {
            unpack_codes(w, panel + group * group_bytes(w), first, w.group, unpacked);
            const int64_t index = (int64_t{group} * group_cols + first) / w.group * panel_lanes;
            for (int32_t lane = 0; lane < panel_lanes; ++lane) {
                scales[lane] = scale_at(w, panel + w.scales_offset, index + lane);
                if (w.has_min) mins[lane] = scale_at(w, panel + w.mins_offset, index + lane);
            }
            add_group(w, tile, group, first, unpacked, scales, w.has_min ? mins : nullptr, y);
        }
    }
}

void multiply_bf16(const MatrixView& w, const uint8_t* panel, const Tile& tile, float* y) {
    const auto* pairs = reinterpret_cast<const uint16_t*>(panel);
    float unpacked[panel_lanes];
    for (int32_t k = 0; k < w.num_groups * group_cols; ++k) {
        for (int32_t lane = 0; lane < panel_lanes; ++lane) {
            unpacked[lane] = float_of_bf16(pairs[(k / 2 * panel_lanes + lane) * 2 + k % 2]);
        }
        for (int32_t r = 0; r < tile.rows; ++r) {
            const float factor = tile.f32[int64_t{k} * tile.rows + r];
            for (int32_t lane = 0; lane < panel_lanes; ++lane) {
                float& sum = y[r * y_ld + lane];
                sum = multiply_add(factor, unpacked[lane], sum);
            }
        }
    }
}

void multiply_f32(const MatrixView& w, const uint8_t* panel, const Tile& tile, float* y) {
    const auto* weights = reinterpret_cast<const float*>(panel);
    for (int32_t k = 0; k < w.num_groups * group_cols; ++k) {
        for (int32_t r = 0; r < tile.rows; ++r) {
            const float factor = tile.f32[int64_t{k} * tile.rows + r];
            for (int32_t lane = 0; lane < panel_lanes; ++lane) {
                float& sum = y[r * y_ld + lane];
                sum = multiply_add(factor, weights[k * panel_lanes + lane], sum);
            }
        }
    }
}

struct PlainProduct {
    static constexpr int32_t row_tile = headway::row_tile;
    static constexpr int32_t most_panels = 2;
    static constexpr int32_t bf16_bytes = 4;

    static int32_t panels_at_once(int32_t) { return 1; }

    static void multiply(const MatrixView& w, int32_t panel, int32_t num_panels, const Tile& tile, float* y) {
        for (int32_t i = 0; i < tile.rows * most_panels * panel_lanes; ++i) y[i] = 0.0f;
        for (int32_t p = 0; p < num_panels; ++p) {
            const uint8_t* data = panel_at(w, panel + p);
            if (w.form == Form::bf16) {
                multiply_bf16(w, data, tile, y + p * panel_lanes);
            } else if (w.form == Form::f32) {
                multiply_f32(w, data, tile, y + p * panel_lanes);
            } else {
                multiply_quantised(w, data, tile, y + p * panel_lanes);
            }
        }
    }
};

void product(const MatrixView* w, const Activations* a, int32_t row_begin, int32_t row_end, int32_t panel_begin,
             int32_t panel_end, const ProductOut* out) {
    run_product<PlainProduct>(*w, *a, row_begin, row_end, panel_begin, panel_end, *out);
}

}  // namespace
}  // namespace headway

#include "product_rows_f32.h"
