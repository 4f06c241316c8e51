// Philox4x64-10, a counter-based generator: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC11. numpy.random.Philox is the same function.
#pragma once

#include <array>
#include <cstdint>

namespace headway {

std::array<uint64_t, 4> philox4x64(std::array<uint64_t, 4> counter, std::array<uint64_t, 2> key);

// The noise of one output position of one choice, uniform in [0, 1) with 53 bits: it depends on these three alone.
double uniform_noise(uint64_t seed, uint64_t choice, uint64_t position);

}  // namespace headway
