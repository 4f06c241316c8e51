// Ops that work on each row alone. Some of them in a row make a RowStage: one block of rows goes through all of them, while
// it lies in the cache, and no thread waits for another between them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "step.h"

namespace headway {

class RowOp {
public:
    virtual ~RowOp() = default;
    virtual void run(const StepContext& context, int32_t row_begin, int32_t row_end) const = 0;
};

enum class EmbedIndex : int32_t { token = 0, position = 1, token_type = 2 };

// out = table[index + offset] * scale
struct EmbedRows final : RowOp {
    MatrixView table;
    EmbedIndex index;
    int32_t index_offset;
    float scale;
    Place out;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;
};

// Over `head` columns each; head == width: over the row.
struct NormRows final : RowOp {
    bool is_layer;  // else rms
    Place in, out;
    int32_t head;
    const float* weight;
    const float* bias;  // or null
    float eps;
    bool one_plus;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;

private:
    void add_bias(const StepContext& context, int32_t row_begin, int32_t row_end) const;
};

// Rows made ready for products.
struct PrepareRows final : RowOp {
    RowKind kind;
    Place in;
    PreparedPlace out;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;
};

// Element by element over the width of `out`.
struct ElementRows final : RowOp {
    enum class What : int32_t { activation = 0, gate = 1, multiply = 2, add = 3, scale = 4, soft_cap = 5, copy = 6, broadcast = 7 };
    What what;
    int32_t activation = 0;    // which, for activation
    Gate gate = Gate::none;    // for gate: out = gate(left) * right
    float factor = 1.0f;       // scale: out = left * factor; soft_cap: of the input
    float cap = 0.0f;
    Place left, right, out;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;

private:
    void run_part(const StepContext& context, const float* x, const float* y, float* to, int64_t n) const;
};

// In place.
struct RopeRows final : RowOp {
    Place value;
    int32_t head_dim;
    RopeTable table;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;
};

// Needs blocks of rows that never part a block of the cache between two of them: a stage with it has cuts_at_blocks.
struct WriteKVRows final : RowOp {
    KVView kv;
    Place k, v;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;
};

// out row i = in row selected[i]
struct SelectRows final : RowOp {
    Place in, out;
    void run(const StepContext& context, int32_t row_begin, int32_t row_end) const override;
};

class RowStage final : public Stage {
public:
    RowStage(RowKind kind, bool cuts_at_blocks, int32_t block_size)
        : kind_(kind), cuts_at_blocks_(cuts_at_blocks), block_size_(block_size) {}
    void add(std::unique_ptr<RowOp> op) { ops_.push_back(std::move(op)); }
    int32_t begin(const StepContext& context) override;
    void run(const StepContext& context, int32_t item, int thread) override;

private:
    RowKind kind_;
    bool cuts_at_blocks_;
    int32_t block_size_;
    std::vector<std::unique_ptr<RowOp>> ops_;
    std::vector<int32_t> cuts_;  // item i is rows [cuts_[i], cuts_[i + 1])
};

}  // namespace headway
