// Which experts a row goes to, and how much each of them counts.
#pragma once

#include <cstdint>

#include "row_ops.h"

namespace headway {

enum class Scoring : int32_t { softmax = 0, sigmoid = 1 };

constexpr int32_t max_experts = 1024;

// headway.model.ops.Route: out[row, expert] is what the expert's result is multiplied by, 0 for those not chosen. Of a row
// with a number that is not finite the first top_k are NaN.
struct RouteRows final : RowOp {
    Place in, out;  // width: experts, at most max_experts; may be the same
    Scoring scoring;
    int32_t top_k;
    int32_t num_groups;
    int32_t top_groups;
    int32_t num_counted;  // a group is worth so many of its largest, together
    const float* bias;    // [experts] or null
    bool normalise;
    float scale;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;

private:
    bool score(const float* logits, float* scores) const;
    void keep_best_groups(float* choice) const;
    float worth(const float* choice, int32_t size) const;
    void choose(const float* scores, float* choice, float* weights) const;
};

}  // namespace headway
