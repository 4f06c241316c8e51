// pack_rows where bf16 matrices are multiplied by float32: rows become columns of a tile. Plain C++, for every
// instruction set without bfloat16 products.
#pragma once

#include <stdint.h>

#include "product_tiles.h"

namespace headway {
namespace {

void pack_rows(const float* x, int64_t ld, int32_t row_begin, int32_t row_end, const Activations* a) {
    for (int32_t row = row_begin; row < row_end; ++row) {
        const Tile tile = tile_at(*a, row / row_tile * row_tile, row_tile);
        float* to = tile.f32 + row % row_tile;
        const float* from = x + row * ld;
        for (int32_t k = 0; k < a->num_cols; ++k) to[int64_t{k} * tile.rows] = from[k];
        for (int32_t k = a->num_cols; k < a->num_groups * group_cols; ++k) to[int64_t{k} * tile.rows] = 0.0f;
    }
}

}  // namespace
}  // namespace headway
