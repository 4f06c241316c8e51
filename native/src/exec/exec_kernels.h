// The kernels of a step, one table an instruction set (exec_kernels_*.cpp). They work on parts of a step: who calls
// shares the parts out over threads. What a row gives depends on that row alone, never on the other rows of a call, the
// tile it falls into or the split into calls; each table is exact against itself, and tables may differ in bits.
#pragma once

#include <stdint.h>

#include "matrix.h"

namespace headway {

// K and V of one cache. block_size is a multiple of 16.
//   bf16  k: [num_blocks][num_kv_heads][qk_dim / 2][block_size][2] uint16
//         v: [num_blocks][num_kv_heads][block_size / 2][v_dim][2] uint16
//   f16   k: [num_blocks][num_kv_heads][qk_dim][block_size] uint16
//         v: [num_blocks][num_kv_heads][block_size][v_dim] uint16
//         finite values beyond 65,504, the largest, become it
//   int8  k: [num_blocks][num_kv_heads][qk_dim / 4][block_size][4] int8
//         v: [num_blocks][num_kv_heads][block_size][v_dim] int8
//         one scale (float32) a token and head: k_scales, v_scales [num_blocks][num_kv_heads][block_size]
// Odd dimensions are padded: bf16 qk_dim to 2, int8 qk_dim to 4.
// v_in_k: a value is the first v_dim columns of its key, with the key's scale, and there is no v (latent attention).
enum class KVType : int32_t { bf16 = 0, int8 = 1, f16 = 2 };

struct KVView {
    KVType type;
    int32_t block_size;
    int32_t num_kv_heads;
    int32_t qk_dim;
    int32_t v_dim;
    void* k;
    void* v;
    float* k_scales;  // int8 only
    float* v_scales;
    bool v_in_k;
};

// Keys are taken in chunks that start at absolute multiples of this; a chunk's largest score, sum and weighted values
// are made alone and then joined to the row's in ascending order.
constexpr int32_t attention_chunk = 256;

struct AttentionCall {
    KVView kv;
    const float* q;       // rows of q: token t of the step, head h at q + t * ld_q + h * qk_dim
    int64_t ld_q;
    float* out;           // token t, head h at out + t * ld_out + h * v_dim
    int64_t ld_out;
    int32_t num_heads;
    int32_t head_parts;   // the query heads of a kv head are taken in so many equal parts, each as if of a kv head of its own
    float scale;
    float soft_cap;       // 0: none
    int32_t window;       // 0: none; else of the keys that are seen the last `window`
    bool causal;
    // the sequence
    const int32_t* block_table;  // its blocks
    int32_t context_len;         // keys in the cache, this step's included
    int32_t first_token;         // its first row in q and out
    int32_t first_position;      // position of that row
};

// What a row knows after some chunks: enough to join it with the next. sum and values are relative to exp(largest).
struct PartialAttention {
    float* largest;  // [rows]
    float* sum;      // [rows]
    float* values;   // [rows][v_dim]
};

struct RopeTable {
    const float* cosines;  // [max_position][pairs], magnitude included
    const float* sines;
    int32_t pairs;         // 2 * pairs columns of each head turn
    bool interleaved;      // pair p: columns 2p, 2p + 1; else p and p + pairs
};

enum class ActivationKind : int32_t { silu = 0, relu = 1, gelu = 2, gelu_tanh = 3, sigmoid = 4, tanh = 5 };

struct ExecKernels {
    const char* name;
    int32_t row_tile;      // rows of a tile of Activations, at most max_row_tile
    bool multiplies_bf16;  // bf16 matrices take Activations::bf16

    // Rows [row_begin, row_end) of x [.., ld] into `a`, whose sizes are set; k32 - num_cols columns are zeros.
    // A row that is not finite gives NaN scales, so that its products are NaN.
    void (*quantise_rows)(const float* x, int64_t ld, int32_t row_begin, int32_t row_end, const Activations* a);
    // For bf16 matrices.
    void (*pack_rows)(const float* x, int64_t ld, int32_t row_begin, int32_t row_end, const Activations* a);

    // Rows [row_begin, row_end) times panels [panel_begin, panel_end); row_begin is a multiple of row_tile, row_end too or
    // the last row; with a gate the panels are even. Columns past num_rows are not written.
    void (*product)(const MatrixView* w, const Activations* a, int32_t row_begin, int32_t row_end, int32_t panel_begin,
                    int32_t panel_end, const ProductOut* out);

    // Row `row` of w as float32 [num_cols], times scale.
    void (*read_row)(const MatrixView* w, int32_t row, float scale, float* out);

    // Per row of `width`: over `head` columns each (head == width: the whole row). weight and bias [head]; bias null: none.
    void (*rms_norm)(const float* x, int64_t ld, float* out, int64_t ld_out, int32_t rows, int32_t width, int32_t head,
                     const float* weight, float eps, bool one_plus);
    void (*layer_norm)(const float* x, int64_t ld, float* out, int64_t ld_out, int32_t rows, int32_t width, int32_t head,
                       const float* weight, const float* bias, float eps, bool one_plus);

    // Element by element. out may be x.
    void (*activation)(int32_t kind, const float* x, float* out, int64_t n);  // an ActivationKind
    void (*gate)(Gate kind, const float* gate, const float* up, float* out, int64_t n);
    void (*multiply)(const float* x, const float* y, float* out, int64_t n);
    void (*add)(const float* x, const float* y, float* out, int64_t n);
    void (*scale)(const float* x, float factor, float* out, int64_t n);
    // cap * tanh(x * scale / cap); cap 0: x * scale
    void (*soft_cap)(const float* x, float scale, float cap, float* out, int64_t n);

    // x: rows with num_heads heads of head_dim at stride ld; in place. positions [rows].
    void (*rope)(float* x, int64_t ld, const int32_t* positions, int32_t rows, int32_t num_heads, int32_t head_dim,
                 const RopeTable* table);

    // Writes k and v of tokens [0, rows) of kv heads [head_begin, head_end): k + t * ld_k + h * qk_dim. slots [rows]: block *
    // block_size + place. A write to an even place of a bf16 V pair zeroes its odd partner first.
    // Rows of one sequence are ascending; two calls never share a block and head.
    void (*write_kv)(const KVView* kv, const float* k, int64_t ld_k, const float* v, int64_t ld_v, const int64_t* slots,
                     int32_t rows, int32_t head_begin, int32_t head_end);

    // All of a sequence's keys for tokens [token_begin, token_end) of the call's sequence (0 is its first row) and the query
    // heads of part `kv_head`: part p of kv head h is h * head_parts + p; scratch: attention_scratch_floats. Writes out.
    void (*attend)(const AttentionCall* call, int32_t token_begin, int32_t token_end, int32_t kv_head, float* scratch);
    // One chunk (keys chunk * attention_chunk and on) for one token; then the join, for all chunks in ascending order. The
    // result has the bits of attend(). partial rows are the query heads of the kv head; partials[c] in ascending order.
    void (*attend_chunk)(const AttentionCall* call, int32_t token, int32_t kv_head, int32_t chunk, float* scratch,
                         const PartialAttention* partial);
    void (*join_chunks)(const AttentionCall* call, int32_t token, int32_t kv_head, int32_t num_chunks,
                        const PartialAttention* partials);
    int32_t attend_tokens;  // the most tokens that one attend() should be given

    // Whether all of x is finite.
    bool (*is_finite)(const float* x, int64_t n);
};

// Floats of scratch that attend and attend_chunk need.
int64_t attention_scratch_floats(const AttentionCall& call);

extern const ExecKernels exec_kernels_plain;
extern const ExecKernels exec_kernels_avx2;
extern const ExecKernels exec_kernels_avx2_vnni;
extern const ExecKernels exec_kernels_avx512;       // F BW DQ VL VNNI
extern const ExecKernels exec_kernels_avx512_bf16;  // and BF16

}  // namespace headway
