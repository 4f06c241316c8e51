#include "plan.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

namespace headway {

namespace {

constexpr int64_t alignment = 64;

int64_t align_up(int64_t num_bytes) { return (num_bytes + alignment - 1) / alignment * alignment; }

void require_below(const char* what, int64_t value, int64_t least, int64_t limit) {
    if (value >= least && value < limit) return;
    throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) + "; it must be at least " +
                                std::to_string(least) + " and below " + std::to_string(limit));
}

int64_t now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// Whether the last hidden rows of tokens that are only caught up are finite.
class CheckStage final : public Stage {
public:
    CheckStage(const Place& hidden, const StepOutputs& outputs) : hidden_(hidden), outputs_(outputs) {}
    int32_t begin(const StepContext&) override { return outputs_.num_checked > 0 ? 1 : 0; }
    void run(const StepContext& context, int32_t, int) override {
        for (int32_t i = 0; i < outputs_.num_checked; ++i) {
            const float* row = context.at(hidden_, outputs_.checked[i]);
            outputs_.is_finite[i] = context.kernels->is_finite(row, hidden_.width);
        }
    }

private:
    const Place& hidden_;
    const StepOutputs& outputs_;
};

}  // namespace

// The stages, then the check and the sampling that this step asks for.
class Plan::StepJob final : public Job {
public:
    StepJob(Plan& plan, const StepContext& context, const StepOutputs& outputs, const SampleCall& sample)
        : plan_(plan), context_(context), outputs_(outputs), sample_(sample), check_(plan.last_hidden_, outputs) {}

    int32_t num_stages() const override { return num_planned() + 2; }

    int32_t begin(int32_t stage) override {
        if (plan_.times_stages_) plan_.stage_times_[stage] = now_ns();
        if (stage < num_planned()) return plan_.stages_[stage]->begin(context_);
        if (stage == num_planned()) return check_.begin(context_);
        return outputs_.sampler == nullptr ? 0 : sample_.num_rows;
    }

    void run(int32_t stage, int32_t item, int thread) override {
        if (stage < num_planned()) {
            plan_.stages_[stage]->run(context_, item, thread);
        } else if (stage == num_planned()) {
            check_.run(context_, item, thread);
        } else {
            outputs_.sampler->sample_one(sample_, item, plan_.sampling_scratch_[thread]);
        }
    }

private:
    int32_t num_planned() const { return static_cast<int32_t>(plan_.stages_.size()); }

    Plan& plan_;
    const StepContext& context_;
    const StepOutputs& outputs_;
    const SampleCall& sample_;
    CheckStage check_;
};

Plan::Plan(const PlanLimits& limits, int64_t arena_bytes, Workers& workers, bool has_floats)
    : limits_(limits),
      arena_bytes_(align_up(arena_bytes)),
      workers_(workers),
      kernels_(exec_kernels(has_floats ? choose_float_isa() : choose_isa())) {}

void Plan::add_row_stage(RowKind kind, bool cuts_at_blocks) {
    auto stage = std::make_unique<RowStage>(kind, cuts_at_blocks, limits_.block_size);
    row_stage_ = stage.get();
    stages_.push_back(std::move(stage));
}

void Plan::add_row_op(std::unique_ptr<RowOp> op) { row_stage_->add(std::move(op)); }

void Plan::add_product_stage(RowKind kind) {
    auto stage = std::make_unique<ProductStage>(kind, num_threads());
    product_stage_ = stage.get();
    stages_.push_back(std::move(stage));
}

void Plan::add_product(const ProductPart& part) { product_stage_->add(part); }

void Plan::add_stage(std::unique_ptr<Stage> stage) { stages_.push_back(std::move(stage)); }

void Plan::add_attention(const AttentionLayer& layer, const AttentionShape& shape) {
    const auto found = std::find_if(schedules_.begin(), schedules_.end(),
                                    [&](const auto& schedule) { return schedule->shape() == shape; });
    size_t at = static_cast<size_t>(found - schedules_.begin());
    if (found == schedules_.end()) {
        schedules_.push_back(std::make_unique<AttentionSchedule>(shape, num_threads(), limits_.max_context));
        scratch_floats_.push_back(0);
    }
    AttentionCall call{};
    call.kv = layer.kv;
    call.num_heads = shape.num_heads;
    call.head_parts = shape.head_parts;
    call.window = shape.window;
    call.causal = shape.causal;
    call.soft_cap = layer.soft_cap;
    call.context_len = limits_.max_context;
    scratch_floats_[at] = std::max(scratch_floats_[at], (attention_scratch_floats(call) + 15) & ~int64_t{15});
    stages_.push_back(std::make_unique<AttentionStage>(layer, *schedules_[at]));
    stages_.push_back(std::make_unique<JoinStage>(layer, *schedules_[at]));
}

void Plan::finish() {
    int64_t num_bytes = arena_bytes_;
    std::vector<int64_t> starts;
    for (size_t i = 0; i < schedules_.size(); ++i) {
        starts.push_back(num_bytes);
        num_bytes += align_up(schedules_[i]->num_floats(scratch_floats_[i]) * static_cast<int64_t>(sizeof(float)));
    }
    memory_ = PageBuffer(num_bytes);
    for (size_t i = 0; i < schedules_.size(); ++i) {
        schedules_[i]->set_memory(reinterpret_cast<float*>(memory_.data() + starts[i]), scratch_floats_[i]);
    }
}

const float* Plan::logits() const { return reinterpret_cast<const float*>(memory_.data()) + logits_.offset; }

void Plan::check(const Step& step, const StepOutputs& outputs) const {
    require_below("num_tokens", step.num_tokens, 0, limits_.max_tokens + 1);
    require_below("num_selected", step.num_selected, 0, limits_.max_selected + 1);
    require_below("num_seqs", step.num_seqs, 0, limits_.max_seqs + 1);
    for (int32_t token = 0; token < step.num_tokens; ++token) {
        require_below("a token id", step.token_ids[token], 0, limits_.num_embeddings);
        require_below("a position", step.positions[token], 0, limits_.max_context);
        require_below("a slot", step.slots[token], 0, static_cast<int64_t>(limits_.num_blocks) * limits_.block_size);
    }
    require_below("query_starts[0]", step.query_starts[0], 0, 1);
    require_below("the last of query_starts", step.query_starts[step.num_seqs], step.num_tokens, step.num_tokens + 1);
    for (int32_t seq = 0; seq < step.num_seqs; ++seq) {
        const int32_t length = step.query_starts[seq + 1] - step.query_starts[seq];
        require_below("the tokens of a sequence", length, 1, step.num_tokens + 1);
        require_below("a context_len", step.context_lens[seq], length, limits_.max_context + 1);
        const int32_t num_blocks = (step.context_lens[seq] + limits_.block_size - 1) / limits_.block_size;
        require_below("the blocks of a sequence", num_blocks, 1, step.max_blocks + 1);
        for (int32_t i = 0; i < num_blocks; ++i) {
            const int64_t at = static_cast<int64_t>(seq) * step.max_blocks + i;
            require_below("a block", step.block_tables[at], 0, limits_.num_blocks);
        }
    }
    for (int32_t i = 0; i < step.num_selected; ++i) require_below("a logit row", step.selected[i], 0, step.num_tokens);
    for (int32_t i = 0; i < outputs.num_checked; ++i) require_below("a checked row", outputs.checked[i], 0, step.num_tokens);
}

void Plan::run(const Step& step, const StepOutputs& outputs) {
    const std::lock_guard lock(mutex_);
    check(step, outputs);
    SampleCall sample = outputs.sample;
    sample.logits = logits();
    sample.num_rows = step.num_selected;
    if (outputs.sampler != nullptr) {
        outputs.sampler->check(sample);
        while (sampling_scratch_.size() < static_cast<size_t>(num_threads())) {
            sampling_scratch_.emplace_back(outputs.sampler->vocab_size());
        }
    }
    for (const auto& schedule : schedules_) schedule->begin_step(step, kernels_.attend_tokens);
    const StepContext context{&kernels_, memory_.data(), &step};
    StepJob job(*this, context, outputs, sample);
    if (times_stages_) stage_times_.assign(job.num_stages() + 1, 0);
    workers_.run(job);
    if (times_stages_) stage_times_.back() = now_ns();
}

void Plan::time_stages(bool is_on) {
    const std::lock_guard lock(mutex_);
    times_stages_ = is_on;
    stage_times_.clear();
}

}  // namespace headway
