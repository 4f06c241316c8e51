// The tensor types of GGUF files as groups of 32 columns: which run form takes a type without changing a value, and the
// groups themselves. F32, F16 and BF16 are those of safetensors files, too.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace headway {

enum class GgmlType : int32_t {
    f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, q4_k = 12, q5_k = 13, q6_k = 14, bf16 = 30
};

// How a matrix is held: the first four fields of MatrixView.
struct MatrixFormat {
    Form form;
    int32_t group;
    bool has_min;
    bool wide_scales;
    bool operator==(const MatrixFormat&) const = default;
};

inline constexpr MatrixFormat bf16_format{Form::bf16, 32, false, false};
inline constexpr MatrixFormat f32_format{Form::f32, 32, false, false};   // floats as they are
inline constexpr MatrixFormat int8_format{Form::q8, 32, false, false};  // what floats are quantised to: symmetric
inline constexpr MatrixFormat int4_format{Form::q4, 32, true, false};   // and with scale and min

// Throws std::invalid_argument on a number that is none of GgmlType, with the list.
GgmlType ggml_type(int32_t number);
const char* ggml_type_name(GgmlType type);

// The form that a type expands into. No value changes but those of F32 and F16, which are rounded to bfloat16.
//   F32, F16, BF16 -> bf16      Q8_0, Q5_0 -> q8      Q5_1 -> q8 + min      Q4_0 -> q4      Q4_1 -> q4 + min
//   Q4_K -> q4 + min, wide      Q5_K -> q8 + min, wide                      Q6_K -> q8, groups of 16, wide
MatrixFormat form_of(GgmlType type);

bool is_float_type(GgmlType type);

// Bytes of a row. Throws std::invalid_argument where num_cols is no multiple of the type's block.
int64_t row_bytes_of(GgmlType type, int32_t num_cols);

// 32 columns of a row: q as it is stored (with the form's offset), scales and min as bits of float16 or float32.
// scales[1] is the second half's where groups have 16 columns.
struct QuantisedGroup {
    uint8_t q[group_cols];
    uint32_t scales[2];
    uint32_t min;
};

// Group `group` of a row of a quantised type.
void read_group(GgmlType type, const uint8_t* row, int32_t group, QuantisedGroup& out);

// Columns [begin, begin + count) of a row of a float type.
void read_floats(GgmlType type, const uint8_t* row, int32_t begin, int32_t count, float* out);

}  // namespace headway
