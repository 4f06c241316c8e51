#include "selection.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace headway {

namespace {

constexpr int level_bits = 10;
constexpr int num_buckets = 1 << level_bits;

// Blocks so small that there are some four for each of k values, which keeps both the sorted maxima and the collected
// candidates few; 16 at least.
int32_t choose_block(int32_t n, int32_t k) {
    int32_t block = 1024;
    while (block > 16 && n / block < 4 * static_cast<int64_t>(k)) block /= 2;
    return block;
}

// All values of blocks whose maximum is at least the k-th largest maximum: the k largest values are among them.
int32_t collect_candidates(const RowKernels& kernels, const float* x, int32_t n, int32_t k, Scratch& scratch) {
    const int32_t block = choose_block(n, k);
    const int32_t num_blocks = (n + block - 1) / block;
    if (num_blocks < k) return kernels.collect_at_least(x, n, -std::numeric_limits<float>::infinity(), 0, scratch.ids.data());
    kernels.block_maxima(x, n, block, scratch.maxima.data());
    std::copy_n(scratch.maxima.begin(), num_blocks, scratch.ordered.begin());
    const auto kth = scratch.ordered.begin() + (k - 1);
    std::nth_element(scratch.ordered.begin(), kth, scratch.ordered.begin() + num_blocks, std::greater<float>());
    const float bound = *kth;
    int32_t found = 0;
    for (int32_t b = 0; b < num_blocks; ++b) {
        if (scratch.maxima[b] < bound) continue;
        const int32_t start = b * block;
        const int32_t length = std::min(block, n - start);
        found += kernels.collect_at_least(x + start, length, bound, start, scratch.ids.data() + found);
    }
    return found;
}

struct Histogram {
    double mass[num_buckets];
    int32_t count[num_buckets];
};

// Those weights whose bits above the level are `prefix`, by their next ten bits.
void fill_histogram(const float* weights, int32_t n, uint32_t prefix, int shift, Histogram& histogram) {
    std::fill_n(histogram.mass, num_buckets, 0.0);
    std::fill_n(histogram.count, num_buckets, 0);
    for (int32_t i = 0; i < n; ++i) {
        const uint32_t key = std::bit_cast<uint32_t>(weights[i]);
        if (key >> (shift + level_bits) != prefix) continue;
        const uint32_t bucket = (key >> shift) & (num_buckets - 1);
        histogram.mass[bucket] += weights[i];
        histogram.count[bucket] += 1;
    }
}

}  // namespace

Scratch::Scratch(int32_t num_values)
    : logits(num_values),
      weights(num_values),
      sums((num_values + sum_block - 1) / sum_block),
      ids(num_values),
      values(num_values),
      maxima((num_values + 15) / 16),
      ordered((num_values + 15) / 16),
      counts(num_values) {}

int32_t select_largest(const RowKernels& kernels, const float* x, int32_t n, int32_t k, Scratch& scratch) {
    k = std::min(k, n);
    const int32_t found = collect_candidates(kernels, x, n, k, scratch);
    if (found > k) {
        const auto is_before = [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
        std::nth_element(scratch.ids.begin(), scratch.ids.begin() + (k - 1), scratch.ids.begin() + found, is_before);
    }
    return k;
}

Threshold find_mass_threshold(const float* weights, int32_t n, double target) {
    Histogram histogram;
    double mass_above = 0.0;
    uint32_t prefix = 0;
    int32_t num_ties = 0;
    for (int shift = 2 * level_bits; shift >= 0; shift -= level_bits) {
        fill_histogram(weights, n, prefix, shift, histogram);
        int32_t lowest = -1;  // the lowest bucket in use, taken where rounding keeps the sum under the target
        int32_t critical = num_buckets - 1;
        double mass_above_lowest = mass_above;
        for (; critical >= 0; --critical) {
            if (histogram.count[critical] == 0) continue;
            if (mass_above + histogram.mass[critical] >= target) break;
            lowest = critical;
            mass_above_lowest = mass_above;
            mass_above += histogram.mass[critical];
        }
        if (critical < 0) {
            if (shift == 2 * level_bits) return {0.0f, n};
            critical = lowest;
            mass_above = mass_above_lowest;
        }
        prefix = prefix << level_bits | static_cast<uint32_t>(critical);
        num_ties = histogram.count[critical];
    }
    const float weight = std::bit_cast<float>(prefix);
    const double wanted = std::ceil((target - mass_above) / weight);
    if (wanted < num_ties) num_ties = wanted > 1.0 ? static_cast<int32_t>(wanted) : 1;
    return {weight, num_ties};
}

}  // namespace headway
