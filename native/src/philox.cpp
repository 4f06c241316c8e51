#include "philox.h"

namespace headway {

namespace {

struct Product {
    uint64_t high;
    uint64_t low;
};

Product multiply(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return {static_cast<uint64_t>(product >> 64), static_cast<uint64_t>(product)};
}

}  // namespace

std::array<uint64_t, 4> philox4x64(std::array<uint64_t, 4> counter, std::array<uint64_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const Product first = multiply(0xD2E7470EE14C6C93u, counter[0]);
        const Product second = multiply(0xCA5A826395121157u, counter[2]);
        counter = {second.high ^ counter[1] ^ key[0], second.low, first.high ^ counter[3] ^ key[1], first.low};
        key[0] += 0x9E3779B97F4A7C15u;
        key[1] += 0xBB67AE8584CAA73Bu;
    }
    return counter;
}

double uniform_noise(uint64_t seed, uint64_t choice, uint64_t position) {
    const uint64_t bits = philox4x64({position, 0, 0, 0}, {seed, choice})[0];
    return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace headway
