// The kernels of the table: chunks, their join, and what is written.
#pragma once

namespace headway {
namespace {

HEADWAY_INLINE void run_any_chunk(const AttentionTile& tile, int32_t chunk) {
    const bool direct = is_direct(tile);
    if constexpr (dots_bf16) {
        if (tile.uses_pairs()) {
            return direct ? run_chunk_direct<PairCells, PairCells>(tile, chunk) : run_chunk<PairSteps>(tile, chunk);
        }
    }
    if (!direct) return run_chunk<SingleSteps>(tile, chunk);
    if (tile.call->kv.type == KVType::int8) return run_chunk_direct<KeyByteCells, ValueByteCells>(tile, chunk);
    if (tile.call->kv.type == KVType::f16) return run_chunk_direct<HalfCells, HalfCells>(tile, chunk);
    run_chunk_direct<Bfloat16Cells, Bfloat16Cells>(tile, chunk);
}

HEADWAY_INLINE float power(float x) {
    float lanes[width];
    store(lanes, exp2_of_negative(splat(x)));
    return lanes[0];
}

// A chunk's largest, sum and values into those of the chunks before (sum 0: there are none).
void join(float chunk_largest, float chunk_sum, const float* values, int32_t dim, float& largest, float& sum,
          float* totals) {
    if (chunk_sum == 0.0f) return;
    if (sum == 0.0f) {
        largest = chunk_largest, sum = chunk_sum;
        for_each_part(dim, [&](int32_t i, int count) { store_part(totals + i, load_part(values + i, count), count); });
        return;
    }
    const float together = chunk_largest > largest ? chunk_largest : largest;
    const float old_share = power(largest - together), new_share = power(chunk_largest - together);
    largest = together;
    sum = sum * old_share + chunk_sum * new_share;
    for_each_part(dim, [&](int32_t i, int count) {
        const Floats old_part = mul(load_part(totals + i, count), splat(old_share));
        store_part(totals + i, fma(load_part(values + i, count), splat(new_share), old_part), count);
    });
}

void write_row(const AttentionCall& call, int32_t token, int32_t head, const float* totals, float sum) {
    float* out = call.out + static_cast<int64_t>(call.first_token + token) * call.ld_out +
                 static_cast<int64_t>(head) * call.kv.v_dim;
    const Floats share = splat(1.0f / sum);
    for_each_part(call.kv.v_dim, [&](int32_t i, int count) {
        store_part(out + i, mul(load_part(totals + i, count), share), count);
    });
}

void attend(const AttentionCall* call, int32_t token_begin, int32_t token_end, int32_t kv_head, float* scratch) {
    const AttentionTile tile = make_tile(call, token_begin, token_end, kv_head, scratch);
    load_queries(tile);
    for (int32_t row = 0; row < tile.rows; ++row) tile.sum()[row] = 0.0f;
    const KeyRange seen = tile.seen_by_one_of(0, tile.rows);
    for (int32_t chunk = seen.begin / attention_chunk; chunk * attention_chunk < seen.end; ++chunk) {
        run_any_chunk(tile, chunk);
        for (int32_t row = 0; row < tile.rows; ++row) {
            join(tile.chunk_largest()[row], tile.chunk_sum()[row], tile.values(row), call->kv.v_dim,
                 tile.largest()[row], tile.sum()[row], tile.totals(row));
        }
    }
    for (int32_t row = 0; row < tile.rows; ++row) {
        write_row(*call, token_begin + row / tile.heads, kv_head * tile.heads + row % tile.heads, tile.totals(row),
                  tile.sum()[row]);
    }
}

void attend_chunk(const AttentionCall* call, int32_t token, int32_t kv_head, int32_t chunk, float* scratch,
                  const PartialAttention* partial) {
    const AttentionTile tile = make_tile(call, token, token + 1, kv_head, scratch);
    const bool is_seen = !is_empty(within_chunk(tile.seen_by(0), chunk));
    if (is_seen) {
        load_queries(tile);
        run_any_chunk(tile, chunk);
    }
    for (int32_t row = 0; row < tile.rows; ++row) {
        partial->largest[row] = is_seen ? tile.chunk_largest()[row] : -__builtin_inff();
        partial->sum[row] = is_seen ? tile.chunk_sum()[row] : 0.0f;
        float* to = partial->values + static_cast<int64_t>(row) * call->kv.v_dim;
        for (int32_t i = 0; is_seen && i < call->kv.v_dim; ++i) to[i] = tile.values(row)[i];
    }
}

void join_chunks(const AttentionCall* call, int32_t token, int32_t kv_head, int32_t num_chunks,
                 const PartialAttention* partials) {
    const int32_t heads = heads_at_once(*call), dim = call->kv.v_dim;
    for (int32_t row = 0; row < heads; ++row) {
        float largest = 0.0f, sum = 0.0f;
        // The first chunk's values are where the others are added.
        float* totals = partials[0].values + static_cast<int64_t>(row) * dim;
        for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
            const PartialAttention& partial = partials[chunk];
            join(partial.largest[row], partial.sum[row], partial.values + static_cast<int64_t>(row) * dim, dim,
                 largest, sum, totals);
        }
        write_row(*call, token, kv_head * heads + row, totals, sum);
    }
}

}  // namespace
}  // namespace headway
