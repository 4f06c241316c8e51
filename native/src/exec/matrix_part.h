// Parts of matrices and of rows made ready for them: a range that begins at a panel, or at a tile, is one itself.
#pragma once

#include <algorithm>

#include "matrix.h"

namespace headway {

// Rows [first_panel * 16, + num_rows) of a matrix.
inline MatrixView matrix_part(const MatrixView& whole, int32_t first_panel, int32_t num_rows) {
    MatrixView part = whole;
    part.num_rows = num_rows;
    part.num_panels = (num_rows + panel_lanes - 1) / panel_lanes;
    part.data = whole.data + first_panel * whole.panel_bytes;
    return part;
}

// Rows [first, + num_rows). `first` begins a tile; the rows before it fill whole tiles, or are of other Activations that lie
// end to end in the same memory.
inline Activations activations_part(const Activations& whole, int64_t first, int32_t num_rows) {
    Activations part = whole;
    const int64_t k = static_cast<int64_t>(whole.num_groups) * group_cols;
    part.num_rows = num_rows;
    if (whole.q != nullptr) {
        part.q = whole.q + first * k;
        part.scales = whole.scales + first * whole.num_groups;
        part.sums = whole.sums + first * whole.num_groups * 2;
    }
    if (whole.bf16 != nullptr) part.bf16 = whole.bf16 + first * k;
    if (whole.f32 != nullptr) part.f32 = whole.f32 + first * k;
    return part;
}

}  // namespace headway
