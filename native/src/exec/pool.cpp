#include "pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace headway {

namespace {

// As torch's normalize: a vector shorter than this is divided by it.
constexpr float least_length = 1e-12f;

void normalise_row(float* row, int32_t width) {
    double squares = 0.0;
    for (int32_t i = 0; i < width; ++i) squares += static_cast<double>(row[i]) * row[i];
    const float length = std::max(static_cast<float>(std::sqrt(squares)), least_length);
    for (int32_t i = 0; i < width; ++i) row[i] /= length;
}

}  // namespace

void PoolRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    for (int32_t seq = row_begin; seq < row_end; ++seq) {
        float* to = context.at(out, seq);
        pool(context, seq, to);
        if (normalise) normalise_row(to, out.width);
    }
}

void PoolRows::pool(const StepContext& context, int32_t seq, float* to) const {
    const int32_t begin = context.step->query_starts[seq], end = context.step->query_starts[seq + 1];
    const int32_t first = kind == PoolKind::last ? end - 1 : begin;
    std::memcpy(to, context.at(in, first), sizeof(float) * out.width);
    if (kind == PoolKind::cls || kind == PoolKind::last) return;
    for (int32_t token = begin + 1; token < end; ++token) {
        const float* row = context.at(in, token);
        if (kind == PoolKind::mean) {
            for (int32_t i = 0; i < out.width; ++i) to[i] += row[i];
        } else {
            // NaN stays: a wrong vector must not look right.
            for (int32_t i = 0; i < out.width; ++i) to[i] = to[i] >= row[i] || std::isnan(to[i]) ? to[i] : row[i];
        }
    }
    if (kind != PoolKind::mean) return;
    const float count = static_cast<float>(end - begin);
    for (int32_t i = 0; i < out.width; ++i) to[i] /= count;
}

}  // namespace headway
