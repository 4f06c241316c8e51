// Norms, activations, rope and the other loops over rows. Right values come from float64.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"

namespace {

using namespace headway;
using headway_tests::same_bits;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::vector<float> make_values(int64_t n, uint32_t seed, float spread = 3.0f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.1f, spread);
    std::vector<float> values(n);
    for (float& value : values) value = normal(random);
    return values;
}

// Rows in a wider matrix, so that strides count.
constexpr int32_t spare_columns = 5;

struct NormCase {
    int32_t width, head;
    bool is_layer, has_bias, one_plus;
};

constexpr NormCase norm_cases[] = {
    {576, 576, false, false, false}, {192, 64, false, false, true}, {33, 33, false, false, false},
    {2048, 2048, false, false, true}, {5, 5, true, true, false},    {768, 768, true, true, false},
    {160, 80, true, false, true},    {1, 1, false, false, false},   {31, 31, true, false, false},
};

void run_norm(const ExecKernels& table, const NormCase& norm, const float* x, int64_t ld, float* out, int32_t rows,
              const float* weight, const float* bias) {
    if (norm.is_layer) {
        table.layer_norm(x, ld, out, ld, rows, norm.width, norm.head, weight, norm.has_bias ? bias : nullptr, 1e-5f,
                         norm.one_plus);
    } else {
        table.rms_norm(x, ld, out, ld, rows, norm.width, norm.head, weight, 1e-5f, norm.one_plus);
    }
}

double right_normal(const NormCase& norm, const float* x, int32_t i) {
    double mean = 0.0, squares = 0.0;
    for (int32_t j = 0; j < norm.head; ++j) mean += x[j] / static_cast<double>(norm.head);
    if (!norm.is_layer) mean = 0.0;
    for (int32_t j = 0; j < norm.head; ++j) squares += (x[j] - mean) * (x[j] - mean);
    return (x[i] - mean) / std::sqrt(squares / norm.head + 1e-5);
}

void test_norms(const ExecKernels& table) {
    for (const NormCase& norm : norm_cases) {
        constexpr int32_t rows = 4;
        const int32_t ld = norm.width + spare_columns;
        const std::vector<float> x = make_values(rows * ld, 1);
        const std::vector<float> weight = make_values(norm.head, 2), bias = make_values(norm.head, 3);
        std::vector<float> out(x.size(), 7.0f), alone(x.size(), 7.0f), in_place = x;
        run_norm(table, norm, x.data(), ld, out.data(), rows, weight.data(), bias.data());
        for (int32_t row = 0; row < rows; ++row) {
            run_norm(table, norm, x.data() + row * ld, ld, alone.data() + row * ld, 1, weight.data(), bias.data());
            for (int32_t i = 0; i < norm.width; ++i) {
                const int32_t at = i % norm.head;
                const double normal = right_normal(norm, x.data() + row * ld + i - at, at);
                const double factor = norm.one_plus ? 1.0 + weight[at] : weight[at];
                const double right = normal * factor + (norm.has_bias ? bias[at] : 0.0);
                const double made = out[row * ld + i];
                CHECK(std::abs(made - right) <= 2e-6 * (1.0 + std::abs(normal * factor)),
                      "%s: width %d, head %d: %g, not %g", table.name, norm.width, norm.head, made, right);
            }
            CHECK(out[row * ld + norm.width] == 7.0f, "%s: a norm writes past its row", table.name);
        }
        CHECK(same_bits(out, alone), "%s: width %d: a row alone differs", table.name, norm.width);
        run_norm(table, norm, in_place.data(), ld, in_place.data(), rows, weight.data(), bias.data());
        CHECK(std::equal(in_place.begin(), in_place.begin() + norm.width, out.begin()), "%s: in place differs",
              table.name);
    }
}

double right_activation(ActivationKind kind, double x) {
    switch (kind) {
        case ActivationKind::silu:
            return x / (1.0 + std::exp(-x));
        case ActivationKind::relu:
            return x > 0.0 ? x : 0.0;
        case ActivationKind::gelu:
            return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
        case ActivationKind::gelu_tanh:
            return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
        case ActivationKind::sigmoid:
            return 1.0 / (1.0 + std::exp(-x));
        case ActivationKind::tanh:
            return std::tanh(x);
    }
    return 0.0;
}

// Relative, and absolute in parts of x where 1 + erf(x) or 1 + tanh(x) cancels (float32 as torch has it).
struct ActivationBound {
    ActivationKind kind;
    double relative, of_x;
};

constexpr ActivationBound activation_bounds[] = {
    {ActivationKind::silu, 6e-7, 0.0},  {ActivationKind::relu, 0.0, 0.0},      {ActivationKind::gelu, 3e-7, 1.2e-7},
    {ActivationKind::gelu_tanh, 4e-7, 2e-7}, {ActivationKind::sigmoid, 6e-7, 0.0}, {ActivationKind::tanh, 5e-7, 0.0},
};

void test_activations(const ExecKernels& table) {
    std::vector<float> x;
    for (int i = -9000; i <= 9000; ++i) x.push_back(static_cast<float>(i) * 0.01f);
    for (int i = -2000; i <= 2000; ++i) x.push_back(static_cast<float>(i) * 0.0011f);
    for (float tiny : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-8f, -1e-8f}) x.push_back(tiny);
    for (const ActivationBound& bound : activation_bounds) {
        std::vector<float> out(x.size()), in_place = x;
        const auto n = static_cast<int64_t>(x.size());
        table.activation(static_cast<int32_t>(bound.kind), x.data(), out.data(), n);
        for (size_t i = 0; i < x.size(); ++i) {
            const double right = right_activation(bound.kind, x[i]);
            // 1 + e^x is infinite beyond 88.7: what is left is under 1e-36.
            const double slack = bound.relative * std::abs(right) + bound.of_x * std::abs(x[i]) + 1e-36;
            CHECK(std::abs(out[i] - right) <= slack, "%s: activation %d of %g is %g, not %g", table.name,
                  static_cast<int>(bound.kind), x[i], out[i], right);
        }
        table.activation(static_cast<int32_t>(bound.kind), in_place.data(), in_place.data(), n);
        CHECK(same_bits(in_place, out), "%s: in place differs", table.name);
        std::vector<float> shifted(x.size() - 3);
        table.activation(static_cast<int32_t>(bound.kind), x.data() + 3, shifted.data(), n - 3);
        CHECK(std::equal(shifted.begin(), shifted.end(), out.begin() + 3), "%s: the place in a row counts", table.name);
    }
}

void test_special_values(const ExecKernels& table) {
    const float x[] = {infinity, -infinity, not_a_number, 3e38f, -3e38f, 200.0f, -200.0f, 0.0f, 1.0f};
    constexpr int64_t n = std::size(x);
    // NaN where there is no right value: infinity times 0.
    const float right[][n] = {
        {infinity, not_a_number, not_a_number, 3e38f, -0.0f, 200.0f, -0.0f, 0.0f, 0.7310586f},
        {infinity, 0.0f, not_a_number, 3e38f, 0.0f, 200.0f, 0.0f, 0.0f, 1.0f},
        {infinity, not_a_number, not_a_number, 3e38f, -0.0f, 200.0f, -0.0f, 0.0f, 0.8413447f},
        {infinity, not_a_number, not_a_number, 3e38f, -0.0f, 200.0f, -0.0f, 0.0f, 0.8411920f},
        {1.0f, 0.0f, not_a_number, 1.0f, 0.0f, 1.0f, 0.0f, 0.5f, 0.7310586f},
        {1.0f, -1.0f, not_a_number, 1.0f, -1.0f, 1.0f, -1.0f, 0.0f, 0.7615942f},
    };
    for (int32_t kind = 0; kind < 6; ++kind) {
        float out[n];
        table.activation(kind, x, out, n);
        for (int64_t i = 0; i < n; ++i) {
            const float wanted = right[kind][i];
            const bool is_right = std::isnan(wanted) ? std::isnan(out[i])
                                                     : out[i] == wanted || std::abs(out[i] - wanted) <= 3e-7f;
            CHECK(is_right, "%s: activation %d of %g is %g, not %g", table.name, kind, x[i], out[i], wanted);
        }
    }
}

void test_gates(const ExecKernels& table) {
    constexpr int64_t n = 1003;
    const std::vector<float> x = make_values(n, 4), up = make_values(n, 5);
    constexpr std::pair<Gate, ActivationKind> kinds[] = {{Gate::silu, ActivationKind::silu},
                                                         {Gate::gelu, ActivationKind::gelu},
                                                         {Gate::gelu_tanh, ActivationKind::gelu_tanh},
                                                         {Gate::relu, ActivationKind::relu}};
    for (auto [gate, kind] : kinds) {
        std::vector<float> out(n), right(n);
        table.gate(gate, x.data(), up.data(), out.data(), n);
        table.activation(static_cast<int32_t>(kind), x.data(), right.data(), n);
        table.multiply(right.data(), up.data(), right.data(), n);
        CHECK(same_bits(out, right), "%s: gate %d is not the activation times up", table.name, static_cast<int>(gate));
    }
}

void test_elementwise(const ExecKernels& table) {
    for (int64_t n : {1, 3, 4, 7, 8, 15, 16, 17, 64, 1003}) {
        const std::vector<float> x = make_values(n, 6), y = make_values(n, 7);
        std::vector<float> product(n), sum(n), scaled(n), capped(n), uncapped(n);
        table.multiply(x.data(), y.data(), product.data(), n);
        table.add(x.data(), y.data(), sum.data(), n);
        table.scale(x.data(), 0.3f, scaled.data(), n);
        table.soft_cap(x.data(), 2.0f, 5.0f, capped.data(), n);
        table.soft_cap(x.data(), 2.0f, 0.0f, uncapped.data(), n);
        for (int64_t i = 0; i < n; ++i) {
            CHECK(product[i] == x[i] * y[i] && sum[i] == x[i] + y[i] && scaled[i] == x[i] * 0.3f, "%s: n %d, %d",
                  table.name, static_cast<int>(n), static_cast<int>(i));
            const double right = 5.0 * std::tanh(x[i] * 2.0 / 5.0);
            CHECK(std::abs(capped[i] - right) <= 3e-6, "%s: the cap of %g is %g", table.name, x[i], capped[i]);
            CHECK(uncapped[i] == x[i] * 2.0f, "%s: a cap of 0 is none", table.name);
        }
    }
}

void test_is_finite(const ExecKernels& table) {
    for (int64_t n : {1, 5, 8, 16, 31, 100}) {
        std::vector<float> x = make_values(n, 8, 1e37f);
        CHECK(table.is_finite(x.data(), n), "%s: %d finite values", table.name, static_cast<int>(n));
        for (int64_t i = 0; i < n; ++i) {
            for (float bad : {infinity, -infinity, not_a_number, -not_a_number}) {
                std::vector<float> broken = x;
                broken[i] = bad;
                CHECK(!table.is_finite(broken.data(), n), "%s: %g at %d is not seen", table.name, bad,
                      static_cast<int>(i));
            }
        }
    }
    const std::vector<float> largest(64, std::numeric_limits<float>::max());
    CHECK(table.is_finite(largest.data(), 64), "%s: large values are finite, their sum is not", table.name);
}

void check_rope(const ExecKernels& table, bool interleaved, int32_t pairs, int32_t head_dim) {
    constexpr int32_t num_heads = 3, rows = 5, max_position = 40;
    const int32_t ld = num_heads * head_dim + spare_columns;
    std::vector<float> cosines(max_position * pairs), sines(cosines);
    for (int32_t i = 0; i < max_position * pairs; ++i) {
        const double angle = i / pairs * std::pow(10000.0, -(i % pairs) / static_cast<double>(pairs));
        cosines[i] = static_cast<float>(1.2 * std::cos(angle)), sines[i] = static_cast<float>(1.2 * std::sin(angle));
    }
    const int32_t positions[rows] = {0, 39, 7, 8, 23};
    const RopeTable rope{cosines.data(), sines.data(), pairs, interleaved};
    const std::vector<float> x = make_values(rows * ld, 9);
    std::vector<float> out = x, alone = x, right = x;
    table.rope(out.data(), ld, positions, rows, num_heads, head_dim, &rope);
    for (int32_t row = 0; row < rows; ++row) {
        table.rope(alone.data() + row * ld, ld, positions + row, 1, num_heads, head_dim, &rope);
        for (int32_t i = 0; i < num_heads * pairs; ++i) {
            const int32_t p = i % pairs, first = row * ld + i / pairs * head_dim;
            const int32_t at_a = first + (interleaved ? 2 * p : p), at_b = interleaved ? at_a + 1 : at_a + pairs;
            const double cosine = cosines[positions[row] * pairs + p], sine = sines[positions[row] * pairs + p];
            right[at_a] = static_cast<float>(x[at_a] * cosine - x[at_b] * sine);
            right[at_b] = static_cast<float>(x[at_b] * cosine + x[at_a] * sine);
        }
    }
    CHECK(same_bits(out, alone), "%s: a row alone turns differently", table.name);
    for (size_t i = 0; i < x.size(); ++i) {
        CHECK(std::abs(out[i] - right[i]) <= 2e-6, "%s: pairs %d of %d: %g, not %g", table.name, pairs, head_dim,
              out[i], right[i]);
    }
}

}  // namespace

void headway_tests::test_layers() {
    for (const ExecKernels* table : exec_tables()) {
        test_norms(*table);
        test_activations(*table);
        test_special_values(*table);
        test_gates(*table);
        test_elementwise(*table);
        test_is_finite(*table);
        for (bool interleaved : {false, true}) {
            check_rope(*table, interleaved, 32, 64);
            check_rope(*table, interleaved, 10, 80);
            check_rope(*table, interleaved, 3, 6);
        }
    }
}
