// headway._native: matrices in their run forms, and the threads that pack them (headway.executor.native_weights).

#include <algorithm>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.h"
#include "exec/packing.h"
#include "exec/workers.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {

namespace {

GgmlType type_of(const std::string& name) {
    for (GgmlType type : {GgmlType::f32, GgmlType::f16, GgmlType::q4_0, GgmlType::q4_1, GgmlType::q5_0, GgmlType::q5_1,
                          GgmlType::q8_0, GgmlType::q4_k, GgmlType::q5_k, GgmlType::q6_k, GgmlType::bf16}) {
        if (name == ggml_type_name(type)) return type;
    }
    throw std::invalid_argument("there is no form for tensors of type " + name);
}

Form form_named(const std::string& name) {
    if (name == "bf16") return Form::bf16;
    if (name == "f32") return Form::f32;
    if (name == "q8") return Form::q8;
    if (name == "q4") return Form::q4;
    throw std::invalid_argument("form is '" + name + "'; it must be f32, bf16, q8 or q4");
}

// A tensor's rows shared out over threads; the first fault is kept.
class PackJob final : public Job {
public:
    PackJob(PackedMatrix& matrix, GgmlType type, const uint8_t* rows, int32_t num_rows, const int32_t* dest_rows,
            int64_t row_bytes)
        : matrix_(matrix), type_(type), rows_(rows), num_rows_(num_rows), dest_rows_(dest_rows), row_bytes_(row_bytes) {}

    int32_t num_stages() const override { return 1; }
    int32_t begin(int32_t) override { return (num_rows_ + rows_an_item - 1) / rows_an_item; }

    void run(int32_t, int32_t item, int) override {
        const int32_t begin = item * rows_an_item;
        const int32_t count = std::min(rows_an_item, num_rows_ - begin);
        try {
            matrix_.pack(type_, rows_ + begin * row_bytes_, count, dest_rows_ + begin);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!fault_) fault_ = std::current_exception();
        }
    }

    void rethrow() const {
        if (fault_) std::rethrow_exception(fault_);
    }

private:
    static constexpr int32_t rows_an_item = 64;

    PackedMatrix& matrix_;
    GgmlType type_;
    const uint8_t* rows_;
    int32_t num_rows_;
    const int32_t* dest_rows_;
    int64_t row_bytes_;
    std::mutex mutex_;
    std::exception_ptr fault_;
};

void pack(PackedMatrix& matrix, const std::string& type_name, Array<const uint8_t, 1> data,
          Array<const int32_t, 1> dest_rows, Workers& workers) {
    const GgmlType type = type_of(type_name);
    const int64_t row_bytes = row_bytes_of(type, matrix.view().num_cols);
    const auto num_rows = static_cast<int32_t>(dest_rows.shape(0));
    require(static_cast<int64_t>(data.shape(0)) == row_bytes * num_rows, "the data is not of so many rows");
    PackJob job(matrix, type, data.data(), num_rows, dest_rows.data(), row_bytes);
    {
        const nb::gil_scoped_release no_gil;
        workers.run(job);
    }
    job.rethrow();
}

void dequantise(const PackedMatrix& matrix, Array<float, 2> out) {
    const MatrixView& view = matrix.view();
    require(out.shape(0) == static_cast<size_t>(view.num_rows) && out.shape(1) == static_cast<size_t>(view.num_cols),
            "out has another shape than the matrix");
    for (int32_t row = 0; row < view.num_rows; ++row) {
        matrix.dequantise_row(row, out.data() + static_cast<int64_t>(row) * view.num_cols);
    }
}

}  // namespace

void bind_matrix(nb::module_& module) {
    nb::class_<Workers>(module, "Workers", "The threads that steps run on; they sleep between steps.")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("threads", &Workers::num_threads);
    nb::class_<PackedMatrix>(module, "PackedMatrix", "A weight in a run form; see native/src/exec/matrix.h.")
        .def(
            "__init__",
            [](PackedMatrix* self, const std::string& form, int32_t group, bool has_min, bool wide_scales,
               int32_t num_rows, int32_t num_cols) {
                new (self) PackedMatrix({form_named(form), group, has_min, wide_scales}, num_rows, num_cols);
            },
            "form"_a, nb::kw_only(), "group"_a, "has_min"_a, "wide_scales"_a, "num_rows"_a, "num_cols"_a)
        .def_prop_ro("num_bytes", &PackedMatrix::num_bytes)
        .def_prop_ro("shape", [](const PackedMatrix& self) { return std::make_tuple(self.view().num_rows, self.view().num_cols); })
        .def("pack", &pack, "type"_a, "data"_a.noconvert(), "dest_rows"_a.noconvert(), "workers"_a,
             "Row i of a file's tensor becomes row dest_rows[i].")
        .def("dequantise", &dequantise, "out"_a.noconvert(), "All of it as float32.");
}

}  // namespace headway
