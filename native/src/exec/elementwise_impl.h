// What happens to each element alone.
#pragma once

namespace headway {
namespace {

template <typename Function>
HEADWAY_INLINE void map_vectors(const float* x, float* out, int64_t n, Function function) {
    int64_t i = 0;
    for (; i + width <= n; i += width) store(out + i, function(load(x + i)));
    if (i < n) {
        const int rest = static_cast<int>(n - i);
        store_some(out + i, function(load_some(x + i, rest)), rest);
    }
}

template <typename Function>
HEADWAY_INLINE void map_vectors(const float* x, const float* y, float* out, int64_t n, Function function) {
    int64_t i = 0;
    for (; i + width <= n; i += width) store(out + i, function(load(x + i), load(y + i)));
    if (i < n) {
        const int rest = static_cast<int>(n - i);
        store_some(out + i, function(load_some(x + i, rest), load_some(y + i, rest)), rest);
    }
}

void activation(int32_t kind, const float* x, float* out, int64_t n) {
    switch (static_cast<ActivationKind>(kind)) {
        case ActivationKind::silu:
            return map_vectors(x, out, n, [](Floats v) { return silu(v); });
        case ActivationKind::relu:
            return map_vectors(x, out, n, [](Floats v) { return relu(v); });
        case ActivationKind::gelu:
            return map_vectors(x, out, n, [](Floats v) { return gelu(v); });
        case ActivationKind::gelu_tanh:
            return map_vectors(x, out, n, [](Floats v) { return gelu_tanh(v); });
        case ActivationKind::sigmoid:
            return map_vectors(x, out, n, [](Floats v) { return sigmoid(v); });
        case ActivationKind::tanh:
            return map_vectors(x, out, n, [](Floats v) { return hyperbolic_tangent(v); });
    }
}

template <Gate kind>
HEADWAY_INLINE void gate_by(const float* x, const float* up, float* out, int64_t n) {
    map_vectors(x, up, out, n, [](Floats a, Floats b) { return mul(apply_gate<kind>(a), b); });
}

void gate(Gate kind, const float* x, const float* up, float* out, int64_t n) {
    switch (kind) {
        case Gate::none:
            return gate_by<Gate::none>(x, up, out, n);
        case Gate::silu:
            return gate_by<Gate::silu>(x, up, out, n);
        case Gate::gelu:
            return gate_by<Gate::gelu>(x, up, out, n);
        case Gate::gelu_tanh:
            return gate_by<Gate::gelu_tanh>(x, up, out, n);
        case Gate::relu:
            return gate_by<Gate::relu>(x, up, out, n);
    }
}

void multiply(const float* x, const float* y, float* out, int64_t n) {
    map_vectors(x, y, out, n, [](Floats a, Floats b) { return mul(a, b); });
}

void add_vectors(const float* x, const float* y, float* out, int64_t n) {
    map_vectors(x, y, out, n, [](Floats a, Floats b) { return add(a, b); });
}

void scale_vector(const float* x, float factor, float* out, int64_t n) {
    map_vectors(x, out, n, [factor](Floats v) { return mul(v, splat(factor)); });
}

void soft_cap(const float* x, float factor, float cap, float* out, int64_t n) {
    if (cap == 0.0f) return scale_vector(x, factor, out, n);
    map_vectors(x, out, n, [factor, cap](Floats v) {
        return mul(splat(cap), hyperbolic_tangent(div(mul(v, splat(factor)), splat(cap))));
    });
}

// x - x is 0 for what is finite, else NaN, and a NaN stays in a sum.
bool is_finite(const float* x, int64_t n) {
    Floats sum = splat(0.0f);
    int64_t i = 0;
    for (; i + width <= n; i += width) {
        const Floats v = load(x + i);
        sum = add(sum, sub(v, v));
    }
    const Floats rest = load_some(x + i, static_cast<int>(n - i));
    return sum_lanes(add(sum, sub(rest, rest))) == 0.0f;
}

}  // namespace
}  // namespace headway
