// The arrays of one step, as headway.executor.base.StepArrays has them, and what the stages of a plan share while it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "exec_kernels.h"

namespace headway {

struct Step {
    const int32_t* token_ids;     // [num_tokens]
    const int32_t* positions;     // [num_tokens]
    const int64_t* slots;         // [num_tokens]
    const int32_t* query_starts;  // [num_seqs + 1]
    const int32_t* context_lens;  // [num_seqs]
    const int32_t* block_tables;  // [num_seqs, max_blocks]
    const int32_t* selected;      // [num_selected], tokens whose logits are wanted
    int32_t num_tokens;
    int32_t num_seqs;
    int32_t max_blocks;
    int32_t num_selected;
    const int32_t* token_types = nullptr;  // [num_tokens], of an encoder's step
};

// What is done at once of a stage that works row by row: rows of tokens, or of the selected ones.
enum class RowKind : int32_t { tokens = 0, selected = 1 };

// Columns of a matrix in the arena: row r begins at arena + offset + r * ld floats.
struct Place {
    int64_t offset = 0;
    int64_t ld = 0;
    int32_t width = 0;
};

// Rows made ready for a product: where in the arena, in bytes, and of what.
struct PreparedPlace {
    int64_t q = -1;       // -1: no matrix of 8 or 4 bits reads it
    int64_t scales = -1;
    int64_t sums = -1;
    int64_t wide = -1;    // bfloat16 or float32, whatever the kernels multiply; -1: no bf16 matrix reads it
    int32_t width = 0;
};

// A step that runs.
struct StepContext {
    const ExecKernels* kernels;
    uint8_t* arena;
    const Step* step;

    float* at(const Place& place, int64_t row = 0) const {
        return reinterpret_cast<float*>(arena) + place.offset + row * place.ld;
    }
    int32_t num_rows(RowKind kind) const { return kind == RowKind::tokens ? step->num_tokens : step->num_selected; }
    Activations activations(const PreparedPlace& place, int32_t num_rows) const;
};

// A stage of a plan. Items are claimed by threads; what an item gives does not depend on how a stage is cut into items.
class Stage {
public:
    virtual ~Stage() = default;
    // Cuts the stage for this step; the number of its items.
    virtual int32_t begin(const StepContext& context) = 0;
    virtual void run(const StepContext& context, int32_t item, int thread) = 0;
};

}  // namespace headway
