#include "row_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "philox.h"

namespace headway {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float largest_float = std::numeric_limits<float>::max();

bool is_inside(int32_t id, int32_t vocab_size) { return static_cast<uint32_t>(id) < static_cast<uint32_t>(vocab_size); }

int32_t num_output_tokens(const Row& row) { return std::max(0, row.num_tokens - row.settings.num_prompt_tokens); }

bool has_bans(const Row& row) {
    return !row.settings.banned_ids.empty() && num_output_tokens(row) < row.settings.min_tokens;
}

bool has_output_penalties(const RowSettings& settings) {
    return settings.presence_penalty != 0.0f || settings.frequency_penalty != 0.0f;
}

bool is_modified(const Row& row) {
    const RowSettings& settings = row.settings;
    return row.mask != nullptr || !settings.allowed_ids.empty() || !settings.bad_words.empty() || !settings.bias_ids.empty() || settings.repetition_penalty != 1.0f || has_output_penalties(settings) ||
           has_bans(row);
}

// Calls visit(id, count) once for each different token of token_ids[start, stop), in order of their first places.
template <typename Visit>
void for_each_token(const Row& row, int32_t start, int32_t stop, Scratch& scratch, Visit visit) {
    for (int32_t i = start; i < stop; ++i) {
        if (is_inside(row.token_ids[i], row.vocab_size)) ++scratch.counts[row.token_ids[i]];
    }
    for (int32_t i = start; i < stop; ++i) {
        const int32_t id = row.token_ids[i];
        if (!is_inside(id, row.vocab_size) || scratch.counts[id] == 0) continue;
        visit(id, scratch.counts[id]);
        scratch.counts[id] = 0;
    }
}

// A penalty below 1 can push a finite logit over the largest float: that is no fault of the model.
float within_range(float value) { return std::min(value, largest_float); }

void apply_penalties(const Row& row, float* x, Scratch& scratch) {
    const RowSettings& settings = row.settings;
    if (settings.repetition_penalty != 1.0f) {
        const float penalty = settings.repetition_penalty;
        for_each_token(row, 0, row.num_tokens, scratch, [&](int32_t id, uint32_t) {
            x[id] = within_range(x[id] > 0.0f ? x[id] / penalty : x[id] * penalty);
        });
    }
    if (has_output_penalties(settings)) {
        const int32_t start = std::clamp(settings.num_prompt_tokens, 0, row.num_tokens);
        for_each_token(row, start, row.num_tokens, scratch, [&](int32_t id, uint32_t count) {
            x[id] -= settings.frequency_penalty * static_cast<float>(count);
            x[id] = within_range(x[id] - settings.presence_penalty);
        });
    }
}

// Whether the output ends with all tokens of the word but its last. One of a single token is bad everywhere.
bool is_behind(const std::vector<int32_t>& word, const Row& row) {
    const auto num_before = static_cast<int32_t>(word.size()) - 1;
    if (num_before > num_output_tokens(row)) return false;
    return std::equal(word.begin(), word.begin() + num_before, row.token_ids + row.num_tokens - num_before);
}

void ban_bad_words(const Row& row, float* x) {
    for (const std::vector<int32_t>& word : row.settings.bad_words) {
        if (!word.empty() && is_inside(word.back(), row.vocab_size) && is_behind(word, row)) x[word.back()] = -infinity;
    }
}

bool is_in_mask(const Row& row, int32_t id) { return row.mask == nullptr || (row.mask[id / 32] >> (id % 32) & 1u) != 0; }

// The row, with -infinity for all tokens that are not allowed.
void copy_allowed(const RowKernels& kernels, const Row& row, float* x) {
    const std::vector<int32_t>& allowed = row.settings.allowed_ids;
    if (!allowed.empty()) {
        std::fill_n(x, row.vocab_size, -infinity);
        for (int32_t id : allowed) {
            if (is_inside(id, row.vocab_size) && is_in_mask(row, id)) x[id] = row.logits[id];
        }
    } else if (row.mask != nullptr) {
        kernels.copy_masked(row.logits, row.mask, row.vocab_size, x);
    } else {
        std::copy_n(row.logits, row.vocab_size, x);
    }
}

// The row with masks, biases, bans and penalties, in scratch.logits.
const float* modify(const RowKernels& kernels, const Row& row, Scratch& scratch) {
    const RowSettings& settings = row.settings;
    float* x = scratch.logits.data();
    copy_allowed(kernels, row, x);
    for (size_t i = 0; i < settings.bias_ids.size(); ++i) {
        const int32_t id = settings.bias_ids[i];
        if (is_inside(id, row.vocab_size)) x[id] = within_range(x[id] + settings.biases[i]);
    }
    if (has_bans(row)) {
        for (int32_t id : settings.banned_ids) {
            if (is_inside(id, row.vocab_size)) x[id] = -infinity;
        }
    }
    ban_bad_words(row, x);
    apply_penalties(row, x, scratch);
    return x;
}

// The first index whose running sum of weights passes `target`; skips what `stays` refuses. The last with a weight if
// rounding keeps the sum below.
template <typename Stays>
int32_t walk(const float* weights, int32_t n, double target, Stays stays) {
    double sum = 0.0;
    int32_t last = 0;
    for (int32_t i = 0; i < n; ++i) {
        if (weights[i] == 0.0f || !stays(i)) continue;
        last = i;
        sum += weights[i];
        if (sum > target) break;
    }
    return last;
}

int32_t draw_from_all(int32_t n, double total, double noise, const Scratch& scratch) {
    const double target = noise * total;
    const int32_t num_blocks = (n + sum_block - 1) / sum_block;
    double sum = 0.0;
    int32_t block = 0;
    for (int32_t b = 0; b < num_blocks; ++b) {
        if (scratch.sums[b] == 0.0) continue;
        block = b;
        if (sum + scratch.sums[b] > target) break;
        sum += scratch.sums[b];
    }
    const int32_t start = block * sum_block;
    const int32_t length = std::min(sum_block, n - start);
    return start + walk(scratch.weights.data() + start, length, target - sum, [](int32_t) { return true; });
}

// Draws among num_candidates weights in scratch.values, whose ids are ascending in scratch.ids; `mass` is what top_p is
// a share of: their sum, or more where unneeded ones were left out.
int32_t draw_from_candidates(const RowSettings& settings, int32_t num_candidates, double mass, double noise,
                             Scratch& scratch) {
    const float* weights = scratch.values.data();
    Threshold threshold{0.0f, num_candidates, mass};
    if (settings.top_p < 1.0) threshold = find_mass_threshold(num_candidates, settings.top_p * mass, scratch);
    int32_t num_ties = threshold.num_ties;
    const auto stays = [&](int32_t i) {
        return weights[i] > threshold.weight || (weights[i] == threshold.weight && num_ties-- > 0);
    };
    return scratch.ids[walk(weights, num_candidates, noise * threshold.mass, stays)];
}

// Drops candidates under min_p of the likeliest (whose weight is 1); returns how many are left.
int32_t apply_min_p(float min_p, int32_t num_candidates, Scratch& scratch) {
    int32_t left = 0;
    for (int32_t i = 0; i < num_candidates; ++i) {
        if (scratch.values[i] < min_p) continue;
        scratch.ids[left] = scratch.ids[i];
        scratch.values[left++] = scratch.values[i];
    }
    return left;
}

double sum_of(const std::vector<float>& values, int32_t n) {
    double sum = 0.0;
    for (int32_t i = 0; i < n; ++i) sum += values[i];
    return sum;
}

int32_t draw_from_largest(const RowKernels& kernels, const Row& row, const float* x, float peak, double noise,
                          Scratch& scratch) {
    const RowSettings& settings = row.settings;
    int32_t found = select_largest(kernels, x, row.vocab_size, settings.top_k, scratch);
    std::sort(scratch.ids.begin(), scratch.ids.begin() + found);
    for (int32_t i = 0; i < found; ++i) scratch.values[i] = x[scratch.ids[i]];
    const float scale = static_cast<float>(1.0 / settings.temperature);
    kernels.exponentials(scratch.values.data(), found, peak, scale, scratch.values.data(), nullptr);
    found = apply_min_p(settings.min_p, found, scratch);
    return draw_from_candidates(settings, found, sum_of(scratch.values, found), noise, scratch);
}

// The weights of a whole row that are at least `bound`, and their ids, become the candidates.
int32_t collect_weights(const RowKernels& kernels, int32_t n, float bound, Scratch& scratch) {
    const int32_t found = kernels.collect_at_least(scratch.weights.data(), n, bound, 0, scratch.ids.data());
    for (int32_t i = 0; i < found; ++i) scratch.values[i] = scratch.weights[scratch.ids[i]];
    return found;
}

int32_t draw(const RowKernels& kernels, const Row& row, const float* x, float peak, Scratch& scratch) {
    const RowSettings& settings = row.settings;
    const int32_t n = row.vocab_size;
    const double noise = uniform_noise(settings.seed, settings.choice, static_cast<uint64_t>(num_output_tokens(row)));
    if (settings.top_k > 0 && settings.top_k < n) return draw_from_largest(kernels, row, x, peak, noise, scratch);
    const float scale = static_cast<float>(1.0 / settings.temperature);
    const double total = kernels.exponentials(x, n, peak, scale, scratch.weights.data(), scratch.sums.data());
    if (settings.min_p <= 0.0f && settings.top_p >= 1.0) return draw_from_all(n, total, noise, scratch);
    if (settings.min_p > 0.0f) {
        const int32_t found = collect_weights(kernels, n, settings.min_p, scratch);
        return draw_from_candidates(settings, found, sum_of(scratch.values, found), noise, scratch);
    }
    // All weights under (1 - top_p) * total / n together are less than what top_p leaves out: none of them stays.
    // The factor before it is for rounding. Most rows have what top_p needs far above that, so that is tried first.
    const double unneeded = 0.999 * (1.0 - settings.top_p) * total / n;
    int32_t found = collect_weights(kernels, n, static_cast<float>(64.0 * unneeded), scratch);
    if (found == 0 || sum_of(scratch.values, found) < settings.top_p * total) {
        found = collect_weights(kernels, n, static_cast<float>(unneeded), scratch);
    }
    return draw_from_candidates(settings, found, total, noise, scratch);
}

float fill_logprobs(const RowKernels& kernels, const Row& row, float peak, int32_t token_id, int32_t num_wanted,
                    Scratch& scratch) {
    const float* x = row.logits;
    const double total = kernels.exponentials(x, row.vocab_size, peak, 1.0f, nullptr, nullptr);
    const double normaliser = static_cast<double>(peak) + std::log(total);
    const auto logprob = [&](int32_t id) { return static_cast<float>(static_cast<double>(x[id]) - normaliser); };
    const int32_t wanted = std::min(num_wanted, row.num_top);
    if (wanted > 0) {
        const int32_t found = select_largest(kernels, x, row.vocab_size, wanted, scratch);
        std::sort(scratch.ids.begin(), scratch.ids.begin() + found,
                  [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
        for (int32_t i = 0; i < found; ++i) {
            row.top_ids[i] = scratch.ids[i];
            row.top_logprobs[i] = logprob(scratch.ids[i]);
        }
    }
    return logprob(token_id);
}

Chosen score_given(const RowKernels& kernels, const Row& row, float peak, Scratch& scratch) {
    const RowSettings& settings = row.settings;
    const int32_t token_id = row.token_ids[row.num_tokens];
    const float no_logprob = std::numeric_limits<float>::quiet_NaN();
    if (!is_inside(token_id, row.vocab_size)) return {0, false, no_logprob};
    const int32_t wanted =
        row.num_tokens < settings.num_prompt_tokens ? settings.num_prompt_logprobs : settings.num_logprobs;
    if (wanted < 0) return {token_id, true, no_logprob};
    return {token_id, true, fill_logprobs(kernels, row, peak, token_id, wanted, scratch)};
}

}  // namespace

bool is_given(const Row& row) {
    const bool is_prompt = row.settings.num_prompt_logprobs >= 0 && row.num_tokens < row.settings.num_prompt_tokens;
    return is_prompt || row.num_tokens < row.num_given;
}

Chosen sample_row(const RowKernels& kernels, const Row& row, Scratch& scratch) {
    std::fill_n(row.top_ids, row.num_top, -1);
    std::fill_n(row.top_logprobs, row.num_top, -infinity);
    const float no_logprob = std::numeric_limits<float>::quiet_NaN();
    const Peak peak = kernels.find_peak(row.logits, row.vocab_size);
    if (peak.index < 0 || !std::isfinite(peak.value)) return {0, false, no_logprob};
    if (is_given(row)) return score_given(kernels, row, peak.value, scratch);
    const float* x = row.logits;
    Peak shaped = peak;
    if (is_modified(row)) {
        x = modify(kernels, row, scratch);
        shaped = kernels.find_peak(x, row.vocab_size);
        if (!std::isfinite(shaped.value)) return {0, false, no_logprob};
    }
    const bool is_greedy = row.settings.temperature < min_temperature;
    const int32_t token_id = is_greedy ? shaped.index : draw(kernels, row, x, shaped.value, scratch);
    if (row.settings.num_logprobs < 0) return {token_id, true, no_logprob};
    return {token_id, true, fill_logprobs(kernels, row, peak.value, token_id, row.settings.num_logprobs, scratch)};
}

}  // namespace headway
