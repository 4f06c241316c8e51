// Which instruction sets the kernels can run on, and which one is used.
#pragma once

#include <string>
#include <vector>

#include "exec/exec_kernels.h"
#include "row_kernels.h"

namespace headway {

//   avx2         AVX2, FMA and F16C
//   avx2_vnni    and AVX-VNNI
//   avx512       AVX-512 F, BW, DQ, VL and VNNI
//   avx512_bf16  and BF16
enum class Isa { plain, avx2, avx2_vnni, avx512, avx512_bf16 };

const char* isa_name(Isa isa);

// What this machine (its operating system included) has and this build knows, the slowest first; plain is always there.
std::vector<Isa> available_isas();

// The one that the environment variable HEADWAY_ISA names, else the fastest that is available.
// Throws std::invalid_argument on a name that is unknown or not available here.
Isa choose_isa();

// The same, or where that one multiplies bfloat16 the next slower one, which multiplies float32 rows.
Isa choose_float_isa();

// The sampler's loops; avx2_vnni and avx512_bf16 have nothing of their own there.
const RowKernels& row_kernels(Isa isa);

// The kernels of a step.
const ExecKernels& exec_kernels(Isa isa);

}  // namespace headway
