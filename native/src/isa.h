// Which instruction sets the kernels can run on, and which one is used.
#pragma once

#include <string>
#include <vector>

#include "row_kernels.h"

namespace headway {

enum class Isa { plain, avx2, avx512 };

const char* isa_name(Isa isa);

// What this machine has and this build knows, the slowest first; plain is always there.
std::vector<Isa> available_isas();

// The one that the environment variable HEADWAY_ISA names (plain, avx2 or avx512), else the fastest that is available.
// Throws std::invalid_argument on a name that is unknown or not available here.
Isa choose_isa();

const RowKernels& row_kernels(Isa isa);

}  // namespace headway
