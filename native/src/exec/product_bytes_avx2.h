// Products of 8-bit codes with AVX2, and with AVX-VNNI where the file is compiled for it.
#pragma once

#include "product_parts_avx2.h"

namespace headway {
namespace {

// Sums of 8-bit codes. Without VNNI the codes lose their offset first, and |code| <= 128 is multiplied by q with the sign
// of the code: 2 * 128 * 127 = 32,512 fits into 16 bits, where 2 * 255 * 127 does not.
struct ByteSums {
    __m256i sum = _mm256_setzero_si256();
#if defined(__AVXVNNI__)
    static constexpr int32_t offset = 128;
    HEADWAY_INLINE void add(__m256i codes, __m256i, __m256i q) {
        sum = _mm256_dpbusd_avx_epi32(sum, codes, q);
        HEADWAY_KEEP(sum);
    }
#else
    static constexpr int32_t offset = 0;
    HEADWAY_INLINE void add(__m256i codes, __m256i magnitudes, __m256i q) {
        const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(q, codes));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        HEADWAY_KEEP(sum);
    }
#endif
};

HEADWAY_INLINE __m256i without_offset(__m256i codes) {
    return ByteSums::offset == 0 ? _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) : codes;
}

template <bool is_unpacked>
HEADWAY_INLINE void load_bytes(const uint8_t* group_codes, int i, __m256i (&codes)[2], __m256i (&magnitudes)[2]) {
    for (int half = 0; half < 2; ++half) {
        if (is_unpacked) {
            codes[half] = load_bytes32(group_codes + i * 128 + half * 64);
            magnitudes[half] = load_bytes32(group_codes + i * 128 + half * 64 + 32);
        } else {
            codes[half] = without_offset(load_bytes32(group_codes + i * 64 + half * 32));
            magnitudes[half] = _mm256_abs_epi8(codes[half]);
        }
    }
}

// Columns [4 * first, 4 * last) of a group.
template <bool is_unpacked, int rows, int first, int last>
HEADWAY_INLINE void add_bytes(const uint8_t* group_codes, const int8_t* q, int64_t stride, ByteSums (&sums)[rows][2]) {
#pragma GCC unroll 8
    for (int i = first; i < last; ++i) {
        __m256i codes[2], magnitudes[2];
        load_bytes<is_unpacked>(group_codes, i, codes, magnitudes);
        for (int row = 0; row < rows; ++row) {
            const __m256i four = four_bytes(q + i * stride + row * 4);
            for (int half = 0; half < 2; ++half) sums[row][half].add(codes[half], magnitudes[half], four);
        }
    }
}

// The sum of codes without their offset.
HEADWAY_INLINE __m256i exact_dot(const ByteSums& sums, int32_t sum) {
    if (ByteSums::offset == 0) return sums.sum;
    return _mm256_sub_epi32(sums.sum, _mm256_slli_epi32(_mm256_set1_epi32(sum), 7));
}

// Where the codes of a group are: of the panel or of those that were unpacked.
template <bool is_unpacked>
HEADWAY_INLINE const uint8_t* group_of_bytes(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked,
                                             int32_t group) {
    if (is_unpacked) return unpacked + int64_t{group} * 1024;
    const uint8_t* codes = panel + int64_t{group} * 512;
    ask_for(codes, w.panel_bytes, 512);
    return codes;
}

template <int rows, bool has_min, bool wide, bool is_unpacked>
HEADWAY_ALONE void multiply_q8(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile,
                               int32_t r, float* y) {
    GroupOfRows a(tile, r);
    __m256 totals[rows][2];
    zero_rows<rows>(totals);
    for (int32_t group = 0; group < w.num_groups; ++group, a.advance()) {
        ByteSums sums[rows][2];
        add_bytes<is_unpacked, rows, 0, 8>(group_of_bytes<is_unpacked>(w, panel, unpacked, group), a.q, a.stride, sums);
        const auto dot = [&](int row, int half) HEADWAY_ALWAYS { return exact_dot(sums[row][half], a.a_sums[row]); };
        add_group<rows, has_min, wide>(w, panel, group, a, dot, totals);
    }
    store_rows<rows>(totals, y);
}

// Half a group of 16 columns, whose scales are float32; `sums` are those of the half.
template <bool is_unpacked, int rows, int half_group>
HEADWAY_INLINE void add_half_group(const uint8_t* codes, const float* scales, const int8_t* q, int64_t stride,
                                   const int32_t (&a_sums)[rows], const float* a_scales, __m256 (&totals)[rows][2]) {
    ByteSums sums[rows][2];
    add_bytes<is_unpacked, rows, half_group * 4, half_group * 4 + 4>(codes, q, stride, sums);
    for (int half = 0; half < 2; ++half) {
        const __m256 scale = _mm256_loadu_ps(scales + half_group * panel_lanes + half * half_lanes);
        for (int row = 0; row < rows; ++row) {
            __m256& total = totals[row][half];
            total = accumulate(exact_dot(sums[row][half], a_sums[row]), scale, a_scales[row], total);
        }
    }
}

template <int rows, bool is_unpacked>
HEADWAY_ALONE void multiply_q8_of_16(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile,
                                     int32_t r, float* y) {
    const int64_t stride = int64_t{tile.rows} * 4;
    __m256 totals[rows][2];
    zero_rows<rows>(totals);
    for (int32_t group = 0; group < w.num_groups; ++group) {
        const int8_t* q = tile.q + group * 8 * stride + r * 4;
        const float* a_scales = tile.scales + int64_t{group} * tile.rows + r;
        const int32_t* a_sums = tile.sums + int64_t{group} * 2 * tile.rows + r;
        int32_t first_sums[rows], second_sums[rows];
        for (int row = 0; row < rows; ++row) {
            second_sums[row] = a_sums[tile.rows + row];
            first_sums[row] = a_sums[row] - second_sums[row];
        }
        const uint8_t* codes = group_of_bytes<is_unpacked>(w, panel, unpacked, group);
        const float* scales = reinterpret_cast<const float*>(panel + w.scales_offset) + int64_t{group} * 2 * panel_lanes;
        add_half_group<is_unpacked, rows, 0>(codes, scales, q, stride, first_sums, a_scales, totals);
        add_half_group<is_unpacked, rows, 1>(codes, scales, q, stride, second_sums, a_scales, totals);
    }
    store_rows<rows>(totals, y);
}

}  // namespace
}  // namespace headway
