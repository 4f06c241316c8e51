// How fast products are on one thread: GOPS (a multiplication and an addition are two) and the GB/s of weights, for the
// shapes of SmolLM2-135M and Qwen2.5-0.5B. The least processor time of many calls counts. Weights that are larger than the caches
// come from memory each time, as in a step; smaller ones are gone over in turn with enough others.
//
//   headway_bench_products [isa] [form: bf16 q8 q4 q4min q6k]

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "exec/packing.h"
#include "isa.h"

namespace {

using namespace headway;

// Of this thread: what other programs do to a shared machine is left out, as far as it goes.
double processor_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Shape {
    int32_t num_rows, num_cols;
};

constexpr Shape shapes[] = {{960, 576},  {576, 576},  {3072, 576}, {576, 1536},  {49152, 576},
                            {1152, 896}, {896, 896},  {9728, 896}, {896, 4864}, {151936, 896}};
constexpr int32_t row_counts[] = {1, 2, 4, 8, 16, 32, 64, 512};
constexpr int64_t least_weight_bytes = int64_t{96} << 20;  // more than the caches hold
constexpr double seconds_a_case = 0.15;

struct NamedFormat {
    const char* name;
    MatrixFormat format;
};

const NamedFormat formats[] = {{"bf16", bf16_format},
                               {"q8", int8_format},
                               {"q4", {Form::q4, 32, false, false}},
                               {"q4min", int4_format},
                               {"q6k", form_of(GgmlType::q6_k)}};

// Codes of any kind: speed does not depend on them. Scales and mins are zeros, so that nothing overflows.
PackedMatrix make_matrix(const MatrixFormat& format, const Shape& shape) {
    PackedMatrix matrix(format, shape.num_rows, shape.num_cols);
    auto* bytes = const_cast<uint8_t*>(matrix.view().data);
    for (int32_t panel = 0; panel < matrix.view().num_panels; ++panel) {
        const int64_t count = format.form == Form::bf16 ? matrix.view().panel_bytes : matrix.view().scales_offset;
        std::memset(bytes + panel * matrix.view().panel_bytes, 0x35, count);
    }
    return matrix;
}

struct Rows {
    Rows(const ExecKernels& kernels, int32_t num_rows, int32_t num_cols) : num_groups((num_cols + 31) / 32) {
        const size_t values = static_cast<size_t>(num_rows) * num_groups * 32;
        x.assign(static_cast<size_t>(num_rows) * num_cols, 0.5f);
        q.resize(values), bf16.resize(values), f32.resize(values);
        scales.resize(num_rows * num_groups), sums.resize(2 * num_rows * num_groups);
        a = {num_rows, num_cols, num_groups, q.data(), scales.data(), sums.data(), bf16.data(), f32.data()};
        prepare(kernels);
    }
    void prepare(const ExecKernels& kernels) {
        kernels.quantise_rows(x.data(), a.num_cols, 0, a.num_rows, &a);
        kernels.pack_rows(x.data(), a.num_cols, 0, a.num_rows, &a);
    }
    int32_t num_groups;
    std::vector<float> x, f32, scales;
    std::vector<int8_t> q;
    std::vector<uint16_t> bf16;
    std::vector<int32_t> sums;
    Activations a{};
};

template <typename Act>
double least_seconds(Act act) {
    double least = 1e9;
    const double begin = processor_seconds();
    for (int repeat = 0; repeat < 3 || processor_seconds() - begin < seconds_a_case; ++repeat) {
        const double start = processor_seconds();
        act(repeat);
        least = std::min(least, processor_seconds() - start);
    }
    return least;
}

void bench_shape(const ExecKernels& kernels, const NamedFormat& named, const Shape& shape) {
    std::vector<PackedMatrix> matrices;
    int64_t bytes = 0;
    while (bytes < least_weight_bytes) {
        matrices.push_back(make_matrix(named.format, shape));
        bytes += matrices.back().num_bytes();
    }
    const double matrix_bytes = static_cast<double>(matrices[0].num_bytes());
    std::printf("%-12s %-6s %6d x %-5d", kernels.name, named.name, shape.num_rows, shape.num_cols);
    for (int32_t num_rows : row_counts) {
        if (num_rows * int64_t{shape.num_rows} > int64_t{1} << 24) continue;  // logits are made of few rows
        Rows rows(kernels, num_rows, shape.num_cols);
        std::vector<float> made(static_cast<size_t>(num_rows) * shape.num_rows);
        ProductOut out{};
        out.out = made.data();
        out.ld = shape.num_rows;
        out.scale = 1.0f;
        const double seconds = least_seconds([&](int repeat) {
            const MatrixView& view = matrices[repeat % matrices.size()].view();
            kernels.product(&view, &rows.a, 0, num_rows, 0, view.num_panels, &out);
        });
        const double operations = 2.0 * num_rows * shape.num_rows * shape.num_cols;
        std::printf("  %3d: %5.0f GOPS", num_rows, operations / seconds * 1e-9);
        if (num_rows <= 8) std::printf(" %4.1f GB/s", matrix_bytes / seconds * 1e-9);
    }
    std::printf("\n");
    std::fflush(stdout);
}

void bench_rows(const ExecKernels& kernels) {
    for (int32_t num_rows : {1, 512}) {
        Rows rows(kernels, num_rows, 576);
        const double values = 576.0 * num_rows;
        const double quantise = least_seconds([&](int) { kernels.quantise_rows(rows.x.data(), 576, 0, num_rows, &rows.a); });
        const double pack = least_seconds([&](int) { kernels.pack_rows(rows.x.data(), 576, 0, num_rows, &rows.a); });
        std::printf("%-12s %d rows of 576: quantise %.2f ns a value, pack %.2f\n", kernels.name, num_rows,
                    quantise / values * 1e9, pack / values * 1e9);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string wanted_isa = argc > 1 ? argv[1] : "";
    const std::string wanted_form = argc > 2 ? argv[2] : "";
    for (Isa isa : available_isas()) {
        const ExecKernels& kernels = exec_kernels(isa);
        if (!wanted_isa.empty() && wanted_isa != kernels.name) continue;
        bench_rows(kernels);
        for (const NamedFormat& named : formats) {
            if (!wanted_form.empty() && wanted_form != named.name) continue;
            for (const Shape& shape : shapes) bench_shape(kernels, named, shape);
        }
    }
}
