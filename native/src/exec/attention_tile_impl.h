// The inner loops of attention: a few rows times a strip of keys, or of columns of the values. One chain of additions
// for each sum, whatever the rows beside it.
#pragma once

#include "attention_scratch.h"

namespace headway {
namespace {

constexpr int32_t strip = 16;                    // keys, or columns
constexpr int strip_vectors = strip / width;
constexpr int tile_vectors = num_registers == 16 ? (strip_vectors > 2 ? strip_vectors : 2) : 2;
constexpr int tile_strips = tile_vectors / strip_vectors;
constexpr int tile_rows = (num_registers - 4) / tile_vectors < 12 ? (num_registers - 4) / tile_vectors : 12;

typedef int32_t Word __attribute__((may_alias));

// What a step of a chain is: one key or dimension in float32, or two of them in bfloat16, added by dot_pairs.
struct SingleSteps {
    static constexpr int32_t size = 1;
    static HEADWAY_INLINE Floats splat_step(const float* a) { return splat(*a); }
    static HEADWAY_INLINE Floats load_step(const float* b) { return load(b); }
    static HEADWAY_INLINE Floats add_step(Floats a, Floats b, Floats sum) { return fma(a, b, sum); }
};

struct PairSteps {
    static constexpr int32_t size = 2;
    static HEADWAY_INLINE Floats splat_step(const float* a) {
        return floats_of(splat_int(*reinterpret_cast<const Word*>(a)));
    }
    static HEADWAY_INLINE Floats load_step(const float* b) { return floats_of(load_ints(b)); }
    static HEADWAY_INLINE Floats add_step(Floats a, Floats b, Floats sum) {
        return dot_pairs(sum, bits_of(a), bits_of(b));
    }
};

// A matrix in memory that a tile reads from or writes to.
struct Source {
    const float* data;
    int64_t ld;
};
struct Target {
    float* data;
    int64_t ld;
    bool continues;  // the chains go on from what is there
};

// to[r][v] += sum over steps of a[r][step] * b[step][v], ascending.
template <typename Steps, int rows, int vectors>
__attribute__((noinline)) void multiply_tile(Source a, Source b, int32_t steps, Target to) {
    Floats sums[rows][vectors];
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            sums[r][v] = to.continues ? load(to.data + r * to.ld + v * width) : splat(0.0f);
        }
    }
    for (int32_t step = 0; step < steps; ++step) {
        Floats columns[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) columns[v] = Steps::load_step(b.data + v * width);
        b.data += b.ld;
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
            const Floats factor = Steps::splat_step(a.data + r * a.ld + step);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sums[r][v] = Steps::add_step(factor, columns[v], sums[r][v]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) store(to.data + r * to.ld + v * width, sums[r][v]);
    }
}

// The tile for a number of rows that is known only now.
template <typename Steps, int most_rows = tile_rows>
HEADWAY_INLINE void multiply_rows(int32_t rows, Source a, Source b, int32_t steps, Target to) {
    if constexpr (most_rows > 0) {
        if (rows == most_rows) return multiply_tile<Steps, most_rows, tile_vectors>(a, b, steps, to);
        return multiply_rows<Steps, most_rows - 1>(rows, a, b, steps, to);
    }
}

}  // namespace
}  // namespace headway
