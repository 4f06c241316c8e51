// Products of 4-bit codes with AVX2, and with AVX-VNNI where the file is compiled for it.
#pragma once

#include "product_parts_avx2.h"

namespace headway {
namespace {

// Integer sums of `rows` rows times 8 lanes of one group of codes: add() takes the codes of columns 4 * i to 4 * i + 3 (and
// for 4 bits those 16 columns further), dot() gives the sums of codes (with their offset) times q.
#if defined(__AVXVNNI__)
struct NibbleSums {
    __m256i sum = _mm256_setzero_si256();
    HEADWAY_INLINE void add(__m256i low, __m256i high, __m256i low_q, __m256i high_q) {
        sum = _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(sum, low, low_q), high, high_q);
        HEADWAY_KEEP(sum);
    }
    HEADWAY_INLINE __m256i dot() const { return sum; }
};
#else
// 8 * 2 * 15 * 127 = 30,480: sums of 16 bits cannot overflow.
struct NibbleSums {
    __m256i sum = _mm256_setzero_si256();
    HEADWAY_INLINE void add(__m256i low, __m256i high, __m256i low_q, __m256i high_q) {
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(low, low_q));
        HEADWAY_KEEP(sum);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(high, high_q));
        HEADWAY_KEEP(sum);
    }
    HEADWAY_INLINE __m256i dot() const { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};
#endif

// Codes of columns 4 * i to 4 * i + 3 and of those 16 further, of both halves of the lanes.
template <bool is_unpacked>
HEADWAY_INLINE void load_nibbles(const uint8_t* codes, int i, __m256i (&low)[2], __m256i (&high)[2]) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int half = 0; half < 2; ++half) {
        if (is_unpacked) {
            low[half] = load_bytes32(codes + i * 128 + half * 64);
            high[half] = load_bytes32(codes + i * 128 + half * 64 + 32);
        } else {
            const __m256i packed = load_bytes32(codes + i * 64 + half * 32);
            low[half] = _mm256_and_si256(packed, mask);
            high[half] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
        }
    }
}

// A whole group.
template <bool is_unpacked, int rows>
HEADWAY_INLINE void add_nibbles(const uint8_t* codes, const int8_t* q, int64_t stride, NibbleSums (&sums)[rows][2]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        __m256i low[2], high[2];
        load_nibbles<is_unpacked>(codes, i, low, high);
        for (int row = 0; row < rows; ++row) {
            const __m256i low_q = four_bytes(q + i * stride + row * 4);
            const __m256i high_q = four_bytes(q + (4 + i) * stride + row * 4);
            for (int half = 0; half < 2; ++half) sums[row][half].add(low[half], high[half], low_q, high_q);
        }
    }
}

// `unpacked`: the panel's codes, or null where they are taken from the panel.
template <int rows, bool has_min, bool wide, bool is_unpacked>
HEADWAY_ALONE void multiply_q4(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile,
                               int32_t r, float* y) {
    GroupOfRows a(tile, r);
    __m256 totals[rows][2];
    zero_rows<rows>(totals);
    for (int32_t group = 0; group < w.num_groups; ++group, a.advance()) {
        const uint8_t* codes = is_unpacked ? unpacked + int64_t{group} * 512 : panel + int64_t{group} * 256;
        if (!is_unpacked) ask_for(codes, w.panel_bytes, 256);
        NibbleSums sums[rows][2];
        add_nibbles<is_unpacked, rows>(codes, a.q, a.stride, sums);
        const auto dot = [&](int row, int half) HEADWAY_ALWAYS {
            const __m256i codes_dot = sums[row][half].dot();
            return has_min ? codes_dot : _mm256_sub_epi32(codes_dot, _mm256_slli_epi32(_mm256_set1_epi32(a.a_sums[row]), 3));
        };
        add_group<rows, has_min, wide>(w, panel, group, a, dot, totals);
    }
    store_rows<rows>(totals, y);
}

}  // namespace
}  // namespace headway
