#include "batch_sampler.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace headway {

namespace {

// Fewer values than this take less time than waking a thread.
constexpr int64_t min_shared_values = 100'000;

void require(bool is_right, const std::string& message) {
    if (!is_right) throw std::invalid_argument(message);
}

std::string range(int32_t limit) { return "; it must be at least 0 and below " + std::to_string(limit); }

}  // namespace

BatchSampler::BatchSampler(const int32_t* token_ids, const uint32_t* masks, int32_t max_num_seqs, int32_t max_model_len,
                           int32_t vocab_size, int num_threads)
    : token_ids_(token_ids),
      masks_(masks),
      max_num_seqs_(max_num_seqs),
      max_model_len_(max_model_len),
      vocab_size_(vocab_size),
      isa_(choose_isa()),
      settings_(max_num_seqs),
      states_(max_num_seqs),
      pool_(num_threads < max_num_seqs ? num_threads : max_num_seqs) {
    require(vocab_size >= 1, "vocab_size is " + std::to_string(vocab_size) + "; it must be at least 1");
    scratch_.reserve(pool_.num_threads());
    for (int thread = 0; thread < pool_.num_threads(); ++thread) scratch_.emplace_back(vocab_size);
}

void BatchSampler::check_row(int32_t row) const {
    require(row >= 0 && row < max_num_seqs_, "row is " + std::to_string(row) + range(max_num_seqs_));
}

void BatchSampler::set_row(int32_t row, RowSettings settings) {
    check_row(row);
    // The likeliest token has a weight of 1: a larger min_p (or NaN) would leave nothing.
    settings.min_p = settings.min_p <= 1.0f ? settings.min_p : 1.0f;
    const std::lock_guard lock(mutex_);
    settings_[row] = std::move(settings);
    states_[row] = {};
}

void BatchSampler::set_masked(int32_t row, bool is_masked) {
    check_row(row);
    const std::lock_guard lock(mutex_);
    states_[row].is_masked = is_masked;
}

void BatchSampler::set_given(int32_t row, int32_t num_given) {
    check_row(row);
    require(num_given >= 0 && num_given <= max_model_len_,
            "num_given is " + std::to_string(num_given) + range(max_model_len_ + 1));
    const std::lock_guard lock(mutex_);
    states_[row].num_given = num_given;
}

void BatchSampler::check(const SampleCall& call) const {
    for (int32_t i = 0; i < call.num_rows; ++i) {
        const int32_t row = call.rows[i];
        require(row >= 0 && row < max_num_seqs_, "a row is " + std::to_string(row) + range(max_num_seqs_));
        const int32_t count = call.num_tokens[i];
        require(count >= 0 && count <= max_model_len_,
                "num_tokens of row " + std::to_string(row) + " is " + std::to_string(count) + range(max_model_len_ + 1));
        require(count < max_model_len_ || count >= settings_[row].num_prompt_tokens,
                "the prompt of row " + std::to_string(row) + " is longer than the token matrix");
    }
}

void BatchSampler::sample_one(const SampleCall& call, int32_t index, Scratch& scratch) const {
    const int64_t top = static_cast<int64_t>(index) * call.num_top;
    const int32_t at = call.rows[index];
    const RowState& state = states_[at];
    Row row{settings_[at],
            call.logits + static_cast<int64_t>(index) * vocab_size_,
            vocab_size_,
            token_ids_ + static_cast<int64_t>(at) * max_model_len_,
            call.num_tokens[index],
            state.num_given,
            nullptr,
            call.top_ids + top,
            call.top_logprobs + top,
            call.num_top};
    if (state.is_masked && !is_given(row)) {
        are_masks_open_.wait(false);
        row.mask = masks_ + static_cast<int64_t>(at) * num_mask_words(vocab_size_);
    }
    const Chosen chosen = sample_row(row_kernels(isa_), row, scratch);
    call.token_ids[index] = chosen.token_id;
    call.is_finite[index] = chosen.is_finite;
    call.logprobs[index] = chosen.logprob;
}

void BatchSampler::sample(const SampleCall& call) {
    const std::lock_guard lock(mutex_);
    check(call);
    const auto task = [&](int32_t index, int thread) { sample_one(call, index, scratch_[thread]); };
    if (static_cast<int64_t>(call.num_rows) * vocab_size_ < min_shared_values) {
        for (int32_t index = 0; index < call.num_rows; ++index) task(index, 0);
    } else {
        pool_.run(call.num_rows, task);
    }
}

}  // namespace headway
