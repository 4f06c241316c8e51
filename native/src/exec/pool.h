// An encoder's last op: one row of each sequence, all of whose tokens are in the step.
#pragma once

#include <cstdint>

#include "row_ops.h"

namespace headway {

enum class PoolKind : int32_t { cls = 0, mean = 1, max = 2, last = 3 };

// Works on selected rows, which must be one a sequence, in their order. Sums are in float32, first token first.
struct PoolRows final : RowOp {
    PoolKind kind;
    bool normalise;  // divided by its length
    Place in, out;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;

private:
    void pool(const StepContext& context, int32_t seq, float* to) const;
};

}  // namespace headway
