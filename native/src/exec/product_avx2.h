// Products with AVX2, FMA and F16C, and with AVX-VNNI where the file is compiled for it. A panel is
// two times 8 lanes: the codes of 4 columns lie unpacked in registers, and up to 4 rows of the tile go by them.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "product_tiles.h"

namespace headway {
namespace {

constexpr int32_t row_tile = 12;
constexpr bool multiplies_bf16 = false;
constexpr int32_t half_lanes = 8;
constexpr int32_t most_panels = 4;
constexpr int32_t y_ld = most_panels * panel_lanes;

// GCC would make all products of a group first and add them later, from memory: a sum that is kept is made here and now.
#define HEADWAY_KEEP(value) asm("" : "+x"(value))

// Inlined into its caller, a loop would have to share the registers with it.
#define HEADWAY_ALONE __attribute__((noinline))

HEADWAY_INLINE __m256i load_bytes32(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// The same place of the next panel is asked for while this one is multiplied: few rows wait for memory alone. Past the last
// panel nothing happens.
HEADWAY_INLINE void ask_for(const uint8_t* at, int64_t panel_bytes, int32_t count) {
    for (int32_t i = 0; i < count; i += 64) __builtin_prefetch(at + panel_bytes + i);
}

HEADWAY_INLINE __m256i four_bytes(const int8_t* q) {
    int32_t bytes;
    __builtin_memcpy(&bytes, q, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

// 8 scales or mins: `index` counts from the first of the panel.
template <bool wide>
HEADWAY_INLINE __m256 load_scales(const uint8_t* scales, int64_t index) {
    if (wide) return _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + index);
    const auto* halves = reinterpret_cast<const __m128i*>(reinterpret_cast<const uint16_t*>(scales) + index);
    return _mm256_cvtph_ps(_mm_loadu_si128(halves));
}

HEADWAY_INLINE __m256 accumulate(__m256i dot, __m256 scales, float a_scale, __m256 y) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scales, _mm256_set1_ps(a_scale)), y);
}

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

// a_scale * float(sum of q) of rows from r on.
template <int rows>
HEADWAY_INLINE void scale_sums(const float* a_scales, const int32_t* sums, float* scaled) {
    if constexpr (rows == 4) {
        const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sums));
        _mm_storeu_ps(scaled, _mm_mul_ps(_mm_loadu_ps(a_scales), _mm_cvtepi32_ps(four)));
    } else {
        for (int i = 0; i < rows; ++i) scaled[i] = a_scales[i] * static_cast<float>(sums[i]);
    }
}

// In a loop: an initialiser becomes `rep stos`, which takes as long as a group.
template <int rows>
HEADWAY_INLINE void zero_rows(__m256 (&totals)[rows][2]) {
    for (int i = 0; i < rows; ++i) {
        for (int half = 0; half < 2; ++half) totals[i][half] = _mm256_setzero_ps();
    }
}

template <int rows>
HEADWAY_INLINE void store_rows(const __m256 (&totals)[rows][2], float* y) {
    for (int i = 0; i < rows; ++i) {
        for (int half = 0; half < 2; ++half) _mm256_storeu_ps(y + i * y_ld + half * half_lanes, totals[i][half]);
    }
}

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

// `unpacked`: the panel's codes, or null where they are taken from the panel.
template <int rows, bool has_min, bool wide, bool is_unpacked>
HEADWAY_ALONE void multiply_q4(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile,
                               int32_t r, float* y) {
    const int64_t stride = int64_t{tile.rows} * 4;
    const int8_t* q = tile.q + r * 4;
    const float* a_scales = tile.scales + r;
    const int32_t* a_sums = tile.sums + r;
    __m256 totals[rows][2];
    zero_rows<rows>(totals);
    for (int32_t group = 0; group < w.num_groups; ++group) {
        const uint8_t* codes = is_unpacked ? unpacked + int64_t{group} * 512 : panel + int64_t{group} * 256;
        if (!is_unpacked) ask_for(codes, w.panel_bytes, 256);
        NibbleSums sums[rows][2];
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
        float scaled_sums[rows];
        if (has_min) scale_sums<rows>(a_scales, a_sums, scaled_sums);
        for (int half = 0; half < 2; ++half) {
            const int64_t index = int64_t{group} * panel_lanes + half * half_lanes;
            const __m256 scales = load_scales<wide>(panel + w.scales_offset, index);
            const __m256 mins = has_min ? load_scales<wide>(panel + w.mins_offset, index) : _mm256_setzero_ps();
            for (int row = 0; row < rows; ++row) {
                __m256& total = totals[row][half];
                __m256i dot = sums[row][half].dot();
                if (!has_min) dot = _mm256_sub_epi32(dot, _mm256_slli_epi32(_mm256_set1_epi32(a_sums[row]), 3));
                total = accumulate(dot, scales, a_scales[row], total);
                if (has_min) total = _mm256_fmadd_ps(mins, _mm256_set1_ps(scaled_sums[row]), total);
            }
        }
        q += 8 * stride;
        a_scales += tile.rows;
        a_sums += 2 * tile.rows;
    }
    store_rows<rows>(totals, y);
}

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
    const int64_t stride = int64_t{tile.rows} * 4;
    const int8_t* q = tile.q + r * 4;
    const float* a_scales = tile.scales + r;
    const int32_t* a_sums = tile.sums + r;
    __m256 totals[rows][2];
    zero_rows<rows>(totals);
    for (int32_t group = 0; group < w.num_groups; ++group) {
        ByteSums sums[rows][2];
        add_bytes<is_unpacked, rows, 0, 8>(group_of_bytes<is_unpacked>(w, panel, unpacked, group), q, stride, sums);
        float scaled_sums[rows];
        if (has_min) scale_sums<rows>(a_scales, a_sums, scaled_sums);
        for (int half = 0; half < 2; ++half) {
            const int64_t index = int64_t{group} * panel_lanes + half * half_lanes;
            const __m256 scales = load_scales<wide>(panel + w.scales_offset, index);
            const __m256 mins = has_min ? load_scales<wide>(panel + w.mins_offset, index) : _mm256_setzero_ps();
            for (int row = 0; row < rows; ++row) {
                __m256& total = totals[row][half];
                total = accumulate(exact_dot(sums[row][half], a_sums[row]), scales, a_scales[row], total);
                if (has_min) total = _mm256_fmadd_ps(mins, _mm256_set1_ps(scaled_sums[row]), total);
            }
        }
        q += 8 * stride;
        a_scales += tile.rows;
        a_sums += 2 * tile.rows;
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

// Two bfloat16 numbers of a lane lie in 32 bits: the upper one is a float32 with a zeroed lower half, the lower one after a
// shift.
template <int rows>
HEADWAY_ALONE void multiply_bf16(const MatrixView& w, const uint8_t* panel, const Tile& tile, int32_t r, float* y) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    const float* x = tile.f32 + r;
    __m256 totals[rows][2];
    zero_rows<rows>(totals);
    for (int32_t pair = 0; pair < w.num_groups * (group_cols / 2); ++pair) {
        ask_for(panel, w.panel_bytes, 64);
        __m256 low[2], high[2];
        for (int half = 0; half < 2; ++half) {
            const __m256i both = load_bytes32(panel + half * 32);
            low[half] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
            high[half] = _mm256_castsi256_ps(_mm256_and_si256(both, mask));
        }
        for (int row = 0; row < rows; ++row) {
            for (int half = 0; half < 2; ++half) {
                totals[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(x[row]), low[half], totals[row][half]);
            }
        }
        for (int row = 0; row < rows; ++row) {
            for (int half = 0; half < 2; ++half) {
                totals[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(x[tile.rows + row]), high[half], totals[row][half]);
            }
        }
        panel += 64;
        x += 2 * tile.rows;
    }
    store_rows<rows>(totals, y);
}

template <int rows, bool is_unpacked>
void multiply_codes(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile, int32_t r,
                    float* y) {
    if (w.form == Form::q4) {
        if (!w.has_min) return multiply_q4<rows, false, false, is_unpacked>(w, panel, unpacked, tile, r, y);
        if (!w.wide_scales) return multiply_q4<rows, true, false, is_unpacked>(w, panel, unpacked, tile, r, y);
        return multiply_q4<rows, true, true, is_unpacked>(w, panel, unpacked, tile, r, y);
    }
    if (w.group == 16) return multiply_q8_of_16<rows, is_unpacked>(w, panel, unpacked, tile, r, y);
    if (!w.has_min) return multiply_q8<rows, false, false, is_unpacked>(w, panel, unpacked, tile, r, y);
    if (!w.wide_scales) return multiply_q8<rows, true, false, is_unpacked>(w, panel, unpacked, tile, r, y);
    return multiply_q8<rows, true, true, is_unpacked>(w, panel, unpacked, tile, r, y);
}

// `rows` rows of a tile from r on, 16 lanes each.
template <int rows>
void multiply_rows(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile, int32_t r,
                   float* y) {
    if (w.form == Form::bf16) return multiply_bf16<rows>(w, panel, tile, r, y);
    if (unpacked != nullptr) return multiply_codes<rows, true>(w, panel, unpacked, tile, r, y);
    return multiply_codes<rows, false>(w, panel, nullptr, tile, r, y);
}

// A tile goes by in fours; 5 rows as 3 and 2, 6 as 3 and 3, so that none goes alone.
void multiply_tile(const MatrixView& w, const uint8_t* panel, const uint8_t* unpacked, const Tile& tile, float* y) {
    for (int32_t r = 0; r < tile.rows;) {
        const int32_t left = tile.rows - r;
        const int32_t rows = left <= 4 ? left : left == 5 || left == 6 ? 3 : 4;
        switch (rows) {
            case 1: multiply_rows<1>(w, panel, unpacked, tile, r, y + r * y_ld); break;
            case 2: multiply_rows<2>(w, panel, unpacked, tile, r, y + r * y_ld); break;
            case 3: multiply_rows<3>(w, panel, unpacked, tile, r, y + r * y_ld); break;
            default: multiply_rows<4>(w, panel, unpacked, tile, r, y + r * y_ld); break;
        }
        r += rows;
    }
}

struct Avx2Product {
    static constexpr int32_t row_tile = headway::row_tile;
    static constexpr int32_t most_panels = headway::most_panels;
    static constexpr int32_t bf16_bytes = 4;

    static int32_t panels_at_once(int32_t) { return 1; }

    static void multiply(const MatrixView& w, int32_t panel, int32_t num_panels, const Tile& tile, float* y) {
        for (int32_t p = 0; p < num_panels; ++p) multiply_tile(w, panel_at(w, panel + p), nullptr, tile, y + p * panel_lanes);
    }
};

}  // namespace
}  // namespace headway

#include "product_unpacked_avx2.h"

namespace headway {
namespace {

void product(const MatrixView* w, const Activations* a, int32_t row_begin, int32_t row_end, int32_t panel_begin,
             int32_t panel_end, const ProductOut* out) {
    while (should_unpack(*w, row_end - row_begin)) {
        const int32_t last = smaller(row_begin + most_unpacked_rows, row_end);
        run_unpacked(*w, *a, row_begin, last, panel_begin, panel_end, *out);
        row_begin = last;
    }
    run_product<Avx2Product>(*w, *a, row_begin, row_end, panel_begin, panel_end, *out);
}

}  // namespace
}  // namespace headway

#include "product_rows_avx2.h"
#include "product_rows_f32.h"
