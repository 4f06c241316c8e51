// A Program, compiled: stages over one arena, run a step at a time. headway.executor.native_plan writes it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "../batch_sampler.h"
#include "../isa.h"
#include "attention_stage.h"
#include "packing.h"
#include "product_stage.h"
#include "row_ops.h"
#include "step.h"
#include "workers.h"

namespace headway {

// What a plan is made for. Steps that exceed it are refused.
struct PlanLimits {
    int32_t max_tokens;
    int32_t max_selected;   // rows of logits
    int32_t max_seqs;
    int32_t max_context;    // positions
    int32_t num_embeddings; // token ids are below it
    int32_t num_blocks;     // of the cache
    int32_t block_size;
};

// What a step is asked for beside its arrays; what is null is left out.
struct StepOutputs {
    const int32_t* checked = nullptr;  // [num_checked], tokens whose last hidden row is only to be finite
    int32_t num_checked = 0;
    bool* is_finite = nullptr;         // [num_checked]
    BatchSampler* sampler = nullptr;
    SampleCall sample{};               // its logits and num_rows are the plan's
};

class Plan {
public:
    // arena_bytes: of all values. Throws std::invalid_argument where HEADWAY_ISA names what is not there.
    // has_floats: a matrix is f32, so that rows stay float32.
    Plan(const PlanLimits& limits, int64_t arena_bytes, Workers& workers, bool has_floats = false);
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    const ExecKernels& kernels() const { return kernels_; }
    int num_threads() const { return workers_.num_threads(); }
    int64_t num_bytes() const { return memory_.num_bytes(); }

    // In the order in which they run.
    void add_row_stage(RowKind kind, bool cuts_at_blocks);
    void add_row_op(std::unique_ptr<RowOp> op);  // to the last row stage
    void add_product_stage(RowKind kind);
    void add_product(const ProductPart& part);   // to the last product stage
    void add_stage(std::unique_ptr<Stage> stage);
    void add_attention(const AttentionLayer& layer, const AttentionShape& shape);
    void set_last_hidden(const Place& place) { last_hidden_ = place; }
    void set_logits(const Place& place) { logits_ = place; }
    // Takes the memory. Throws OutOfMemory, which names the bytes.
    void finish();

    // Throws std::invalid_argument, before anything is written, where the arrays cannot be those of a step.
    void run(const Step& step, const StepOutputs& outputs);
    // [num_selected, vocabulary] of the last step.
    const float* logits() const;
    int64_t logits_width() const { return logits_.width; }

    // Whether runs note when each stage begins: a reading of the clock a stage.
    void time_stages(bool is_on);
    // Nanoseconds of the steady clock of the last run that was timed: the begin of each stage, then the end. The stages
    // are those that were added, the check of hidden rows, and sampling. Empty: none was timed.
    const std::vector<int64_t>& stage_times() const { return stage_times_; }

private:
    class StepJob;
    void check(const Step& step, const StepOutputs& outputs) const;

    PlanLimits limits_;
    int64_t arena_bytes_;
    Workers& workers_;
    const ExecKernels& kernels_;
    PageBuffer memory_;
    std::vector<std::unique_ptr<Stage>> stages_;
    std::vector<std::unique_ptr<AttentionSchedule>> schedules_;
    std::vector<int64_t> scratch_floats_;  // of each schedule
    RowStage* row_stage_ = nullptr;
    ProductStage* product_stage_ = nullptr;
    Place last_hidden_;
    Place logits_;
    std::vector<Scratch> sampling_scratch_;
    bool times_stages_ = false;
    std::vector<int64_t> stage_times_;
    std::mutex mutex_;
};

}  // namespace headway
