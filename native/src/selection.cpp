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

constexpr int num_levels = 3;  // of the 30 bits that tell floats in 0..1 apart

int32_t bucket_of(float weight, int shift) {
    return static_cast<int32_t>(std::bit_cast<uint32_t>(weight) >> shift) & (num_buckets - 1);
}

struct Histogram {
    double mass[num_buckets];
    int32_t count[num_buckets];

    Histogram(const float* weights, int32_t n, int shift) : mass(), count() {
        for (int32_t i = 0; i < n; ++i) {
            const int32_t bucket = bucket_of(weights[i], shift);
            mass[bucket] += weights[i];
            count[bucket] += 1;
        }
    }
};

struct Crossing {
    int32_t bucket;      // -1: the sum of all does not reach the target
    double mass_above;   // of the buckets over it
};

// The highest bucket in which the sum from above reaches the target.
Crossing find_crossing(const Histogram& histogram, double mass_above, double target) {
    for (int32_t bucket = num_buckets - 1; bucket >= 0; --bucket) {
        if (histogram.count[bucket] == 0) continue;
        const double mass = mass_above + histogram.mass[bucket];
        if (mass >= target) return {bucket, mass_above};
        mass_above = mass;
    }
    return {-1, mass_above};
}

// The weights of one bucket, in their order. `to` may be `weights`.
int32_t copy_bucket(const float* weights, int32_t n, int shift, int32_t bucket, float* to) {
    int32_t copied = 0;
    for (int32_t i = 0; i < n; ++i) {
        to[copied] = weights[i];
        copied += bucket_of(weights[i], shift) == bucket ? 1 : 0;
    }
    return copied;
}

// The sum does not reach the target, be it that sums in another order rounded below it: down to the smallest, all stay.
Threshold everything(const float* weights, int32_t n, double mass) {
    const float smallest = *std::min_element(weights, weights + n);
    return {smallest, static_cast<int32_t>(std::count(weights, weights + n, smallest)), mass};
}

}  // namespace

Scratch::Scratch(int32_t num_values)
    : logits(num_values),
      weights(num_values),
      sums((num_values + sum_block - 1) / sum_block),
      ids(num_values),
      values(num_values),
      bucket(num_values),
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

Threshold find_mass_threshold(int32_t n, double target, Scratch& scratch) {
    const float* weights = scratch.values.data();
    double mass_above = 0.0;
    for (int level = num_levels - 1; level >= 0; --level) {
        const int shift = level * level_bits;
        const Crossing crossing = find_crossing(Histogram(weights, n, shift), mass_above, target);
        if (crossing.bucket < 0) return everything(weights, n, crossing.mass_above);
        mass_above = crossing.mass_above;
        n = copy_bucket(weights, n, shift, crossing.bucket, scratch.bucket.data());
        weights = scratch.bucket.data();
    }
    // All that is left is equal.
    const double weight = weights[0];
    const double wanted = std::ceil((target - mass_above) / weight);
    const int32_t num_ties = wanted < n ? (wanted > 1.0 ? static_cast<int32_t>(wanted) : 1) : n;
    return {weights[0], num_ties, mass_above + num_ties * weight};
}

}  // namespace headway
