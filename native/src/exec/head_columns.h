// Columns of heads moved: a run of each head's columns, to where each head of the other value has it.
#pragma once

#include <cstdint>

#include "row_ops.h"

namespace headway {

// Head h: columns [h * in_step, + width) of `in` to columns [h * out_step, ..) of `out`. The two are different values.
struct CopyHeadRows final : RowOp {
    Place in, out;
    int32_t num_heads;
    int32_t width;
    int32_t in_step;
    int32_t out_step;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;
};

}  // namespace headway
