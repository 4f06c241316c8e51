// A weight matrix in the layout of matrix.h, with its memory: raw rows of a checkpoint go in, a MatrixView comes out.
// Who loads makes one a matrix, packs rows from any number of threads, and then shares views.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "ggml_blocks.h"
#include "matrix.h"

namespace headway {

// Memory that the system did not give; what() names the bytes needed and those free.
struct OutOfMemory : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Anonymous memory: zeros, 64-byte aligned (whole pages), in huge pages where the system has them. Throws OutOfMemory.
class PageBuffer {
public:
    PageBuffer() = default;
    explicit PageBuffer(int64_t num_bytes);
    ~PageBuffer();
    PageBuffer(PageBuffer&& other) noexcept;
    PageBuffer& operator=(PageBuffer&& other) noexcept;
    PageBuffer(const PageBuffer&) = delete;
    PageBuffer& operator=(const PageBuffer&) = delete;

    uint8_t* data() const { return data_; }
    int64_t num_bytes() const { return num_bytes_; }

private:
    uint8_t* data_ = nullptr;
    int64_t num_bytes_ = 0;
};

class PackedMatrix {
public:
    // All zeros. Throws std::invalid_argument on sizes under 1 or a format that no type has, OutOfMemory.
    PackedMatrix(const MatrixFormat& format, int32_t num_rows, int32_t num_cols);

    // Packs num_src_rows rows of a file, row_bytes_of(type, num_cols) bytes each, into the rows dest_rows [num_src_rows]
    // (null: 0, 1, ..). A type goes into its own form (form_of); floats go into f32_format too, and are quantised into
    // int8_format (symmetric) and int4_format (scale and min). Any number of threads may pack at once, as long as their rows are different.
    // Throws std::invalid_argument on a type that does not go into this form, std::out_of_range on a row that is not
    // there, std::domain_error on a float that cannot be quantised (not finite, or too large for a float16 scale).
    void pack(GgmlType type, const uint8_t* rows, int32_t num_src_rows, const int32_t* dest_rows);

    // Row `row` as float32 [num_cols]: scale * (q - offset) + min, rounded after each. Throws std::out_of_range.
    void dequantise_row(int32_t row, float* out) const;

    const MatrixView& view() const { return view_; }
    MatrixFormat format() const { return {view_.form, view_.group, view_.has_min, view_.wide_scales}; }
    int64_t num_bytes() const { return memory_.num_bytes(); }

private:
    uint8_t* panel_of(int32_t row) const;
    void check_row(int32_t row) const;
    void pack_bf16_row(GgmlType type, const uint8_t* source, int32_t row);
    void pack_f32_row(GgmlType type, const uint8_t* source, int32_t row);
    void pack_quantised_row(GgmlType type, const uint8_t* source, int32_t row);
    void write_group(int32_t row, int32_t group, const QuantisedGroup& values);

    MatrixView view_{};
    PageBuffer memory_;
};

// The bytes that a PackedMatrix takes.
int64_t packed_bytes(const MatrixFormat& format, int32_t num_rows, int32_t num_cols);

}  // namespace headway
