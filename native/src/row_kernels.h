// The loops over a whole row of logits, one table of functions an instruction set. Every table computes the same bits:
// sums have 16 lanes whatever the width of the registers, and nothing is contracted.
#pragma once

#include <stdint.h>

namespace headway {

// Sums of exponentials are made in blocks of this many values: 16 float lanes inside a block, double across blocks.
constexpr int32_t sum_block = 256;

struct Peak {
    float value;    // the largest; -infinity if all are
    int32_t index;  // the lowest index that has it; -1 if the row has a NaN
};

struct RowKernels {
    // The largest of x[0, n). n >= 1. +infinity is a value like others; a NaN anywhere gives index -1.
    Peak (*find_peak)(const float* x, int32_t n);

    // maxima[b] = largest of x[b * block, (b + 1) * block) for each of ceil(n / block) blocks; block a multiple of 16.
    void (*block_maxima)(const float* x, int32_t n, int32_t block, float* maxima);

    // e[i] = exp((x[i] - shift) * scale), 0 below about exp(-87); returns their sum. shift >= x[i], scale > 0 and finite.
    // The relative error is at most 2e-7 * (1 + |(x[i] - shift) * scale|), as the argument is rounded to float32.
    // sums[b] gets the sum of each sum_block values; e or sums, or both, may be null.
    double (*exponentials)(const float* x, int32_t n, float shift, float scale, float* e, double* sums);

    // Writes first + i for each x[i] >= bound, ascending, and returns how many. ids has room for n.
    int32_t (*collect_at_least)(const float* x, int32_t n, float bound, int32_t first, int32_t* ids);

    // kept[i] = x[i] where bit i % 32 of mask[i / 32] is set, else -infinity.
    void (*copy_masked)(const float* x, const uint32_t* mask, int32_t n, float* kept);
};

extern const RowKernels row_kernels_plain;
extern const RowKernels row_kernels_avx2;
extern const RowKernels row_kernels_avx512;

}  // namespace headway
