#include "head_columns.h"

#include <cstring>

namespace headway {

void CopyHeadRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    const size_t num_bytes = sizeof(float) * static_cast<size_t>(width);
    for (int32_t row = row_begin; row < row_end; ++row) {
        const float* from = context.at(in, row);
        float* to = context.at(out, row);
        for (int32_t head = 0; head < num_heads; ++head) {
            std::memcpy(to + static_cast<int64_t>(head) * out_step, from + static_cast<int64_t>(head) * in_step, num_bytes);
        }
    }
}

}  // namespace headway
