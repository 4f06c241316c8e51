// A weight matrix as it is computed with, and the rows that it is multiplied by. Plain structs: the files of every
// instruction set include this, so nothing here has a body.
//
// y[r, n] = sum over k of x[r, k] * w[n, k]        x: rows (tokens), w: [num_rows, num_cols] as the checkpoint has it
//
// w lies in panels of 16 of its rows (16 lanes of the result). k is padded with zeros to groups of 32.
//
//   panel p of bf16   [k32 / 2][16 lanes][2] uint16: two neighbouring k of one lane lie together
//   panel p of f32    [k32][16 lanes] float
//   panel p of q8     [groups][8][16 lanes][4] uint8: value + 128 of k = 4 * i + j      then scales, then mins
//   panel p of q4     [groups][4][16 lanes][4] uint8: low half k = 4 * i + j, high half k = 16 + 4 * i + j
//                                                                                       then scales, then mins
//   scales            [groups][32 / group][16 lanes] float16, or float32 where wide_scales
//   mins              the same shape and type, only where has_min
//
//   w[n, k] = scale * (q - offset) + min      offset: 128 for q8; for q4 0 where has_min, else 8
//
// The sum of one (r, n), whatever the number of rows, threads or tiles; every kernel of one instruction set does this:
//   q8, q4   for each group (of 16 or 32) in ascending order:
//              dot = sum over the group of q * a, an exact integer, less offset * (sum of a in the group)
//              y = fma(float(dot), scale * a_scale, y)         then, where has_min,
//              y = fma(min, a_scale * float(sum of a in the group), y)
//   bf16     y = fma(x, w, y), k ascending; or, where the kernels multiply bfloat16, pairs of k ascending (vdpbf16ps)
//   f32      y = fma(x, w, y), k ascending: on kernels that take bf16 matrices with float32 rows
//   y starts at 0. fma is two roundings (multiply, add) in plain C++ on machines without a fused one.
#pragma once

#include <stdint.h>

namespace headway {

constexpr int32_t panel_lanes = 16;
constexpr int32_t group_cols = 32;  // of the activations, always
constexpr int32_t max_row_tile = 16;

enum class Form : int32_t { bf16 = 0, q8 = 1, q4 = 2, f32 = 3 };

struct MatrixView {
    Form form;
    int32_t group;       // columns that share a scale: 32, or 16 (q8 only, from Q6_K)
    bool has_min;
    bool wide_scales;    // float32 scales and mins
    int32_t num_rows;    // n
    int32_t num_cols;    // k
    int32_t num_panels;  // ceil(num_rows / 16); lanes past num_rows hold zeros
    int32_t num_groups;  // ceil(num_cols / 32)
    int64_t panel_bytes;    // a multiple of 64
    int64_t scales_offset;  // from the start of a panel, a multiple of 64
    int64_t mins_offset;
    const uint8_t* data;    // [num_panels][panel_bytes], 64-byte aligned
};

// Rows of activations, ready for a product. Rows are taken in tiles of `row_tile` (ExecKernels::row_tile); the last tile
// of all may have fewer and is that narrow in memory too: R below is the number of rows of the tile.
// Tile t starts at t * row_tile * k32 elements of q, f32 or bf16, t * row_tile * num_groups of scales and twice that of
// sums.
//
// A group of 32 is quantised in 256ths of a code, all of which fit 16 bits, and keeps the better one of two scales:
//
//   fine = nearest even of a * (256 * 127 / largest |a|)            scale = largest |a| / 127
//   fine - (fine * 516 + 2^14 >> 15), as 516 / 2^15 is 2 / 127      scale = largest |a| / 125
//
//   q = (fine + 128) >> 8                   lost = sum of (fine - 256 * q)^2, an exact integer
//
// The second where float(its lost) * 127^2 < float(the first's) * 125^2. A group whose largest |a| is not finite has a NaN
// scale, one under 2^-110 counts as zeros.
struct Activations {
    int32_t num_rows;
    int32_t num_cols;
    int32_t num_groups;  // ceil(num_cols / 32)
    // for q8 and q4 matrices: of the two scales of a group the one that loses less
    int8_t* q;       // [tiles][k32 / 4][R][4]
    float* scales;   // [tiles][num_groups][R]
    int32_t* sums;   // [tiles][num_groups][2][R], of q: of the whole group, then of its second half alone
    // for bf16 and f32 matrices: bfloat16 where the kernels multiply it (ExecKernels::multiplies_bf16), else float32
    uint16_t* bf16;  // [tiles][k32 / 2][R][2]
    float* f32;      // [tiles][k32][R]
};

enum class Gate : int32_t { none = 0, silu = 1, gelu = 2, gelu_tanh = 3, relu = 4 };

// Where a product goes. With a gate, panels 2i and 2i + 1 hold lanes of the gate's and of the up matrix, and
// out[r, 16 * i + lane] = gate(y[r, 32 * i + lane]) * y[r, 32 * i + 16 + lane], for the lanes of up that there are: where n
// columns come out and n % 16 > 0, the matrix has n / 16 * 32 + 16 + n % 16 rows (those from gate's end to up's: zeros).
struct ProductOut {
    float* out;          // [rows, ld]
    int64_t ld;
    const float* bias;   // [num_rows] or null, added first
    const float* base;   // [rows, ld_base] or null: out = base + scale * (y + bias), rounded after each; may be out itself
    int64_t ld_base;
    float scale;         // 1 without one
    Gate gate;
};

}  // namespace headway
