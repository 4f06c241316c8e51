// A whole batch of rows in one call, shared out over threads. Each row depends on that row alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "isa.h"
#include "row_sampler.h"
#include "thread_pool.h"

namespace headway {

// The arrays of one call; num_rows rows each.
struct SampleCall {
    const float* logits;        // [num_rows, vocab_size]
    const int32_t* rows;        // [num_rows], which row of the token matrix
    const int32_t* num_tokens;  // [num_rows], tokens of each so far
    int32_t num_rows;
    int32_t* token_ids;   // [num_rows]
    bool* is_finite;      // [num_rows]
    float* logprobs;      // [num_rows]
    int32_t* top_ids;     // [num_rows, num_top]
    float* top_logprobs;  // [num_rows, num_top]
    int32_t num_top;
};

constexpr int32_t num_mask_words(int32_t vocab_size) { return (vocab_size + 31) / 32; }

class BatchSampler {
public:
    // token_ids [max_num_seqs, max_model_len] and masks [max_num_seqs, num_mask_words(vocab_size)] stay the caller's and
    // must outlive this. Throws std::invalid_argument.
    BatchSampler(const int32_t* token_ids, const uint32_t* masks, int32_t max_num_seqs, int32_t max_model_len,
                 int32_t vocab_size, int num_threads);

    int32_t vocab_size() const { return vocab_size_; }
    int num_threads() const { return pool_.num_threads(); }
    Isa isa() const { return isa_; }

    // Throws std::invalid_argument on a row out of range. Waits for a sample() that is running.
    // The row is not masked then, and has no given tokens.
    void set_row(int32_t row, RowSettings settings);

    // Whether the row's tokens are chosen among those of its mask; how many of its tokens are given (Row::num_given).
    // Throws std::invalid_argument on a row out of range. Waits for a sample() that is running.
    void set_masked(int32_t row, bool is_masked);
    void set_given(int32_t row, int32_t num_given);

    // Between the two the masks are being written, by any thread: whoever samples a masked row waits.
    void close_masks() { are_masks_open_.store(false); }
    void open_masks() {
        are_masks_open_.store(true);
        are_masks_open_.notify_all();
    }

    // Throws std::invalid_argument, before anything is written, on a row or a number of tokens out of range. A second
    // caller waits for the first.
    void sample(const SampleCall& call);

    // The same in parts, for who has threads of his own: check, then each row once, by any thread with its own scratch.
    // Between the two no set_row() may run.
    void check(const SampleCall& call) const;
    void sample_one(const SampleCall& call, int32_t index, Scratch& scratch) const;

private:
    // What changes while a sequence has its row.
    struct RowState {
        bool is_masked = false;
        int32_t num_given = 0;
    };

    void check_row(int32_t row) const;

    const int32_t* token_ids_;
    const uint32_t* masks_;
    int32_t max_num_seqs_;
    int32_t max_model_len_;
    int32_t vocab_size_;
    Isa isa_;
    std::vector<RowSettings> settings_;
    std::vector<RowState> states_;
    std::atomic<bool> are_masks_open_{true};
    ThreadPool pool_;
    std::vector<Scratch> scratch_;  // one a thread
    std::mutex mutex_;
};

}  // namespace headway
