// Packing and products on every instruction set: against the order of sums that matrix.h states, bit for bit; against
// float64 over the dequantised weights, within what the formats lose; and each against itself, however a call is split.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "exec/float16.h"
#include "exec/packing.h"

namespace headway_tests {
namespace {

using namespace headway;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

constexpr GgmlType all_types[] = {GgmlType::f32,  GgmlType::f16,  GgmlType::bf16, GgmlType::q8_0, GgmlType::q4_0, GgmlType::q4_1,
                                  GgmlType::q5_0, GgmlType::q5_1, GgmlType::q4_k, GgmlType::q5_k, GgmlType::q6_k};

// Bytes of a linear congruential generator, so that another program can make the same.
class Bytes {
public:
    explicit Bytes(uint32_t seed) : state_(seed) {}
    uint8_t next() {
        state_ = state_ * 1664525u + 1013904223u;
        return static_cast<uint8_t>(state_ >> 24);
    }

private:
    uint32_t state_;
};

// Where a block of a type has float16 numbers: those get small exponents, so that all weights are finite.
std::vector<int> half_places(GgmlType type) {
    switch (type) {
        case GgmlType::q4_1:
        case GgmlType::q5_1:
        case GgmlType::q4_k:
        case GgmlType::q5_k: return {0, 2};
        case GgmlType::q6_k: return {208};
        default: return {0};
    }
}

// Blocks of random bytes with finite scales; float types get multiples of 1/32 in -4 to 4, which all of them hold.
std::vector<uint8_t> random_rows(GgmlType type, int32_t num_rows, int32_t num_cols, uint32_t seed) {
    std::vector<uint8_t> rows(num_rows * row_bytes_of(type, num_cols));
    Bytes bytes(seed);
    if (is_float_type(type)) {
        const size_t width = type == GgmlType::f32 ? 4 : 2;
        for (size_t at = 0; at < rows.size(); at += width) {
            const float value = static_cast<float>(bytes.next() - 128) / 32.0f;
            const uint32_t bits = type == GgmlType::f32    ? bits_of_float(value)
                                  : type == GgmlType::bf16 ? bf16_of_float(value)
                                                           : f16_of_float(value);
            std::memcpy(rows.data() + at, &bits, width);
        }
        return rows;
    }
    for (uint8_t& byte : rows) byte = bytes.next();
    const int32_t block_cols = type >= GgmlType::q4_k ? 256 : 32;
    const size_t block_bytes = row_bytes_of(type, block_cols);
    for (size_t block = 0; block < rows.size(); block += block_bytes) {
        for (int place : half_places(type)) {
            uint8_t& high = rows[block + place + 1];
            high = static_cast<uint8_t>((high & 0x83u) | 0x20u);  // 2^-7 to 2^-6, of either sign
        }
    }
    return rows;
}

PackedMatrix random_matrix(GgmlType type, const MatrixFormat& format, int32_t num_rows, int32_t num_cols) {
    PackedMatrix matrix(format, num_rows, num_cols);
    const std::vector<uint8_t> rows = random_rows(type, num_rows, num_cols, static_cast<uint32_t>(num_rows * num_cols));
    matrix.pack(type, rows.data(), num_rows, nullptr);
    return matrix;
}

std::vector<float> dequantised(const PackedMatrix& matrix) {
    const MatrixView& view = matrix.view();
    std::vector<float> values(static_cast<size_t>(view.num_rows) * view.num_cols);
    for (int32_t row = 0; row < view.num_rows; ++row) matrix.dequantise_row(row, values.data() + row * view.num_cols);
    return values;
}

// --- packing ---------------------------------------------------------------------------------------------------------

uint64_t fnv1a(const std::vector<float>& values) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (float value : values) {
        const uint32_t bits = bits_of_float(value);
        for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (bits >> shift & 255u)) * 0x100000001b3u;
    }
    return hash;
}

struct KnownRows {
    GgmlType type;
    uint64_t hash;
};

// Hashes of what gguf.quants.dequantize (0.19.0) makes of random_rows(type, 7, 512, 1): see tests/native/known_rows.py.
constexpr KnownRows known_rows[] = {
#include "known_rows.inc"
};

void test_types_expand_without_changing_a_value() {
    for (const KnownRows& known : known_rows) {
        PackedMatrix matrix(form_of(known.type), 40, 512);
        const std::vector<uint8_t> rows = random_rows(known.type, 7, 512, 1);
        const std::vector<int32_t> places = {39, 0, 16, 5, 31, 17, 2};
        matrix.pack(known.type, rows.data(), 7, places.data());
        std::vector<float> values(7 * 512);
        for (int32_t i = 0; i < 7; ++i) matrix.dequantise_row(places[i], values.data() + i * 512);
        CHECK(fnv1a(values) == known.hash, "%s: 0x%016lxu", ggml_type_name(known.type), fnv1a(values));
        std::vector<float> untouched(512);
        matrix.dequantise_row(1, untouched.data());
        for (float value : untouched) CHECK(value == 0.0f, "%s wrote into another row", ggml_type_name(known.type));
    }
}

void test_floats_are_held_as_they_are() {
    for (GgmlType type : {GgmlType::f32, GgmlType::f16, GgmlType::bf16}) {
        PackedMatrix matrix(f32_format, 19, 70);
        const std::vector<uint8_t> rows = random_rows(type, 19, 70, 3);
        matrix.pack(type, rows.data(), 19, nullptr);
        std::vector<float> right(70);
        const std::vector<float> values = dequantised(matrix);
        for (int32_t row = 0; row < 19; ++row) {
            read_floats(type, rows.data() + row * row_bytes_of(type, 70), 0, 70, right.data());
            for (int32_t k = 0; k < 70; ++k) {
                CHECK(values[row * 70 + k] == right[k], "%s: %g, not %g", ggml_type_name(type), values[row * 70 + k], right[k]);
            }
        }
    }
}

void test_float16_is_what_the_definition_says() {
    for (uint32_t half = 0; half < 0x10000u; ++half) {
        const int exponent = static_cast<int>(half >> 10 & 31u);
        const double mantissa = half & 1023u;
        double right = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
        if (exponent == 31) right = mantissa == 0 ? std::numeric_limits<double>::infinity() : not_a_number;
        if (half & 0x8000u) right = -right;
        const float made = float_of_f16(static_cast<uint16_t>(half));
        CHECK(std::isnan(right) ? std::isnan(made) : made == right, "float16 %04x is %g", half, made);
        const uint16_t back = f16_of_float(made);
        CHECK(std::isnan(right) ? std::isnan(float_of_f16(back)) : back == half, "%g is float16 %04x", made, back);
        if (exponent == 31 || half == 0x7bffu || half == 0xfbffu) continue;
        const float next = float_of_f16(static_cast<uint16_t>(half + 1));
        const float middle = (made + next) / 2.0f;  // exact: a tie goes to the even one
        const uint16_t even = static_cast<uint16_t>(half & 1u ? half + 1 : half);
        CHECK(f16_of_float(middle) == even, "a tie at %g goes to %04x", middle, f16_of_float(middle));
        CHECK(f16_of_float(std::nextafterf(middle, made)) == half, "just under the tie at %g", middle);
    }
    CHECK(f16_of_float(65520.0f) == 0x7c00u && f16_of_float(65519.9f) == 0x7bffu, "the largest float16");
    CHECK(bf16_of_float(1.00390625f) == 0x3f80u && bf16_of_float(1.01171875f) == 0x3f82u, "ties of bfloat16");
    CHECK(std::isnan(float_of_bf16(bf16_of_float(float_of_bits(0x7f800001u)))), "a NaN with low bits alone");
}

void test_quantising_stays_within_half_a_step() {
    for (const MatrixFormat& format : {int8_format, int4_format}) {
        std::mt19937 random(3);
        std::normal_distribution<float> normal;
        for (float size : {1.0f, 1e-6f, 1e4f}) {
            std::vector<float> row(70);
            for (float& value : row) value = normal(random) * size;
            PackedMatrix matrix(format, 1, 70);
            matrix.pack(GgmlType::f32, reinterpret_cast<const uint8_t*>(row.data()), 1, nullptr);
            std::vector<float> made(70);
            matrix.dequantise_row(0, made.data());
            for (int32_t first = 0; first < 70; first += 32) {
                const int32_t last = std::min(first + 32, 70);
                const auto [low, high] = std::minmax_element(row.begin() + first, row.begin() + last);
                const float largest = std::max(std::fabs(*low), std::fabs(*high));
                const float step = format == int8_format ? largest / 127.0f : (*high - *low) / 15.0f;
                const float slack = step * 0.52f + largest / 1024.0f + 0x1p-24f * 16.0f;  // float16 scales and mins
                for (int32_t k = first; k < last; ++k) {
                    CHECK(std::fabs(made[k] - row[k]) <= slack, "%g became %g", row[k], made[k]);
                }
            }
        }
    }
}

template <typename Error, typename Act>
void check_throws(const char* part, Act act) {
    try {
        act();
        CHECK(false, "nothing was thrown; expected: %s", part);
    } catch (const Error& error) {
        CHECK(std::string(error.what()).find(part) != std::string::npos, "%s does not say %s", error.what(), part);
    }
}

void test_what_cannot_be_packed_is_refused() {
    const std::vector<uint8_t> rows(4096);
    const int32_t outside = 3;
    PackedMatrix matrix(int8_format, 3, 64);
    check_throws<std::out_of_range>("row 3 of a matrix of 3", [&] { matrix.pack(GgmlType::q8_0, rows.data(), 1, &outside); });
    check_throws<std::invalid_argument>("Q4_0", [&] { matrix.pack(GgmlType::q4_0, rows.data(), 1, nullptr); });
    check_throws<std::invalid_argument>("type 10 cannot be run", [&] { ggml_type(10); });
    check_throws<std::invalid_argument>("blocks of 256", [&] { row_bytes_of(GgmlType::q6_k, 320); });
    check_throws<std::invalid_argument>("0 rows", [&] { PackedMatrix(int8_format, 0, 64); });
    check_throws<std::invalid_argument>("no tensor type", [&] { PackedMatrix({Form::q4, 16, false, true}, 1, 64); });
    const std::vector<float> bad(64, not_a_number), huge(64, 1e30f);
    check_throws<std::domain_error>("nan", [&] { matrix.pack(GgmlType::f32, reinterpret_cast<const uint8_t*>(bad.data()), 1, nullptr); });
    check_throws<std::domain_error>("65504", [&] { matrix.pack(GgmlType::f32, reinterpret_cast<const uint8_t*>(huge.data()), 1, nullptr); });
    check_throws<OutOfMemory>("9223372036854775807 bytes", [&] { PageBuffer(std::numeric_limits<int64_t>::max()); });
}

// --- products --------------------------------------------------------------------------------------------------------

// The buffers of an Activations for one table. They are exactly as large as matrix.h says: the sanitiser sees the rest.
struct Prepared {
    Prepared(const ExecKernels& kernels, const std::vector<float>& x, int32_t num_rows, int32_t num_cols)
        : num_groups((num_cols + 31) / 32) {
        const size_t values = static_cast<size_t>(num_rows) * num_groups * 32;
        q.resize(values), bf16.resize(values), f32.resize(values);
        scales.resize(num_rows * num_groups), sums.resize(num_rows * num_groups * 2);
        a = {num_rows, num_cols, num_groups, q.data(), scales.data(), sums.data(), bf16.data(), f32.data()};
        kernels.quantise_rows(x.data(), num_cols, 0, num_rows, &a);
        kernels.pack_rows(x.data(), num_cols, 0, num_rows, &a);
    }
    Prepared(const Prepared&) = delete;

    int32_t num_groups;
    std::vector<int8_t> q;
    std::vector<uint16_t> bf16;
    std::vector<float> f32, scales;
    std::vector<int32_t> sums;
    Activations a{};
};

// One row of activations, taken out of its tile.
struct FlatRow {
    std::vector<int> q;
    std::vector<float> scales, wide;
    std::vector<int32_t> sums, second_sums;
};

FlatRow flat_row(const ExecKernels& kernels, const Prepared& prepared, int32_t row) {
    const int32_t tile = kernels.row_tile, first = row / tile * tile, r = row - first;
    const int32_t rows = std::min(tile, prepared.a.num_rows - first), k32 = prepared.num_groups * 32;
    FlatRow flat;
    for (int32_t k = 0; k < k32; ++k) {
        flat.q.push_back(prepared.q[first * k32 + (k / 4 * rows + r) * 4 + k % 4]);
        flat.wide.push_back(kernels.multiplies_bf16
                                ? float_of_bf16(prepared.bf16[first * k32 + (k / 2 * rows + r) * 2 + k % 2])
                                : prepared.f32[first * k32 + k * rows + r]);
    }
    for (int32_t g = 0; g < prepared.num_groups; ++g) {
        flat.scales.push_back(prepared.scales[first * prepared.num_groups + g * rows + r]);
        const int32_t* sums = prepared.sums.data() + (first * prepared.num_groups + g * rows) * 2;
        flat.sums.push_back(sums[r]);
        flat.second_sums.push_back(sums[rows + r]);
    }
    return flat;
}

// A group of 32 as matrix.h states it.
struct QuantisedGroup {
    float scale = 0.0f;
    int codes[32] = {};
};

QuantisedGroup stated_group(const float (&x)[32]) {
    float largest = 0.0f;
    for (float value : x) largest = std::max(largest, std::fabs(value));
    QuantisedGroup made[2];
    if (largest < 0x1p-110f) return made[0];
    float weighed[2];
    for (int second = 0; second < 2; ++second) {
        int64_t lost = 0;
        for (int i = 0; i < 32; ++i) {
            int fine = static_cast<int>(std::nearbyintf(x[i] * (32512.0f / largest)));
            if (second == 1) fine -= static_cast<int>(std::floor(fine * 516.0 / 32768.0 + 0.5));
            made[second].codes[i] = static_cast<int>(std::floor(fine / 256.0 + 0.5));
            lost += (fine - 256 * made[second].codes[i]) * (fine - 256 * made[second].codes[i]);
        }
        made[second].scale = largest / (second == 1 ? 125.0f : 127.0f);
        weighed[second] = static_cast<float>(lost) * (second == 1 ? 16129.0f : 15625.0f);
    }
    return made[weighed[1] < weighed[0] ? 1 : 0];
}

void check_prepared(const ExecKernels& kernels, const FlatRow& flat, const float* x, int32_t num_cols) {
    for (int32_t g = 0; g < static_cast<int32_t>(flat.scales.size()); ++g) {
        float values[32] = {};
        for (int32_t i = 0; i < std::min(32, num_cols - g * 32); ++i) values[i] = x[g * 32 + i];
        const QuantisedGroup right = stated_group(values);
        CHECK(flat.scales[g] == right.scale, "%s: group %d has scale %g, not %g", kernels.name, g, flat.scales[g], right.scale);
        int32_t sums[2] = {0, 0};
        for (int32_t i = 0; i < 32; ++i) {
            const int32_t k = g * 32 + i;
            CHECK(flat.q[k] == right.codes[i], "%s: column %d is %d, not %d", kernels.name, k, flat.q[k], right.codes[i]);
            sums[i / 16] += right.codes[i];
            const float wide = kernels.multiplies_bf16 ? float_of_bf16(bf16_of_float(values[i])) : values[i];
            CHECK(flat.wide[k] == wide, "%s: column %d is %g, not %g", kernels.name, k, flat.wide[k], wide);
        }
        CHECK(flat.sums[g] == sums[0] + sums[1] && flat.second_sums[g] == sums[1], "%s: the sums of group %d", kernels.name, g);
    }
}

bool fuses(const ExecKernels& kernels) {
#if defined(__FP_FAST_FMAF)
    constexpr bool plain_fuses = true;
#else
    constexpr bool plain_fuses = false;
#endif
    return plain_fuses || std::string(kernels.name) != "plain";
}

float accumulate(bool is_fused, float a, float b, float c) {
    if (is_fused) return std::fma(a, b, c);
    const volatile float product = a * b;
    return product + c;
}

// The sum of one (row, n) in the order that matrix.h states.
float stated_sum(const ExecKernels& kernels, const MatrixView& w, const FlatRow& row, int32_t n) {
    const bool is_fused = fuses(kernels);
    const uint8_t* panel = w.data + n / 16 * w.panel_bytes;
    const int32_t lane = n % 16;
    float y = 0.0f;
    if (w.form == Form::bf16) {
        const auto* pairs = reinterpret_cast<const uint16_t*>(panel);
        for (int32_t k = 0; k < w.num_groups * 32; ++k) {
            const int32_t at = kernels.multiplies_bf16 ? k ^ 1 : k;  // vdpbf16ps: the odd one of a pair first
            y = accumulate(is_fused, row.wide[at], float_of_bf16(pairs[(at / 2 * 16 + lane) * 2 + at % 2]), y);
        }
        return y;
    }
    if (w.form == Form::f32) {
        const auto* weights = reinterpret_cast<const float*>(panel);
        for (int32_t k = 0; k < w.num_groups * 32; ++k) y = accumulate(is_fused, row.wide[k], weights[k * 16 + lane], y);
        return y;
    }
    const auto scale_at = [&](int64_t offset, int32_t index) {
        const uint8_t* at = panel + offset;
        return w.wide_scales ? reinterpret_cast<const float*>(at)[index * 16 + lane]
                             : float_of_f16(reinterpret_cast<const uint16_t*>(at)[index * 16 + lane]);
    };
    for (int32_t first = 0; first < w.num_groups * 32; first += w.group) {
        int32_t dot = 0, sum = 0;
        for (int32_t k = first; k < first + w.group; ++k) {
            const int32_t inner = k % 32;
            const uint8_t* codes = panel + k / 32 * (w.form == Form::q8 ? 512 : 256);
            const int code = w.form == Form::q8 ? codes[inner / 4 * 64 + lane * 4 + inner % 4] - 128
                                                : (codes[inner % 16 / 4 * 64 + lane * 4 + inner % 4] >> (inner / 16 * 4) & 15) -
                                                      (w.has_min ? 0 : 8);
            dot += code * row.q[k];
            sum += row.q[k];
        }
        const float a_scale = row.scales[first / 32];
        y = accumulate(is_fused, static_cast<float>(dot), scale_at(w.scales_offset, first / w.group) * a_scale, y);
        if (w.has_min) {
            y = accumulate(is_fused, scale_at(w.mins_offset, first / w.group), a_scale * static_cast<float>(sum), y);
        }
    }
    return y;
}

struct Epilogue {
    bool has_bias = false;
    bool has_base = false;
    float scale = 1.0f;
};

std::vector<float> random_floats(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

constexpr float untouched = 12345.0f;

// A whole product in calls of random blocks of rows and panels; with 0 as the seed in one call.
std::vector<float> multiply(const ExecKernels& kernels, const MatrixView& w, const Activations& a, ProductOut out,
                            uint32_t seed) {
    std::vector<float> made(static_cast<size_t>(a.num_rows) * out.ld, untouched);
    if (out.base != nullptr) std::copy(out.base, out.base + made.size(), made.begin());
    out.base = out.base == nullptr ? nullptr : made.data();
    out.ld_base = out.ld;
    out.out = made.data();
    std::mt19937 random(seed);
    const int32_t tile = kernels.row_tile, even = out.gate == Gate::none ? 1 : 2;
    for (int32_t row = 0, row_end; row < a.num_rows; row = row_end) {
        row_end = seed == 0 ? a.num_rows : std::min<int32_t>(a.num_rows, row + tile * (1 + random() % 2));
        for (int32_t panel = 0, end; panel < w.num_panels; panel = end) {
            end = seed == 0 ? w.num_panels : std::min<int32_t>(w.num_panels, panel + even * (1 + random() % 3));
            kernels.product(&w, &a, row, row_end, panel, end, &out);
        }
    }
    return made;
}

bool has_same_bits(float a, float b) { return bits_of_float(a) == bits_of_float(b); }

// Each value in the stated order and bias, scale and base after it; nothing written past the last column.
void check_values(const ExecKernels& kernels, const PackedMatrix& matrix, const std::vector<float>& x, int32_t num_rows,
                  const Epilogue& epilogue) {
    const MatrixView& w = matrix.view();
    const Prepared prepared(kernels, x, num_rows, w.num_cols);
    const int64_t ld = w.num_rows + 3;
    const std::vector<float> bias = random_floats(w.num_rows, 5), base = random_floats(num_rows * ld, 6);
    ProductOut out{};
    out.ld = ld;
    out.bias = epilogue.has_bias ? bias.data() : nullptr;
    out.base = epilogue.has_base ? base.data() : nullptr;
    out.scale = epilogue.scale;
    const std::vector<float> made = multiply(kernels, w, prepared.a, out, 0);
    const bool is_emulated = std::string(kernels.name).find("emulated") == 0;
    const bool is_stated = w.form != Form::bf16 || !kernels.multiplies_bf16 || is_emulated;
    for (int32_t r = 0; r < num_rows; ++r) {
        const FlatRow flat = flat_row(kernels, prepared, r);
        check_prepared(kernels, flat, x.data() + r * w.num_cols, w.num_cols);
        for (int32_t n = 0; n < ld; ++n) {
            const float before = epilogue.has_base ? base[r * ld + n] : untouched;
            if (n >= w.num_rows) {
                CHECK(made[r * ld + n] == before, "%s: column %d of %d was written", kernels.name, n, w.num_rows);
                continue;
            }
            float right = stated_sum(kernels, w, flat, n);
            if (epilogue.has_bias) right += bias[n];
            const volatile float scaled = epilogue.scale * right;
            right = epilogue.has_base ? before + scaled : scaled;
            const bool is_right = is_stated ? has_same_bits(made[r * ld + n], right)
                                            : std::fabs(made[r * ld + n] - right) <= 1e-4f * (1.0f + std::fabs(right));
            CHECK(is_right, "%s form %d group %d, row %d of %d, column %d: %.9g, not %.9g", kernels.name,
                  static_cast<int>(w.form), w.group, r, num_rows, n, made[r * ld + n], right);
        }
    }
}

// Against float64: the rounding of activations (half a step each, and a step of 256ths before) and of float32 sums is all
// that may be lost.
void check_accuracy(const ExecKernels& kernels, const PackedMatrix& matrix, const std::vector<float>& x, int32_t num_rows) {
    const MatrixView& w = matrix.view();
    const std::vector<float> weights = dequantised(matrix);
    const Prepared prepared(kernels, x, num_rows, w.num_cols);
    ProductOut out{};
    out.ld = w.num_rows;
    out.scale = 1.0f;
    const std::vector<float> made = multiply(kernels, w, prepared.a, out, 0);
    for (int32_t r = 0; r < num_rows; ++r) {
        const FlatRow flat = flat_row(kernels, prepared, r);
        for (int32_t n = 0; n < w.num_rows; ++n) {
            double right = 0.0, slack = 0.0;
            for (int32_t k = 0; k < w.num_cols; ++k) {
                const double a = x[r * w.num_cols + k], b = weights[n * w.num_cols + k];
                const double step = w.form == Form::f32          ? 0.0
                                    : w.form != Form::bf16    ? 0.504 * flat.scales[k / 32]
                                    : kernels.multiplies_bf16 ? std::fabs(a) / 256.0
                                                              : 0.0;
                right += a * b;
                slack += step * std::fabs(b) + 4e-6 * std::fabs(a * b) * (w.has_min ? 32.0 : 1.0);
            }
            CHECK(std::fabs(made[r * w.num_rows + n] - right) <= slack, "%s form %d: %g, not %g", kernels.name,
                  static_cast<int>(w.form), made[r * w.num_rows + n], right);
        }
    }
}

std::vector<float> rows_of(const std::vector<float>& x, int32_t num_cols, int32_t first, int32_t count) {
    return {x.begin() + first * num_cols, x.begin() + (first + count) * num_cols};
}

// Alone, in a batch, in other splits of rows and panels: the same bits.
void check_independence(const ExecKernels& kernels, const PackedMatrix& matrix, const std::vector<float>& x,
                        int32_t num_rows) {
    const MatrixView& w = matrix.view();
    ProductOut out{};
    out.ld = w.num_rows;
    out.scale = 1.0f;
    const auto made_of = [&](int32_t first, int32_t count, uint32_t seed) {
        const Prepared prepared(kernels, rows_of(x, w.num_cols, first, count), count, w.num_cols);
        return multiply(kernels, w, prepared.a, out, seed);
    };
    std::vector<float> alone;
    for (int32_t r = 0; r < num_rows; ++r) {
        const std::vector<float> made = made_of(r, 1, 0);
        alone.insert(alone.end(), made.begin(), made.end());
    }
    for (int32_t count = 1; count <= num_rows; ++count) {
        for (uint32_t seed : {0u, 1u, 2u}) {
            const std::vector<float> made = made_of(0, count, seed);
            CHECK(std::memcmp(made.data(), alone.data(), made.size() * sizeof(float)) == 0,
                  "%s form %d group %d: %d rows (split %u) differ from each alone", kernels.name, static_cast<int>(w.form),
                  w.group, count, seed);
        }
    }
}

// A gate is the gate kernel over the two products, to the bit.
void check_gate(const ExecKernels& kernels, const MatrixFormat& format, GgmlType type, int32_t num_lanes) {
    const int32_t num_rows = num_lanes / 16 * 32 + (num_lanes % 16 == 0 ? 0 : 16 + num_lanes % 16);
    const PackedMatrix matrix = random_matrix(type, format, num_rows, 256);
    const int32_t count = 2 * kernels.row_tile + 1;
    const std::vector<float> x = random_floats(count * 256, 8), base = random_floats(count * num_lanes, 9);
    const Prepared prepared(kernels, x, count, 256);
    const std::vector<float> bias = random_floats(num_rows, 10);
    ProductOut out{};
    out.scale = 1.0f;
    out.bias = bias.data();
    out.ld = num_rows;
    const std::vector<float> ungated = multiply(kernels, matrix.view(), prepared.a, out, 0);
    for (Gate gate : {Gate::silu, Gate::gelu, Gate::gelu_tanh, Gate::relu}) {
        out.gate = gate;
        out.ld = num_lanes;
        out.scale = 0.5f;
        out.base = base.data();
        for (uint32_t seed : {0u, 1u}) {
            const std::vector<float> made = multiply(kernels, matrix.view(), prepared.a, out, seed);
            for (int32_t r = 0; r < count; ++r) {
                for (int32_t n = 0; n < num_lanes; ++n) {
                    const float* pair = ungated.data() + r * num_rows + n / 16 * 32 + n % 16;
                    float right;
                    kernels.gate(gate, pair, pair + 16, &right, 1);
                    const volatile float scaled = 0.5f * right;
                    right = base[r * num_lanes + n] + scaled;
                    CHECK(has_same_bits(made[r * num_lanes + n], right), "%s gate %d, row %d, column %d of %d: %g, not %g",
                          kernels.name, static_cast<int>(gate), r, n, num_lanes, made[r * num_lanes + n], right);
                }
            }
        }
    }
}

double squared_error(const float* x, const std::vector<int>& codes, double scale) {
    double sum = 0.0;
    for (int i = 0; i < 32; ++i) sum += (x[i] - scale * codes[i]) * (x[i] - scale * codes[i]);
    return sum;
}

// In float64: no group loses more than it would by either scale (a hundredth apart they may be taken for equal), and many
// take each.
void test_groups_take_the_scale_that_loses_less() {
    constexpr int32_t num_groups = 512;
    const std::vector<float> x = random_floats(num_groups * 32, 11);
    for (const ExecKernels* kernels : exec_tables()) {
        const Prepared prepared(*kernels, x, 1, num_groups * 32);
        const FlatRow flat = flat_row(*kernels, prepared, 0);
        int taken[2] = {0, 0};
        for (int32_t g = 0; g < num_groups; ++g) {
            const float* group = x.data() + g * 32;
            double largest = 0.0;
            for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(double{group[i]}));
            const std::vector<int> made(flat.q.begin() + g * 32, flat.q.begin() + g * 32 + 32);
            const double lost = squared_error(group, made, flat.scales[g]);
            for (double codes : {127.0, 125.0}) {
                std::vector<int> rounded;
                for (int i = 0; i < 32; ++i) rounded.push_back(static_cast<int>(std::lround(group[i] * codes / largest)));
                CHECK(lost <= 1.01 * squared_error(group, rounded, largest / codes), "%s: group %d loses more than by %g codes",
                      kernels->name, g, codes);
            }
            ++taken[flat.scales[g] > largest / 126.0 ? 1 : 0];
        }
        CHECK(taken[0] > 128 && taken[1] > 128, "%s: %d and %d groups take each scale", kernels->name, taken[0], taken[1]);
    }
}

void check_rows_that_are_not_finite(const ExecKernels& kernels, const PackedMatrix& matrix) {
    const MatrixView& w = matrix.view();
    for (float bad : {not_a_number, -not_a_number, std::numeric_limits<float>::infinity()}) {
        std::vector<float> x = random_floats(3 * w.num_cols, 4);
        x[w.num_cols + w.num_cols - 1] = bad;
        const Prepared prepared(kernels, x, 3, w.num_cols);
        ProductOut out{};
        out.ld = w.num_rows;
        out.scale = 1.0f;
        const std::vector<float> made = multiply(kernels, w, prepared.a, out, 0);
        for (int32_t i = 0; i < 3 * w.num_rows; ++i) {
            const bool is_bad = i / w.num_rows == 1;
            CHECK(std::isfinite(made[i]) != is_bad, "%s form %d: row %d has %g", kernels.name, static_cast<int>(w.form),
                  i / w.num_rows, made[i]);
        }
    }
}

void check_read_row(const ExecKernels& kernels, const PackedMatrix& matrix) {
    const MatrixView& w = matrix.view();
    std::vector<float> made(w.num_cols), right(w.num_cols);
    for (int32_t row = 0; row < w.num_rows; row += 7) {
        kernels.read_row(&w, row, 3.0f, made.data());
        matrix.dequantise_row(row, right.data());
        for (int32_t k = 0; k < w.num_cols; ++k) {
            CHECK(has_same_bits(made[k], right[k] * 3.0f), "%s: row %d, column %d", kernels.name, row, k);
        }
    }
}

void check_matrix(const ExecKernels& kernels, GgmlType type, const MatrixFormat& format, int32_t num_rows, int32_t num_cols) {
    const PackedMatrix matrix = random_matrix(type, format, num_rows, num_cols);
    const int32_t most = 2 * kernels.row_tile + 1;
    std::vector<float> x = random_floats(most * num_cols, 2);
    std::fill(x.begin(), x.begin() + std::min(num_cols, 40), 0.0f);  // a group of zeros
    for (int32_t rows : {1, 2, 5, kernels.row_tile, most}) check_values(kernels, matrix, x, rows, {});
    check_values(kernels, matrix, x, 3, {true, false, 1.0f});
    check_values(kernels, matrix, x, 3, {true, true, 0.125f});
    check_values(kernels, matrix, x, 3, {false, true, 1.0f});
    check_accuracy(kernels, matrix, x, 3);
    check_independence(kernels, matrix, x, most);
    check_rows_that_are_not_finite(kernels, matrix);
    check_read_row(kernels, matrix);
}

void test_every_type(const ExecKernels& kernels) {
    for (GgmlType type : all_types) {
        check_matrix(kernels, type, form_of(type), 37, 256);
        check_matrix(kernels, type, form_of(type), 80, is_float_type(type) ? 70 : type >= GgmlType::q4_k ? 512 : 96);
    }
    for (const MatrixFormat& format : {int8_format, int4_format}) check_matrix(kernels, GgmlType::f32, format, 21, 70);
    // Kernels that multiply bfloat16 get no such matrix: their rows are bfloat16.
    if (!kernels.multiplies_bf16) {
        for (GgmlType type : {GgmlType::f32, GgmlType::f16, GgmlType::bf16}) {
            check_matrix(kernels, type, f32_format, 40, 96);
            check_matrix(kernels, type, f32_format, 21, 70);
        }
    }
    const int32_t many = 9 * kernels.row_tile + 1;  // more rows than any kernel takes at once, and columns in several blocks
    for (GgmlType type : {GgmlType::q4_1, GgmlType::q8_0, GgmlType::bf16}) {
        const int32_t num_cols = is_float_type(type) ? 300 : 64;
        check_values(kernels, random_matrix(type, form_of(type), 85, num_cols), random_floats(many * num_cols, 11), many, {});
    }
    if (!kernels.multiplies_bf16) {
        check_values(kernels, random_matrix(GgmlType::f32, f32_format, 85, 300), random_floats(many * 300, 12), many, {});
    }
    for (int32_t num_lanes : {16, 24, 80}) {
        check_gate(kernels, int4_format, GgmlType::q4_1, num_lanes);
        check_gate(kernels, bf16_format, GgmlType::bf16, num_lanes);
    }
}

}  // namespace

void test_products() {
    test_groups_take_the_scale_that_loses_less();
    test_float16_is_what_the_definition_says();
    test_floats_are_held_as_they_are();
    test_types_expand_without_changing_a_value();
    test_quantising_stays_within_half_a_step();
    test_what_cannot_be_packed_is_refused();
    for (const ExecKernels* kernels : exec_tables()) test_every_type(*kernels);
}

}  // namespace headway_tests
