// How the scratch of attention is divided. Static functions: the files of every instruction set include this.
#pragma once

#include <stdint.h>

#include "exec_kernels.h"

namespace headway {

constexpr int32_t max_attend_tokens = 32;  // ExecKernels::attend_tokens is at most this
constexpr int32_t panel_columns = 32;      // keys or columns unpacked at a time, at most

static inline int32_t round_up(int32_t value, int32_t step) { return (value + step - 1) / step * step; }

// In floats, from the start of the scratch; rows are tokens times the query heads of a kv head.
//
//   queries   [rows][query_ld]         scaled; or pairs of bfloat16
//   scores    [rows][attention_chunk]  then the weights, in the same place
//   values    [rows][value_ld]         of a chunk
//   totals    [rows][value_ld]         of the chunks before
//   peaks     [4][rows]                largest and sum of a chunk, largest and sum of the chunks before
//   scales    [2][attention_chunk]     of int8 keys and values
//   unpacked  keys or values of a chunk
struct AttentionScratch {
    int32_t query_ld;
    int32_t value_ld;
    int64_t queries, scores, values, totals, peaks, scales, unpacked, size;
};

// Query heads that attend together.
static inline int32_t heads_at_once(const AttentionCall& call) {
    return call.num_heads / (call.kv.num_kv_heads * call.head_parts);
}

static inline AttentionScratch divide_scratch(const AttentionCall& call, int32_t tokens) {
    const int64_t rows = static_cast<int64_t>(tokens) * heads_at_once(call);
    AttentionScratch scratch;
    scratch.query_ld = round_up(call.kv.qk_dim, 16);
    scratch.value_ld = round_up(call.kv.v_dim, panel_columns);
    scratch.queries = 0;
    scratch.scores = scratch.queries + rows * scratch.query_ld;
    scratch.values = scratch.scores + rows * attention_chunk;
    scratch.totals = scratch.values + rows * scratch.value_ld;
    scratch.peaks = scratch.totals + rows * scratch.value_ld;
    scratch.scales = scratch.peaks + 4 * rows;
    scratch.unpacked = (scratch.scales + 2 * attention_chunk + 15) / 16 * 16;
    const int32_t steps = scratch.query_ld > attention_chunk ? scratch.query_ld : attention_chunk;
    scratch.size = scratch.unpacked + static_cast<int64_t>(steps) * panel_columns;
    return scratch;
}

}  // namespace headway
