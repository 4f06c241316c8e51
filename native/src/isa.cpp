#include "isa.h"

#include <cstdlib>
#include <stdexcept>

namespace headway {

namespace {

bool is_available(Isa isa) {
    switch (isa) {
        case Isa::plain:
            return true;
#ifdef HEADWAY_X86
        case Isa::avx2:
            return __builtin_cpu_supports("avx2");
        case Isa::avx512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
        default:
            return false;
    }
}

constexpr Isa all_isas[] = {Isa::plain, Isa::avx2, Isa::avx512};

}  // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx2:
            return "avx2";
        case Isa::avx512:
            return "avx512";
        default:
            return "plain";
    }
}

std::vector<Isa> available_isas() {
    std::vector<Isa> found;
    for (Isa isa : all_isas) {
        if (is_available(isa)) found.push_back(isa);
    }
    return found;
}

Isa choose_isa() {
    const std::vector<Isa> available = available_isas();
    const char* wanted = std::getenv("HEADWAY_ISA");
    if (wanted == nullptr || *wanted == '\0') return available.back();
    std::string names;
    for (Isa isa : available) {
        if (std::string(wanted) == isa_name(isa)) return isa;
        names += names.empty() ? "" : ", ";
        names += isa_name(isa);
    }
    throw std::invalid_argument("HEADWAY_ISA is '" + std::string(wanted) + "'; this machine and build have " + names);
}

const RowKernels& row_kernels(Isa isa) {
#ifdef HEADWAY_X86
    if (isa == Isa::avx512) return row_kernels_avx512;
    if (isa == Isa::avx2) return row_kernels_avx2;
#endif
    (void)isa;
    return row_kernels_plain;
}

}  // namespace headway
