// The body of the row_kernels_*.cpp files, compiled once an instruction set with HEADWAY_ROW_KERNELS naming the table.
// Everything is in an unnamed namespace and no C++ library header is included: see CMakeLists.txt.

#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "row_kernels.h"

namespace headway {
namespace {

#if defined(__AVX512F__)
constexpr int width = 16;
#elif defined(__AVX2__)
constexpr int width = 8;
#else
constexpr int width = 4;
#endif
constexpr int lanes = 16;
constexpr int parts = lanes / width;

typedef float Floats __attribute__((vector_size(width * 4)));
typedef float Unaligned __attribute__((vector_size(width * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(width * 4)));

constexpr float infinity = __builtin_inff();

// 16 lanes: a group of consecutive values of a row.
struct Group {
    Floats part[parts];
};

#define HEADWAY_INLINE inline __attribute__((always_inline))

HEADWAY_INLINE Floats splat(float value) { return value - Floats{}; }

HEADWAY_INLINE Group fill(float value) {
    Group group;
    for (int p = 0; p < parts; ++p) group.part[p] = splat(value);
    return group;
}

HEADWAY_INLINE Group load(const float* x) {
    Group group;
    for (int p = 0; p < parts; ++p) group.part[p] = *reinterpret_cast<const Unaligned*>(x + p * width);
    return group;
}

HEADWAY_INLINE void store(float* x, const Group& group) {
    for (int p = 0; p < parts; ++p) *reinterpret_cast<Unaligned*>(x + p * width) = group.part[p];
}

// The last n < 16 values of a row, the other lanes filled up. Out of line: it is rare, and would crowd the loops.
__attribute__((noinline)) void pad_tail(const float* x, int32_t n, float padding, float* values) {
    for (int i = 0; i < lanes; ++i) values[i] = i < n ? x[i] : padding;
}

HEADWAY_INLINE Floats select(Ints mask, Floats yes, Floats no) {
    return reinterpret_cast<Floats>((mask & reinterpret_cast<Ints>(yes)) | (~mask & reinterpret_cast<Ints>(no)));
}

// a where a > b, else b: what maxps computes.
HEADWAY_INLINE Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
    return reinterpret_cast<Floats>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<Floats>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#elif defined(__SSE2__)
    return reinterpret_cast<Floats>(_mm_max_ps(reinterpret_cast<__m128>(a), reinterpret_cast<__m128>(b)));
#else
    return select(a > b, a, b);
#endif
}

HEADWAY_INLINE void raise_to(Group& group, const Group& other) {
    for (int p = 0; p < parts; ++p) group.part[p] = larger(other.part[p], group.part[p]);
}

HEADWAY_INLINE float largest_lane(const Group& group) {
    float values[lanes];
    store(values, group);
    for (int half = lanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) values[i] = values[i] > values[i + half] ? values[i] : values[i + half];
    }
    return values[0];
}

HEADWAY_INLINE double sum_lanes(const Group& group) {
    float values[lanes];
    store(values, group);
    double sums[lanes];
    for (int i = 0; i < lanes; ++i) sums[i] = values[i];
#pragma GCC unroll 4
    for (int half = lanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
}

// Bit i is set where lane i is not zero (all ones).
HEADWAY_INLINE uint32_t lane_bits(const Ints (&mask)[parts]) {
    uint32_t bits = 0;
    for (int p = 0; p < parts; ++p) {
#if defined(__AVX512F__)
        bits |= _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask[p]));
#elif defined(__AVX2__)
        bits |= static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask[p]))) << (p * width);
#elif defined(__SSE2__)
        bits |= static_cast<uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(mask[p]))) << (p * width);
#else
        for (int i = 0; i < width; ++i) bits |= (mask[p][i] != 0 ? 1u : 0u) << (p * width + i);
#endif
    }
    return bits;
}

// x[start, stop) in groups, the last padded.
template <typename Visit>
HEADWAY_INLINE void for_each_group(const float* x, int32_t start, int32_t stop, float padding, Visit visit) {
    int32_t i = start;
    for (; i + lanes <= stop; i += lanes) visit(i, load(x + i), lanes);
    if (i < stop) {
        float values[lanes];
        pad_tail(x + i, stop - i, padding, values);
        visit(i, load(values), stop - i);
    }
}

constexpr int32_t peak_block = 4096;

Peak find_peak(const float* x, int32_t n) {
    float best = -infinity;
    int32_t best_start = 0;
    Ints is_nan[parts] = {};
    for (int32_t start = 0; start < n; start += peak_block) {
        const int32_t stop = n - start < peak_block ? n : start + peak_block;
        Group high = fill(-infinity);
        for_each_group(x, start, stop, -infinity, [&](int32_t, const Group& group, int32_t) {
            raise_to(high, group);
            for (int p = 0; p < parts; ++p) is_nan[p] |= group.part[p] != group.part[p];
        });
        const float block_best = largest_lane(high);
        if (block_best > best) {
            best = block_best;
            best_start = start;
        }
    }
    if (lane_bits(is_nan) != 0) return {best, -1};
    int32_t index = best_start;
    while (x[index] != best) ++index;
    return {best, index};
}

void block_maxima(const float* x, int32_t n, int32_t block, float* maxima) {
    for (int32_t start = 0; start < n; start += block) {
        const int32_t stop = n - start < block ? n : start + block;
        Group high = fill(-infinity);
        for_each_group(x, start, stop, -infinity, [&](int32_t, const Group& group, int32_t) { raise_to(high, group); });
        *maxima++ = largest_lane(high);
    }
}

// 2^x for x <= 0: a polynomial in x - n, |x - n| <= 1/2 (Cephes' exp2f, in pairs as Estrin has it, which shortens the
// chain of operations that wait for each other), times 2^n. 0 below 2^-125.5; 0 gives exactly 1. What the lanes below
// compute, -infinity among them, is thrown away.
HEADWAY_INLINE Floats exp2_of_negative(Floats x) {
    const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const Floats shifted = x + magic;
    const Floats f = x - (shifted - magic);
    const Floats f2 = f * f;
    const Floats high = splat(1.535336188319500e-4f) * f + splat(1.339887440266574e-3f);
    const Floats middle = splat(9.618437357674640e-3f) * f + splat(5.550332471162809e-2f);
    const Floats low = splat(2.402264791363012e-1f) * f + splat(6.931472028550421e-1f);
    const Floats y = ((high * f2 + middle) * f2 + low) * f + splat(1.0f);
    const Floats power = reinterpret_cast<Floats>((reinterpret_cast<Ints>(shifted) + 127) << 23);
    const Ints is_far = x < splat(-125.5f);
    return reinterpret_cast<Floats>(~is_far & reinterpret_cast<Ints>(y * power));
}

double exponentials(const float* x, int32_t n, float shift, float scale, float* e, double* sums) {
    const float rate = scale * 1.44269504088896341f;  // exp(x) = 2^(x log2 e)
    double total = 0.0;
    for (int32_t start = 0; start < n; start += sum_block) {
        const int32_t stop = n - start < sum_block ? n : start + sum_block;
        Group sum = fill(0.0f);
        for_each_group(x, start, stop, -infinity, [&](int32_t i, const Group& group, int32_t count) {
            Group made;
            for (int p = 0; p < parts; ++p) {
                made.part[p] = exp2_of_negative((group.part[p] - splat(shift)) * splat(rate));
                sum.part[p] += made.part[p];
            }
            if (e == nullptr) return;
            if (count == lanes) {
                store(e + i, made);
            } else {
                float values[lanes];
                store(values, made);
                for (int32_t j = 0; j < count; ++j) e[i + j] = values[j];
            }
        });
        const double block_sum = sum_lanes(sum);
        if (sums != nullptr) *sums++ = block_sum;
        total += block_sum;
    }
    return total;
}

int32_t collect_at_least(const float* x, int32_t n, float bound, int32_t first, int32_t* ids) {
    int32_t found = 0;
    for_each_group(x, 0, n, __builtin_nanf(""), [&](int32_t i, const Group& group, int32_t) {
        Ints mask[parts];
        for (int p = 0; p < parts; ++p) mask[p] = group.part[p] >= splat(bound);
        for (uint32_t bits = lane_bits(mask); bits != 0; bits &= bits - 1) {
            ids[found++] = first + i + __builtin_ctz(bits);
        }
    });
    return found;
}

constexpr int32_t bits_a_word = 32;

// All ones in the lanes whose bits, of those from `first` on, are set.
HEADWAY_INLINE Ints lanes_of_bits(uint32_t bits, int first) {
    Ints mask;
#if defined(__AVX512F__)
    mask = reinterpret_cast<Ints>(_mm512_movm_epi32(static_cast<__mmask16>(bits >> first)));
#else
    for (int i = 0; i < width; ++i) mask[i] = 1 << (first + i);
    mask = (mask & (static_cast<int32_t>(bits) - Ints{})) != 0;
#endif
    return mask;
}

void copy_masked(const float* x, const uint32_t* mask, int32_t n, float* kept) {
    int32_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const uint32_t bits = mask[i / bits_a_word] >> (i % bits_a_word) & 0xffffu;
        Group group = load(x + i);
        for (int p = 0; p < parts; ++p) {
            group.part[p] = select(lanes_of_bits(bits, p * width), group.part[p], splat(-infinity));
        }
        store(kept + i, group);
    }
    for (; i < n; ++i) kept[i] = (mask[i / bits_a_word] >> (i % bits_a_word) & 1u) != 0 ? x[i] : -infinity;
}

}  // namespace

extern const RowKernels HEADWAY_ROW_KERNELS;
const RowKernels HEADWAY_ROW_KERNELS = {find_peak, block_maxima, exponentials, collect_at_least, copy_masked};

}  // namespace headway
