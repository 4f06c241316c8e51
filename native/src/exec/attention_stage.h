// Attention of a step: items are tiles of a sequence's new tokens with a kv head. Where sequences are too few to keep the
// threads busy, single tokens are cut into chunks of keys, which the stage behind joins.
#pragma once

#include <cstdint>
#include <vector>

#include "step.h"

namespace headway {

// What layers share: how many heads there are and which keys a token sees.
struct AttentionShape {
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t qk_dim;
    int32_t v_dim;
    int32_t window;  // 0: none
    bool causal;
    int32_t head_parts;  // each kv head's query heads are items of their own in so many parts
    bool operator==(const AttentionShape&) const = default;
    int32_t num_parts() const { return num_kv_heads * head_parts; }
    int32_t num_group() const { return num_heads / num_parts(); }
};

struct AttentionItem {
    int32_t seq;
    int32_t kv_head;  // or part of one
    int32_t token_begin;
    int32_t token_end;
    int32_t chunk;    // -1: all keys
    int32_t partial;  // of the chunk
    int64_t cost;     // products of a query and a key
};

// A token that is cut into chunks, with one kv head.
struct AttentionCut {
    int32_t seq;
    int32_t kv_head;
    int32_t num_chunks;
    int32_t first_partial;
};

// How a step's attention is cut: made once a step, used by all layers of the shape.
class AttentionSchedule {
public:
    AttentionSchedule(const AttentionShape& shape, int num_threads, int32_t max_context);
    const AttentionShape& shape() const { return shape_; }
    // Floats of memory that begin_step() divides among chunks and threads.
    int64_t num_floats(int64_t scratch_floats) const;
    void set_memory(float* memory, int64_t scratch_floats);
    void begin_step(const Step& step, int32_t tile);

    const std::vector<AttentionItem>& items() const { return items_; }
    const std::vector<AttentionCut>& cuts() const { return cuts_; }
    const PartialAttention* partials(int32_t first) const { return partials_.data() + first; }
    float* scratch(int thread) const { return scratch_ + thread * scratch_floats_; }

private:
    int64_t partial_floats() const { return (static_cast<int64_t>(shape_.num_group()) * (2 + shape_.v_dim) + 15) & ~15; }
    int32_t visible_keys(int32_t position, int32_t context_len) const;
    bool try_cut(const Step& step, int32_t seq);
    void add_whole(const Step& step, int32_t seq, int32_t tile);

    AttentionShape shape_;
    int num_threads_;
    int32_t max_partials_;
    int64_t scratch_floats_ = 0;
    float* scratch_ = nullptr;
    std::vector<PartialAttention> partials_;
    std::vector<AttentionItem> items_;
    std::vector<AttentionCut> cuts_;
    int32_t num_partials_ = 0;
};

// One layer's attention.
struct AttentionLayer {
    KVView kv;
    Place q, out;
    float scale;
    float soft_cap;  // 0: none
};

class AttentionStage final : public Stage {
public:
    AttentionStage(const AttentionLayer& layer, const AttentionSchedule& schedule) : layer_(layer), schedule_(schedule) {}
    int32_t begin(const StepContext& context) override;
    void run(const StepContext& context, int32_t item, int thread) override;

private:
    AttentionLayer layer_;
    const AttentionSchedule& schedule_;
};

// What AttentionStage cut, joined.
class JoinStage final : public Stage {
public:
    JoinStage(const AttentionLayer& layer, const AttentionSchedule& schedule) : layer_(layer), schedule_(schedule) {}
    int32_t begin(const StepContext& context) override;
    void run(const StepContext& context, int32_t item, int thread) override;

private:
    AttentionLayer layer_;
    const AttentionSchedule& schedule_;
};

}  // namespace headway
