#include "tables.h"

namespace headway_tests {
namespace {

headway::ExecKernels named(headway::ExecKernels kernels, const char* name) {
    kernels.name = name;
    return kernels;
}

bool can_emulate() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace

std::vector<const headway::ExecKernels*> emulated_tables() {
    if (!can_emulate()) return {};
    static const headway::ExecKernels tables[] = {
        named(headway::emulated_avx2_vnni, "emulated avx2_vnni"),
        named(headway::emulated_avx512, "emulated avx512"),
        named(headway::emulated_avx512_bf16, "emulated avx512_bf16"),
    };
    return {&tables[0], &tables[1], &tables[2]};
}

std::vector<const headway::RowKernels*> emulated_row_tables() {
    if (!can_emulate()) return {};
    return {&headway::emulated_row_kernels_avx512};
}

}  // namespace headway_tests
