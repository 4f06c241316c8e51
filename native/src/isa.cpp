#include "isa.h"

#include <cstdlib>
#include <stdexcept>

namespace headway {

namespace {

struct IsaTables {
    Isa isa;
    const char* name;
    const RowKernels* rows;
    const ExecKernels* exec;
    bool (*is_available)();
};

bool is_always_there() { return true; }

// The builtin also asks (XGETBV) whether the operating system saves the wide registers.
#ifdef HEADWAY_X86
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx2_vnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

// In Isa's order.
constexpr IsaTables all_isas[] = {
    {Isa::plain, "plain", &row_kernels_plain, &exec_kernels_plain, is_always_there},
#ifdef HEADWAY_X86
    {Isa::avx2, "avx2", &row_kernels_avx2, &exec_kernels_avx2, has_avx2},
    {Isa::avx2_vnni, "avx2_vnni", &row_kernels_avx2, &exec_kernels_avx2_vnni, has_avx2_vnni},
    {Isa::avx512, "avx512", &row_kernels_avx512, &exec_kernels_avx512, has_avx512},
    {Isa::avx512_bf16, "avx512_bf16", &row_kernels_avx512, &exec_kernels_avx512_bf16, has_avx512_bf16},
#endif
};

const IsaTables& tables_of(Isa isa) {
    for (const IsaTables& tables : all_isas) {
        if (tables.isa == isa) return tables;
    }
    return all_isas[0];
}

}  // namespace

const char* isa_name(Isa isa) { return tables_of(isa).name; }

std::vector<Isa> available_isas() {
    std::vector<Isa> found;
    for (const IsaTables& tables : all_isas) {
        if (tables.is_available()) found.push_back(tables.isa);
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

const RowKernels& row_kernels(Isa isa) { return *tables_of(isa).rows; }

const ExecKernels& exec_kernels(Isa isa) { return *tables_of(isa).exec; }

Isa choose_float_isa() {
    const Isa chosen = choose_isa();
    return chosen == Isa::avx512_bf16 ? Isa::avx512 : chosen;
}

}  // namespace headway
