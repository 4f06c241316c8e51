// Paged attention: softmax(q k^T) v for some tokens of a sequence and the query heads of one kv head.
//
// Exactness: what a row gives depends on that row, its keys and their positions alone. Keys are taken in chunks from
// absolute multiples of attention_chunk on; in each
//   1. a score is one chain over the dimensions, ascending
//   2. largest, weights and their sum: lane l has the keys l, l + width, ..; lanes are added in a fixed order
//   3. a value is one chain over the visible keys, ascending
// and chunks are joined ascending. A key that a row does not see is never multiplied into it: a cache may hold anything
// there. Weights are powers of two: log2(e) is in the scale.
#pragma once

namespace headway {
namespace {

constexpr float log2_of_e = 1.44269504088896341f;

// Keys [begin, end).
struct KeyRange {
    int32_t begin;
    int32_t end;
};

HEADWAY_INLINE bool is_empty(KeyRange range) { return range.begin >= range.end; }

HEADWAY_INLINE KeyRange intersect(KeyRange a, KeyRange b) {
    return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

// Some tokens of a sequence times the query heads of a kv head: row = token * heads + head.
struct AttentionTile {
    const AttentionCall* call;
    int32_t kv_head;
    int32_t token_begin;
    int32_t heads;  // of a token
    int32_t rows;
    AttentionScratch layout;
    float* scratch;

    float* queries(int32_t row) const { return scratch + layout.queries + row * layout.query_ld; }
    float* scores(int32_t row) const { return scratch + layout.scores + row * attention_chunk; }
    float* values(int32_t row) const { return scratch + layout.values + row * layout.value_ld; }
    float* totals(int32_t row) const { return scratch + layout.totals + row * layout.value_ld; }
    float* chunk_largest() const { return scratch + layout.peaks; }
    float* chunk_sum() const { return scratch + layout.peaks + rows; }
    float* largest() const { return scratch + layout.peaks + 2 * rows; }
    float* sum() const { return scratch + layout.peaks + 3 * rows; }
    float* key_scales() const { return scratch + layout.scales; }
    float* value_scales() const { return scratch + layout.scales + attention_chunk; }
    float* unpacked() const { return scratch + layout.unpacked; }

    // bfloat16 is multiplied as it is.
    bool uses_pairs() const { return dots_bf16 && call->kv.type == KVType::bf16; }

    KeyRange seen_by(int32_t row) const {
        const int32_t position = call->first_position + token_begin + row / heads;
        const int32_t end = call->causal ? position + 1 : call->context_len;
        const int32_t begin = call->window > 0 && end > call->window ? end - call->window : 0;
        return {begin, end};
    }
    // Of the rows [begin, end): what one of them sees, and what all do. Ranges never go back from row to row.
    KeyRange seen_by_one_of(int32_t begin, int32_t end) const {
        return {seen_by(begin).begin, seen_by(end - 1).end};
    }
    KeyRange seen_by_all_of(int32_t begin, int32_t end) const {
        return {seen_by(end - 1).begin, seen_by(begin).end};
    }
};

AttentionTile make_tile(const AttentionCall* call, int32_t token_begin, int32_t token_end, int32_t kv_head,
                        float* scratch) {
    const int32_t heads = heads_at_once(*call);
    return {call,         kv_head, token_begin, heads, (token_end - token_begin) * heads,
            divide_scratch(*call, token_end - token_begin), scratch};
}

// The part of a range in a chunk, from the chunk's first key on.
HEADWAY_INLINE KeyRange within_chunk(KeyRange range, int32_t chunk) {
    const int32_t first = chunk * attention_chunk;
    const KeyRange inside = intersect(range, {first, first + attention_chunk});
    return {inside.begin - first, inside.end - first};
}

void write_pairs(const float* x, int32_t n, float* to) {
    for (int32_t i = 0; i < n; i += width) {
        store_low_halves(to + i / 2, bfloat16_bits(load(x + i)));
    }
}

// The queries, scaled so that the chains give what exp2 takes, or with a soft cap tanh; zeros behind qk_dim.
void load_queries(const AttentionTile& tile) {
    const AttentionCall& call = *tile.call;
    const float factor = call.soft_cap > 0.0f ? call.scale / call.soft_cap : call.scale * log2_of_e;
    for (int32_t row = 0; row < tile.rows; ++row) {
        const int64_t token = call.first_token + tile.token_begin + row / tile.heads;
        const int64_t head = static_cast<int64_t>(tile.kv_head) * tile.heads + row % tile.heads;
        const float* from = call.q + token * call.ld_q + head * call.kv.qk_dim;
        float* to = tile.queries(row);
        for_each_part(call.kv.qk_dim, [&](int32_t i, int count) {
            store(to + i, mul(load_part(from + i, count), splat(factor)));
        });
        for (int32_t i = call.kv.qk_dim; i < tile.layout.query_ld; ++i) to[i] = 0.0f;
        if (tile.uses_pairs()) write_pairs(to, tile.layout.query_ld, to);
    }
}

// 1. The scores of the strips that some row sees.
template <typename Steps>
void score_chunk(const AttentionTile& tile, int32_t chunk) {
    constexpr int32_t panel = tile_strips * strip;
    const AttentionCall& call = *tile.call;
    const KeyRange seen = within_chunk(tile.seen_by_one_of(0, tile.rows), chunk);
    for (int32_t first = seen.begin / panel * panel; first < seen.end; first += panel) {
        for (int32_t key = first; key < first + panel && key < seen.end; key += strip) {
            if (key + strip <= seen.begin) continue;
            const StripPlace place = find_strip(call, tile.kv_head, chunk * attention_chunk + key);
            float* to = tile.unpacked() + (key - first);
            if (call.kv.type == KVType::int8) {
                unpack_key_bytes(call.kv, place, to, panel);
            } else if (call.kv.type == KVType::f16) {
                unpack_key_halves(call.kv, place, to, panel);
            } else {
                unpack_key_pairs<Steps::size == 2>(call.kv, place, to, panel);
            }
        }
        const int32_t steps = (call.kv.qk_dim + Steps::size - 1) / Steps::size;
        for (int32_t row = 0; row < tile.rows; row += tile_rows) {
            const int32_t rows = tile.rows - row < tile_rows ? tile.rows - row : tile_rows;
            const KeyRange own = within_chunk(tile.seen_by_one_of(row, row + rows), chunk);
            if (is_empty(intersect(own, {first, first + panel}))) continue;
            multiply_rows<Steps>(rows, {tile.queries(row), tile.layout.query_ld}, {tile.unpacked(), panel}, steps,
                                 {tile.scores(row) + first, attention_chunk, false});
        }
    }
}

// visit(first, place, is_edge) for the vectors that touch a range, ascending; place is 0 and 1 in turn from absolute
// multiples of two vectors on, is_edge is true where some lanes may not be of the range. Written out for two vectors, and
// with visits that are inlined, so that what is kept for each place stays in registers.
#define HEADWAY_VISIT(...) [&](__VA_ARGS__) __attribute__((always_inline))

template <typename Visit>
HEADWAY_INLINE void for_each_vector(KeyRange range, Visit visit) {
    constexpr int32_t two = 2 * width;
    for (int32_t i = range.begin / two * two; i < range.end; i += two) {
        if (i >= range.begin && i + two <= range.end) {
            visit(i, 0, false);
            visit(i + width, 1, false);
            continue;
        }
        if (i + width > range.begin) visit(i, 0, true);
        if (i + width < range.end) visit(i + width, 1, true);
    }
}

// Scores to what exp2 takes: int8 keys have a scale, and a soft cap bends.
void finish_scores(const AttentionTile& tile, float* scores, KeyRange range) {
    const float cap = tile.call->soft_cap;
    const bool has_scales = tile.call->kv.type == KVType::int8;
    if (!has_scales && !(cap > 0.0f)) return;
    for_each_vector(range, [&](int32_t i, int, bool) {
        Floats score = load(scores + i);
        if (has_scales) score = mul(score, load(tile.key_scales() + i));
        if (cap > 0.0f) score = mul(hyperbolic_tangent(score), splat(cap * log2_of_e));
        store(scores + i, score);
    });
}

float find_largest(const float* scores, KeyRange range) {
    const Floats lowest = splat(-__builtin_inff());
    Floats largest[2] = {lowest, lowest};
    for_each_vector(range, HEADWAY_VISIT(int32_t i, int place, bool is_edge) {
        Floats score = load(scores + i);
        if (is_edge) score = select(lanes_between(i, range.begin, range.end), score, lowest);
        largest[place] = larger(score, largest[place]);
    });
    return largest_lane(larger(largest[0], largest[1]));
}

// 2. Scores become weights, those of int8 values with their scale in them. A row that sees nothing has sum 0.
void weigh_row(const AttentionTile& tile, int32_t row, int32_t chunk) {
    const KeyRange range = within_chunk(tile.seen_by(row), chunk);
    tile.chunk_largest()[row] = -__builtin_inff();
    tile.chunk_sum()[row] = 0.0f;
    if (is_empty(range)) return;
    float* scores = tile.scores(row);
    finish_scores(tile, scores, range);
    const float largest = find_largest(scores, range);
    const float* scales = tile.call->kv.type == KVType::int8 ? tile.value_scales() : nullptr;
    Floats sums[2] = {splat(0.0f), splat(0.0f)};
    for_each_vector(range, HEADWAY_VISIT(int32_t i, int place, bool is_edge) {
        Floats weight = exp2_of_negative(sub(load(scores + i), splat(largest)));
        if (is_edge) weight = select(lanes_between(i, range.begin, range.end), weight, splat(0.0f));
        sums[place] = add(sums[place], weight);
        store(scores + i, scales == nullptr ? weight : mul(weight, load(scales + i)));
    });
    tile.chunk_largest()[row] = largest;
    tile.chunk_sum()[row] = sum_lanes(add(sums[0], sums[1]));
    if (tile.uses_pairs()) {
        const int32_t first = range.begin / 16 * 16;
        write_pairs(scores + first, round_up(range.end, 16) - first, scores + first / 2);
    }
}

// The values of one row from keys that not all of its tile see; half a pair is taken alone.
template <typename Steps>
void add_keys_of_row(const float* weights, KeyRange range, const float* panel, float* to, bool continues) {
    constexpr int32_t ld = tile_strips * strip;
    const auto add_steps = [&](int32_t first, int32_t count, const float* columns) {
        multiply_tile<Steps, 1, tile_vectors>({weights + first, 0}, {columns, ld}, count, {to, 0, continues});
        continues = true;
    };
    if constexpr (Steps::size == 1) {
        add_steps(range.begin, range.end - range.begin, panel + range.begin * ld);
    } else {
        const auto add_half = [&](int32_t pair, int32_t mask) {
            float masked[ld];
            for (int32_t c = 0; c < ld; c += width) {
                store_ints(masked + c, bits_and(load_ints(panel + pair * ld + c), splat_int(mask)));
            }
            add_steps(pair, 1, masked);
        };
        const int32_t first = (range.begin + 1) / 2, last = range.end / 2;
        if (range.begin % 2 != 0) add_half(range.begin / 2, -0x10000);
        if (last > first) add_steps(first, last - first, panel + first * ld);
        if (range.end % 2 != 0) add_half(range.end / 2, 0xffff);
    }
}

// 3. A panel of columns of the values of some rows: the keys that all of them see together, the others row by row.
template <typename Steps>
void add_values_of_rows(const AttentionTile& tile, int32_t chunk, int32_t row, int32_t rows, int32_t column) {
    constexpr int32_t ld = tile_strips * strip;
    KeyRange common = within_chunk(tile.seen_by_all_of(row, row + rows), chunk);
    common = {round_up(common.begin, Steps::size), common.end / Steps::size * Steps::size};
    if (is_empty(common)) common = {attention_chunk, attention_chunk};
    const bool has_more_before = within_chunk(tile.seen_by(row), chunk).begin < common.begin;
    for (int32_t r = row; has_more_before && r < row + rows; ++r) {
        const KeyRange own = intersect(within_chunk(tile.seen_by(r), chunk), {0, common.begin});
        float* to = tile.values(r) + column;
        for (int32_t c = 0; c < ld; c += width) store(to + c, splat(0.0f));
        if (!is_empty(own)) add_keys_of_row<Steps>(tile.scores(r), own, tile.unpacked(), to, false);
    }
    if (common.begin == attention_chunk) return;
    const int32_t first_step = common.begin / Steps::size;
    multiply_rows<Steps>(rows, {tile.scores(row) + first_step, attention_chunk},
                         {tile.unpacked() + first_step * ld, ld}, (common.end - common.begin) / Steps::size,
                         {tile.values(row) + column, tile.layout.value_ld, has_more_before});
    for (int32_t r = row + rows - 1; r >= row; --r) {
        const KeyRange own = {common.end, within_chunk(tile.seen_by(r), chunk).end};
        if (is_empty(own)) break;  // ends never grow from here on
        add_keys_of_row<Steps>(tile.scores(r), own, tile.unpacked(), tile.values(r) + column, true);
    }
}

template <typename Steps>
void add_values(const AttentionTile& tile, int32_t chunk) {
    constexpr int32_t panel = tile_strips * strip;
    const AttentionCall& call = *tile.call;
    const KeyRange seen = within_chunk(tile.seen_by_one_of(0, tile.rows), chunk);
    for (int32_t column = 0; column < call.kv.v_dim; column += panel) {
        for (int32_t key = seen.begin / strip * strip; key < seen.end; key += strip) {
            const StripPlace place = find_strip(call, tile.kv_head, chunk * attention_chunk + key);
            float* to = tile.unpacked() + key / Steps::size * panel;
            if (call.kv.v_in_k && call.kv.type == KVType::f16) {
                unpack_halves_of_keys(call.kv, place, column, panel, to);
            } else if (call.kv.v_in_k) {
                unpack_values_of_keys<Steps::size == 2>(call.kv, place, column, panel, to);
            } else if (call.kv.type == KVType::int8) {
                unpack_value_bytes(call.kv, place, column, panel, to, panel);
            } else if (call.kv.type == KVType::f16) {
                unpack_value_halves(call.kv, place, column, panel, to, panel);
            } else {
                unpack_value_pairs<Steps::size == 2>(call.kv, place, column, panel, to, panel);
            }
        }
        for (int32_t row = 0; row < tile.rows; row += tile_rows) {
            const int32_t rows = tile.rows - row < tile_rows ? tile.rows - row : tile_rows;
            if (is_empty(within_chunk(tile.seen_by_one_of(row, row + rows), chunk))) continue;
            add_values_of_rows<Steps>(tile, chunk, row, rows, column);
        }
    }
}

void load_scales(const AttentionTile& tile, int32_t chunk) {
    const AttentionCall& call = *tile.call;
    const KeyRange seen = within_chunk(tile.seen_by_one_of(0, tile.rows), chunk);
    const float* value_scales = call.kv.v_in_k ? call.kv.k_scales : call.kv.v_scales;
    for (int32_t key = seen.begin / strip * strip; key < seen.end; key += strip) {
        const StripPlace place = find_strip(call, tile.kv_head, chunk * attention_chunk + key);
        const int64_t from = place.block_head * call.kv.block_size + place.place;
        for (int32_t i = 0; i < strip; i += width) {
            store(tile.key_scales() + key + i, load(call.kv.k_scales + from + i));
            store(tile.value_scales() + key + i, load(value_scales + from + i));
        }
    }
}

// Largest, sum and values of a chunk, of every row; a row that sees nothing of it has sum 0 and any values.
template <typename Steps>
void run_chunk(const AttentionTile& tile, int32_t chunk) {
    if (tile.call->kv.type == KVType::int8) load_scales(tile, chunk);
    score_chunk<Steps>(tile, chunk);
    for (int32_t row = 0; row < tile.rows; ++row) weigh_row(tile, row, chunk);
    add_values<Steps>(tile, chunk);
}

}  // namespace
}  // namespace headway
