#include "packing.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "float16.h"

namespace headway {
namespace {

constexpr int64_t cache_line = 64;
constexpr int64_t huge_page = int64_t{1} << 21;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int64_t value_bytes_a_group(Form form) {
    constexpr int64_t values = int64_t{panel_lanes} * group_cols;
    switch (form) {
        case Form::f32: return values * 4;
        case Form::bf16: return values * 2;
        case Form::q8: return values;
        default: return values / 2;
    }
}

bool is_known(const MatrixFormat& format) {
    if (format.form == Form::bf16) return format == bf16_format;
    if (format.form == Form::f32) return format == f32_format;
    const bool is_q6_k = format == form_of(GgmlType::q6_k);
    return (format.form == Form::q8 || format.form == Form::q4) && (format.group == 32 || is_q6_k);
}

// All of a view but its data. Throws std::invalid_argument.
MatrixView lay_out(const MatrixFormat& format, int32_t num_rows, int32_t num_cols) {
    if (num_rows < 1 || num_cols < 1) {
        throw std::invalid_argument("a matrix of " + std::to_string(num_rows) + " rows and " + std::to_string(num_cols) +
                                    " columns: both must be at least 1");
    }
    if (!is_known(format)) {
        throw std::invalid_argument("no tensor type has form " + std::to_string(static_cast<int>(format.form)) +
                                    " in groups of " + std::to_string(format.group) + " with these scales and mins");
    }
    MatrixView view{};
    view.form = format.form;
    view.group = format.group;
    view.has_min = format.has_min;
    view.wide_scales = format.wide_scales;
    view.num_rows = num_rows;
    view.num_cols = num_cols;
    view.num_panels = static_cast<int32_t>(round_up(num_rows, panel_lanes) / panel_lanes);
    view.num_groups = static_cast<int32_t>(round_up(num_cols, group_cols) / group_cols);
    const int64_t scales_a_group = int64_t{panel_lanes} * (group_cols / format.group);
    const bool is_float = format.form == Form::bf16 || format.form == Form::f32;
    const int64_t scale_bytes = is_float ? 0 : scales_a_group * (format.wide_scales ? 4 : 2);
    const int64_t all_scale_bytes = round_up(view.num_groups * scale_bytes, cache_line);
    view.scales_offset = view.num_groups * value_bytes_a_group(format.form);
    view.mins_offset = view.scales_offset + all_scale_bytes;
    view.panel_bytes = view.mins_offset + (format.has_min ? all_scale_bytes : 0);
    return view;
}

[[noreturn]] void throw_out_of_memory(int64_t num_bytes) {
    const int64_t free_bytes = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    throw OutOfMemory("cannot allocate " + std::to_string(num_bytes) + " bytes; the machine has " +
                      std::to_string(free_bytes) + " free, and limits (ulimit -v, cgroup) may leave less");
}

void check_finite(const float* values, int32_t count, int32_t row) {
    for (int32_t i = 0; i < count; ++i) {
        if (!std::isfinite(values[i])) {
            throw std::domain_error("packed row " + std::to_string(row) + " has the weight " + std::to_string(values[i]) +
                                    ", which cannot be quantised; load without quantization");
        }
    }
}

// A scale as float16, never smaller than it should be by more than a code can bear: subnormal ones are rounded up.
uint16_t half_scale(float scale, int32_t row) {
    uint16_t half = f16_of_float(scale);
    if (half < 0x0400u && float_of_f16(half) < scale) ++half;
    if (half >= 0x7c00u) {
        throw std::domain_error("packed row " + std::to_string(row) + " needs the scale " + std::to_string(scale) +
                                ", over float16's largest, 65504; load without quantization");
    }
    return half;
}

uint8_t code_of(float value, float scale, float low, float high) {
    if (scale == 0.0f) return 0;
    return static_cast<uint8_t>(static_cast<int>(std::nearbyint(std::clamp(value / scale, low, high))));
}

// Symmetric: the largest |value| becomes 127. Columns from count on are zeros.
void quantise_int8(const float* values, int32_t count, int32_t row, QuantisedGroup& out) {
    float largest = 0.0f;
    for (int32_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
    out.scales[0] = out.scales[1] = half_scale(largest / 127.0f, row);
    const float scale = float_of_f16(static_cast<uint16_t>(out.scales[0]));
    std::memset(out.q, 128, sizeof out.q);
    for (int32_t i = 0; i < count; ++i) {
        out.q[i] = static_cast<uint8_t>(128 + static_cast<int8_t>(code_of(values[i], scale, -127.0f, 127.0f)));
    }
}

// The smallest value becomes min, the largest 15.
void quantise_int4(const float* values, int32_t count, int32_t row, QuantisedGroup& out) {
    const auto [lowest, highest] = std::minmax_element(values, values + count);
    const uint16_t min_bits = f16_of_float(*lowest);
    const float min = float_of_f16(min_bits);
    if (!std::isfinite(min)) half_scale(std::fabs(*lowest), row);
    out.min = min_bits;
    out.scales[0] = out.scales[1] = half_scale(std::max(0.0f, *highest - min) / 15.0f, row);
    const float scale = float_of_f16(static_cast<uint16_t>(out.scales[0]));
    std::memset(out.q, 0, sizeof out.q);
    for (int32_t i = 0; i < count; ++i) out.q[i] = code_of(values[i] - min, scale, 0.0f, 15.0f);
}

float scale_at(const MatrixView& view, const uint8_t* scales, int64_t index) {
    if (view.wide_scales) return reinterpret_cast<const float*>(scales)[index];
    return float_of_f16(reinterpret_cast<const uint16_t*>(scales)[index]);
}

int code_at(const MatrixView& view, const uint8_t* panel, int32_t lane, int32_t k) {
    const int32_t inner = k % group_cols;
    const uint8_t* codes = panel + k / group_cols * value_bytes_a_group(view.form) + lane * 4 + inner % 4;
    if (view.form == Form::q8) return codes[inner / 4 * 64] - 128;
    const int code = codes[inner % 16 / 4 * 64] >> (inner / 16 * 4) & 15;
    return view.has_min ? code : code - 8;
}

}  // namespace

PageBuffer::PageBuffer(int64_t num_bytes) {
    if (num_bytes <= 0) return;
    void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw_out_of_memory(num_bytes);
    if (num_bytes >= huge_page) madvise(memory, num_bytes, MADV_HUGEPAGE);  // only advice: small pages are right, too
    data_ = static_cast<uint8_t*>(memory);
    num_bytes_ = num_bytes;
}

PageBuffer::~PageBuffer() {
    if (data_ != nullptr) munmap(data_, num_bytes_);
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
}

int64_t packed_bytes(const MatrixFormat& format, int32_t num_rows, int32_t num_cols) {
    const MatrixView view = lay_out(format, num_rows, num_cols);
    return view.num_panels * view.panel_bytes;
}

PackedMatrix::PackedMatrix(const MatrixFormat& format, int32_t num_rows, int32_t num_cols)
    : view_(lay_out(format, num_rows, num_cols)), memory_(view_.num_panels * view_.panel_bytes) {
    view_.data = memory_.data();
}

uint8_t* PackedMatrix::panel_of(int32_t row) const { return memory_.data() + row / panel_lanes * view_.panel_bytes; }

void PackedMatrix::check_row(int32_t row) const {
    if (row < 0 || row >= view_.num_rows) {
        throw std::out_of_range("row " + std::to_string(row) + " of a matrix of " + std::to_string(view_.num_rows));
    }
}

void PackedMatrix::pack(GgmlType type, const uint8_t* rows, int32_t num_src_rows, const int32_t* dest_rows) {
    const MatrixFormat own = format();
    const bool converts = is_float_type(type) && (own == int8_format || own == int4_format || own == f32_format);
    if (!converts && form_of(type) != own) {
        throw std::invalid_argument(std::string(ggml_type_name(type)) + " rows do not go into this matrix's form");
    }
    const int64_t row_bytes = row_bytes_of(type, view_.num_cols);
    for (int32_t i = 0; i < num_src_rows; ++i) {
        const int32_t row = dest_rows == nullptr ? i : dest_rows[i];
        check_row(row);
        if (view_.form == Form::bf16) {
            pack_bf16_row(type, rows + i * row_bytes, row);
        } else if (view_.form == Form::f32) {
            pack_f32_row(type, rows + i * row_bytes, row);
        } else {
            pack_quantised_row(type, rows + i * row_bytes, row);
        }
    }
}

void PackedMatrix::pack_bf16_row(GgmlType type, const uint8_t* source, int32_t row) {
    auto* lane = reinterpret_cast<uint16_t*>(panel_of(row)) + row % panel_lanes * 2;
    float values[group_cols];
    for (int32_t begin = 0; begin < view_.num_cols; begin += group_cols) {
        const int32_t count = std::min(group_cols, view_.num_cols - begin);
        read_floats(type, source, begin, count, values);
        for (int32_t i = 0; i < count; ++i) {
            lane[(begin + i) / 2 * panel_lanes * 2 + i % 2] = bf16_of_float(values[i]);
        }
    }
}

void PackedMatrix::pack_f32_row(GgmlType type, const uint8_t* source, int32_t row) {
    auto* lane = reinterpret_cast<float*>(panel_of(row)) + row % panel_lanes;
    float values[group_cols];
    for (int32_t begin = 0; begin < view_.num_cols; begin += group_cols) {
        const int32_t count = std::min(group_cols, view_.num_cols - begin);
        read_floats(type, source, begin, count, values);
        for (int32_t i = 0; i < count; ++i) lane[int64_t{begin + i} * panel_lanes] = values[i];
    }
}

void PackedMatrix::pack_quantised_row(GgmlType type, const uint8_t* source, int32_t row) {
    QuantisedGroup packed{};
    float values[group_cols];
    for (int32_t group = 0; group < view_.num_groups; ++group) {
        if (is_float_type(type)) {
            const int32_t count = std::min(group_cols, view_.num_cols - group * group_cols);
            read_floats(type, source, group * group_cols, count, values);
            check_finite(values, count, row);
            (view_.form == Form::q8 ? quantise_int8 : quantise_int4)(values, count, row, packed);
        } else {
            read_group(type, source, group, packed);
        }
        write_group(row, group, packed);
    }
}

void PackedMatrix::write_group(int32_t row, int32_t group, const QuantisedGroup& values) {
    const int32_t lane = row % panel_lanes;
    uint8_t* panel = panel_of(row);
    uint8_t* codes = panel + group * value_bytes_a_group(view_.form) + lane * 4;
    if (view_.form == Form::q8) {
        for (int i = 0; i < 8; ++i) std::memcpy(codes + i * 64, values.q + i * 4, 4);
    } else {
        for (int i = 0; i < 16; ++i) {
            codes[i / 4 * 64 + i % 4] = static_cast<uint8_t>(values.q[i] | values.q[16 + i] << 4);
        }
    }
    const int64_t scale_bytes = view_.wide_scales ? 4 : 2;  // the low bytes of the bits: this is a little-endian format
    const int32_t scales_a_group = group_cols / view_.group;
    for (int32_t i = 0; i < scales_a_group; ++i) {
        const int64_t at = (int64_t{group} * scales_a_group + i) * panel_lanes + lane;
        std::memcpy(panel + view_.scales_offset + at * scale_bytes, &values.scales[i], scale_bytes);
    }
    if (view_.has_min) {
        const int64_t at = int64_t{group} * panel_lanes + lane;
        std::memcpy(panel + view_.mins_offset + at * scale_bytes, &values.min, scale_bytes);
    }
}

void PackedMatrix::dequantise_row(int32_t row, float* out) const {
    check_row(row);
    const uint8_t* panel = panel_of(row);
    const int32_t lane = row % panel_lanes;
    for (int32_t k = 0; k < view_.num_cols; ++k) {
        if (view_.form == Form::bf16) {
            const auto* pairs = reinterpret_cast<const uint16_t*>(panel);
            out[k] = float_of_bf16(pairs[(k / 2 * panel_lanes + lane) * 2 + k % 2]);
            continue;
        }
        if (view_.form == Form::f32) {
            out[k] = reinterpret_cast<const float*>(panel)[int64_t{k} * panel_lanes + lane];
            continue;
        }
        const int64_t at = int64_t{k / view_.group} * panel_lanes + lane;
        const float value = scale_at(view_, panel + view_.scales_offset, at) * static_cast<float>(code_at(view_, panel, lane, k));
        out[k] = view_.has_min ? value + scale_at(view_, panel + view_.mins_offset, at) : value;
    }
}

}  // namespace headway
