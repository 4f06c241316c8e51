// Which tokens of a row stay: the k largest values, and the smallest set that has a share of the probability. Neither
// sorts the row.
#pragma once

#include <cstdint>
#include <vector>

#include "row_kernels.h"

namespace headway {

// Working memory for rows of up to num_values, one a thread.
struct Scratch {
    explicit Scratch(int32_t num_values);

    std::vector<float> logits;     // [num_values], a row after biases and penalties
    std::vector<float> weights;    // [num_values], exponentials of a whole row
    std::vector<double> sums;      // [ceil(num_values / sum_block)], of the weights
    std::vector<int32_t> ids;      // [num_values], candidates
    std::vector<float> values;     // [num_values], logits of the candidates, then their weights
    std::vector<float> bucket;     // [num_values], weights between two thresholds
    std::vector<float> maxima;     // [ceil(num_values / 16)], of blocks of a row
    std::vector<float> ordered;    // [ceil(num_values / 16)], the same, partly sorted
    std::vector<uint32_t> counts;  // [num_values], how often a token occurred; all 0 between uses
};

// Puts the ids of the k largest of x[0, n) into scratch.ids (any order; ties by the lower id) and returns min(k, n).
// k >= 1. x has no NaN.
int32_t select_largest(const RowKernels& kernels, const float* x, int32_t n, int32_t k, Scratch& scratch);

// Weights above `weight` stay, and the first `num_ties` of those that equal it; `mass` is the sum of what stays.
struct Threshold {
    float weight;
    int32_t num_ties;
    double mass;
};

// The threshold of the smallest set of scratch.values[0, n) whose sum reaches target: the largest first, ties by the
// lower index, one at least. All stay where the sum of all does not reach it. n >= 1; the values are weights in 0..1,
// one of them over 0.
//
// A radix search over the bits of the weights (of positive floats the order of the bits is the order of the values):
// ten bits a level, one histogram a level finds the bucket where the sum passes the target, and the next level looks
// into that bucket alone.
Threshold find_mass_threshold(int32_t n, double target, Scratch& scratch);

}  // namespace headway
