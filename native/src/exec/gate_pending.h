// gate() until elementwise_impl.h has it.
#pragma once

#include <stdint.h>

#include "matrix.h"

namespace headway {
namespace {

inline float gated(Gate kind, float x) {
    switch (kind) {
        case Gate::silu: return x / (1.0f + __builtin_expf(-x));
        case Gate::gelu: return 0.5f * x * (1.0f + __builtin_erff(x * 0.70710678118654752f));
        case Gate::gelu_tanh: return 0.5f * x * (1.0f + __builtin_tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        case Gate::relu: return x > 0.0f ? x : 0.0f;
        case Gate::none: break;
    }
    return x;
}

inline void gate(Gate kind, const float* x, const float* up, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = gated(kind, x[i]) * up[i];
}

}  // namespace
}  // namespace headway
