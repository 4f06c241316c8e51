// Products that are not there yet: whoever calls one stops here.
#pragma once

#include <stdint.h>

#include "matrix.h"

namespace headway {
namespace {

constexpr int32_t row_tile = 4;
constexpr bool multiplies_bf16 = false;

void quantise_rows(const float*, int64_t, int32_t, int32_t, const Activations*) { __builtin_trap(); }
void pack_rows(const float*, int64_t, int32_t, int32_t, const Activations*) { __builtin_trap(); }
void product(const MatrixView*, const Activations*, int32_t, int32_t, int32_t, int32_t, const ProductOut*) {
    __builtin_trap();
}
void read_row(const MatrixView*, int32_t, float, float*) { __builtin_trap(); }

}  // namespace
}  // namespace headway
