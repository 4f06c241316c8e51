// The tables of instruction sets that this machine need not have, on AVX2: the same source, other intrinsics.
#pragma once

#include <vector>

#include "exec/exec_kernels.h"
#include "row_kernels.h"

namespace headway {

extern const ExecKernels emulated_avx2_vnni;
extern const ExecKernels emulated_avx512;
extern const ExecKernels emulated_avx512_bf16;
extern const RowKernels emulated_row_kernels_avx512;

}  // namespace headway

namespace headway_tests {

// Named "emulated ..."; none on a machine without AVX2. They have the bits of the manuals: a processor's own bfloat16
// products may round otherwise.
std::vector<const headway::ExecKernels*> emulated_tables();
std::vector<const headway::RowKernels*> emulated_row_tables();

}  // namespace headway_tests
