#include "attention_stage.h"

#include <algorithm>

namespace headway {

namespace {

// With fewer items a thread than this some threads would wait for others.
constexpr int32_t enough_items_a_thread = 4;

int32_t divide_up(int32_t value, int32_t by) { return (value + by - 1) / by; }

AttentionCall make_call(const StepContext& context, const AttentionLayer& layer, const AttentionShape& shape,
                        int32_t seq) {
    const Step& step = *context.step;
    const int32_t first = step.query_starts[seq];
    AttentionCall call{};
    call.kv = layer.kv;
    call.q = context.at(layer.q);
    call.ld_q = layer.q.ld;
    call.out = context.at(layer.out);
    call.ld_out = layer.out.ld;
    call.num_heads = shape.num_heads;
    call.head_parts = shape.head_parts;
    call.scale = layer.scale;
    call.soft_cap = layer.soft_cap;
    call.window = shape.window;
    call.causal = shape.causal;
    call.block_table = step.block_tables + static_cast<int64_t>(seq) * step.max_blocks;
    call.context_len = step.context_lens[seq];
    call.first_token = first;
    call.first_position = call.context_len - (step.query_starts[seq + 1] - first);
    return call;
}

}  // namespace

AttentionSchedule::AttentionSchedule(const AttentionShape& shape, int num_threads, int32_t max_context)
    : shape_(shape), num_threads_(num_threads) {
    // One sequence of the greatest length can be cut, or more of lesser ones.
    max_partials_ = num_threads > 1 ? divide_up(max_context, attention_chunk) * shape.num_parts() : 0;
    partials_.resize(max_partials_);
}

int64_t AttentionSchedule::num_floats(int64_t scratch_floats) const {
    return num_threads_ * scratch_floats + max_partials_ * partial_floats();
}

void AttentionSchedule::set_memory(float* memory, int64_t scratch_floats) {
    scratch_ = memory;
    scratch_floats_ = scratch_floats;
    float* at = memory + num_threads_ * scratch_floats;
    for (PartialAttention& partial : partials_) {
        partial = {at, at + shape_.num_group(), at + 2 * shape_.num_group()};
        at += partial_floats();
    }
}

void AttentionSchedule::begin_step(const Step& step, int32_t tile) {
    items_.clear();
    cuts_.clear();
    num_partials_ = 0;
    int32_t num_whole = 0;
    for (int32_t seq = 0; seq < step.num_seqs; ++seq) {
        num_whole += divide_up(step.query_starts[seq + 1] - step.query_starts[seq], tile) * shape_.num_parts();
    }
    const bool may_cut = num_whole < enough_items_a_thread * num_threads_;
    for (int32_t seq = 0; seq < step.num_seqs; ++seq) {
        if (!may_cut || !try_cut(step, seq)) add_whole(step, seq, tile);
    }
    // The longest first: what is left at the end is short.
    std::stable_sort(items_.begin(), items_.end(),
                     [](const AttentionItem& a, const AttentionItem& b) { return a.cost > b.cost; });
}

int32_t AttentionSchedule::visible_keys(int32_t position, int32_t context_len) const {
    const int32_t keys = shape_.causal ? position + 1 : context_len;
    return shape_.window > 0 ? std::min(keys, shape_.window) : keys;
}

bool AttentionSchedule::try_cut(const Step& step, int32_t seq) {
    const int32_t context_len = step.context_lens[seq];
    const int32_t num_chunks = divide_up(context_len, attention_chunk);
    if (step.query_starts[seq + 1] - step.query_starts[seq] != 1 || num_chunks < 2) return false;
    if (shape_.window > 0 && context_len > shape_.window) return false;
    if (num_partials_ + num_chunks * shape_.num_parts() > max_partials_) return false;
    for (int32_t head = 0; head < shape_.num_parts(); ++head) {
        cuts_.push_back({seq, head, num_chunks, num_partials_});
        for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
            const int32_t keys = std::min(attention_chunk, context_len - chunk * attention_chunk);
            items_.push_back({seq, head, 0, 1, chunk, num_partials_++, keys});
        }
    }
    return true;
}

void AttentionSchedule::add_whole(const Step& step, int32_t seq, int32_t tile) {
    const int32_t num_tokens = step.query_starts[seq + 1] - step.query_starts[seq];
    const int32_t context_len = step.context_lens[seq];
    const int32_t first_position = context_len - num_tokens;
    for (int32_t begin = 0; begin < num_tokens; begin += tile) {
        const int32_t end = std::min(begin + tile, num_tokens);
        const int64_t cost = static_cast<int64_t>(end - begin) * visible_keys(first_position + end - 1, context_len);
        for (int32_t head = 0; head < shape_.num_parts(); ++head) {
            items_.push_back({seq, head, begin, end, -1, 0, cost});
        }
    }
}

int32_t AttentionStage::begin(const StepContext&) { return static_cast<int32_t>(schedule_.items().size()); }

void AttentionStage::run(const StepContext& context, int32_t index, int thread) {
    const AttentionItem& item = schedule_.items()[index];
    const AttentionCall call = make_call(context, layer_, schedule_.shape(), item.seq);
    float* scratch = schedule_.scratch(thread);
    if (item.chunk < 0) {
        context.kernels->attend(&call, item.token_begin, item.token_end, item.kv_head, scratch);
    } else {
        context.kernels->attend_chunk(&call, item.token_begin, item.kv_head, item.chunk, scratch,
                                      schedule_.partials(item.partial));
    }
}

int32_t JoinStage::begin(const StepContext&) { return schedule_.cuts().empty() ? 0 : 1; }

void JoinStage::run(const StepContext& context, int32_t, int) {
    for (const AttentionCut& cut : schedule_.cuts()) {
        const AttentionCall call = make_call(context, layer_, schedule_.shape(), cut.seq);
        context.kernels->join_chunks(&call, 0, cut.kv_head, cut.num_chunks, schedule_.partials(cut.first_partial));
    }
}

}  // namespace headway
