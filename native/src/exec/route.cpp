#include "route.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headway {

namespace {

constexpr float nothing = -std::numeric_limits<float>::infinity();

// The largest, of equal ones the lowest.
int32_t find_largest(const float* values, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; ++i) {
        if (values[i] > values[best]) best = i;
    }
    return best;
}

}  // namespace

void RouteRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    float scores[max_experts], choice[max_experts];
    for (int32_t row = row_begin; row < row_end; ++row) {
        float* weights = context.at(out, row);
        const bool is_finite = score(context.at(in, row), scores);
        std::fill_n(weights, in.width, 0.0f);
        if (!is_finite) {
            std::fill_n(weights, top_k, std::numeric_limits<float>::quiet_NaN());
            continue;
        }
        for (int32_t i = 0; i < in.width; ++i) choice[i] = bias == nullptr ? scores[i] : scores[i] + bias[i];
        if (top_groups < num_groups) keep_best_groups(choice);
        choose(scores, choice, weights);
    }
}

// In double, so that no order of additions shows. False where a score is not finite.
bool RouteRows::score(const float* logits, float* scores) const {
    const float largest = *std::max_element(logits, logits + in.width);
    double sum = 0.0;
    for (int32_t i = 0; i < in.width; ++i) {
        if (!std::isfinite(logits[i])) return false;
        if (scoring == Scoring::softmax) {
            sum += std::exp(static_cast<double>(logits[i]) - largest);
        } else {
            scores[i] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logits[i]))));
        }
    }
    for (int32_t i = 0; scoring == Scoring::softmax && i < in.width; ++i) {
        scores[i] = static_cast<float>(std::exp(static_cast<double>(logits[i]) - largest) / sum);
    }
    return true;
}

void RouteRows::keep_best_groups(float* choice) const {
    const int32_t size = in.width / num_groups;
    float worths[max_experts];
    bool is_kept[max_experts] = {};
    for (int32_t group = 0; group < num_groups; ++group) worths[group] = worth(choice + group * size, size);
    for (int32_t i = 0; i < top_groups; ++i) {
        const int32_t best = find_largest(worths, num_groups);
        is_kept[best] = true;
        worths[best] = nothing;
    }
    for (int32_t i = 0; i < in.width; ++i) {
        if (!is_kept[i / size]) choice[i] = nothing;
    }
}

float RouteRows::worth(const float* choice, int32_t size) const {
    float largest = nothing, second = nothing;
    for (int32_t i = 0; i < size; ++i) {
        if (choice[i] > largest) {
            second = largest;
            largest = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return num_counted == 2 && size > 1 ? largest + second : largest;
}

void RouteRows::choose(const float* scores, float* choice, float* weights) const {
    for (int32_t i = 0; i < top_k; ++i) {
        const int32_t best = find_largest(choice, in.width);
        weights[best] = scores[best];
        choice[best] = nothing;
    }
    double sum = 0.0;
    for (int32_t i = 0; i < in.width; ++i) sum += weights[i];
    const float divisor = normalise ? static_cast<float>(sum) : 1.0f;
    for (int32_t i = 0; i < in.width; ++i) weights[i] = weights[i] / divisor * scale;
}

}  // namespace headway
