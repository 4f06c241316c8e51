// Attention of one token: its query heads are few, so K and V are multiplied straight from the cache, each loaded once
// for all of them. The chains are those of attention_tile_impl.h, to the bit.
#pragma once

namespace headway {
namespace {

// Rows at a time, and strips (of keys, or of columns of V) beside each other so that enough chains run at once.
constexpr int direct_rows = (num_registers - 4) / strip_vectors < 8 ? (num_registers - 4) / strip_vectors : 8;

template <int constant>
struct Constant {
    static constexpr int value = constant;
};

// Sums take three quarters of the registers at most: columns, their halves and factors need the others.
constexpr int strips_beside(int rows) {
    int strips = 4;
    while (strips > 1 && rows * strips * strip_vectors > num_registers * 3 / 4) strips /= 2;
    return strips;
}

enum class Seen { all, first, second };  // of the two keys of a cell of values

// What a cell of the cache holds: `values` dimensions of a key, or keys of a column, added in `parts` steps, ascending.
// get<part> loads a vector of cells and gives what a step takes of them.
struct Bfloat16Cells {
    typedef SingleSteps Steps;
    static constexpr int values = 2, parts = 2, bytes = 4;
    static constexpr bool takes(int part, Seen seen) {
        return seen == Seen::all || (part == 0) == (seen == Seen::first);
    }
    template <int part, Seen>
    static HEADWAY_INLINE Floats get(const char* from) {
        return part == 0 ? even_of_pairs(load_ints(from)) : odd_of_pairs(load_ints(from));
    }
};

struct PairCells {
    typedef PairSteps Steps;
    static constexpr int values = 2, parts = 1, bytes = 4;
    static constexpr bool takes(int, Seen) { return true; }
    template <int, Seen seen>
    static HEADWAY_INLINE Floats get(const char* from) {
        const Ints pairs = load_ints(from);
        if constexpr (seen == Seen::all) return floats_of(pairs);
        return floats_of(bits_and(pairs, splat_int(seen == Seen::first ? 0xffff : -0x10000)));
    }
};

struct HalfCells {
    typedef SingleSteps Steps;
    static constexpr int values = 1, parts = 1, bytes = 2;
    static constexpr bool takes(int, Seen) { return true; }
    template <int, Seen>
    static HEADWAY_INLINE Floats get(const char* from) {
        return load_float16(reinterpret_cast<const uint16_t*>(from));
    }
};

struct KeyByteCells {
    typedef SingleSteps Steps;
    static constexpr int values = 4, parts = 4, bytes = 4;
    static constexpr bool takes(int, Seen) { return true; }
    template <int part, Seen>
    static HEADWAY_INLINE Floats get(const char* from) {
        return byte_of_quads<part>(load_ints(from));
    }
};

struct ValueByteCells {
    typedef SingleSteps Steps;
    static constexpr int values = 1, parts = 1, bytes = 1;
    static constexpr bool takes(int, Seen) { return true; }
    template <int, Seen>
    static HEADWAY_INLINE Floats get(const char* from) {
        return load_bytes(reinterpret_cast<const int8_t*>(from));
    }
};

template <typename Cells, Seen seen, int part, int strips>
HEADWAY_INLINE Floats get_vector(const char* const (&from)[strips], int v) {
    return Cells::template get<part, seen>(from[v / strip_vectors] + v % strip_vectors * width * Cells::bytes);
}

// Adds the cells at `from` (a pointer for each strip) to the sums, part by part. What is used more often stays in
// registers: a part's factors, or its columns; beside the sums there is room for one of them.
template <typename Cells, Seen seen, int rows, int strips, int part = 0>
HEADWAY_INLINE void add_cells(Source a, const char* const (&from)[strips],
                              Floats (&sums)[rows][strips * strip_vectors]) {
    constexpr int vectors = strips * strip_vectors;
    typedef typename Cells::Steps Steps;
    if constexpr (part < Cells::parts) {
        if constexpr (Cells::takes(part, seen) && rows <= vectors) {
            Floats factors[rows];
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) factors[r] = Steps::splat_step(a.data + r * a.ld + part);
#pragma GCC unroll 16
            for (int v = 0; v < vectors; ++v) {
                const Floats columns = get_vector<Cells, seen, part>(from, v);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) sums[r][v] = Steps::add_step(factors[r], columns, sums[r][v]);
            }
        } else if constexpr (Cells::takes(part, seen)) {
            Floats columns[vectors];
#pragma GCC unroll 16
            for (int v = 0; v < vectors; ++v) columns[v] = get_vector<Cells, seen, part>(from, v);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const Floats factor = Steps::splat_step(a.data + r * a.ld + part);
#pragma GCC unroll 16
                for (int v = 0; v < vectors; ++v) sums[r][v] = Steps::add_step(factor, columns[v], sums[r][v]);
            }
        }
        // Else the compiler keeps what it loaded for the next part, and the sums leave the registers.
        __asm__ volatile("" ::: "memory");
        add_cells<Cells, seen, rows, strips, part + 1>(a, from, sums);
    }
}

template <int rows, int vectors>
HEADWAY_INLINE void clear_sums(Floats (&sums)[rows][vectors]) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) sums[r][v] = splat(0.0f);
    }
}

template <int rows, int vectors>
HEADWAY_INLINE void store_sums(const Floats (&sums)[rows][vectors], float* to, int64_t ld) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) store(to + r * ld + v * width, sums[r][v]);
    }
}

// Where the strips of a chunk lie, from its first that is seen on; the last values' successor is only prefetched.
struct ChunkStrips {
    const char* keys[attention_chunk / strip];
    const char* values[attention_chunk / strip + 1];
    int32_t first, end;  // strips
};

template <typename KeyCells, typename ValueCells>
ChunkStrips find_strips(const AttentionTile& tile, KeyRange seen, int32_t chunk) {
    const KVView& kv = tile.call->kv;
    const int64_t key_bytes = static_cast<int64_t>(kv.qk_dim) / KeyCells::values * kv.block_size * KeyCells::bytes;
    const int64_t value_bytes = static_cast<int64_t>(kv.block_size) / ValueCells::values * kv.v_dim * ValueCells::bytes;
    ChunkStrips strips;
    strips.first = seen.begin / strip;
    strips.end = (seen.end + strip - 1) / strip;
    for (int32_t s = strips.first; s < strips.end; ++s) {
        const StripPlace at = find_strip(*tile.call, tile.kv_head, chunk * attention_chunk + s * strip);
        strips.keys[s] = static_cast<const char*>(kv.k) + at.block_head * key_bytes + at.place * KeyCells::bytes;
        strips.values[s] = static_cast<const char*>(kv.v) + at.block_head * value_bytes +
                           value_bytes / kv.block_size * at.place;
    }
    strips.values[strips.end] = strips.values[strips.end - 1];
    return strips;
}

// Scores of `rows` rows and the keys of `strips` strips.
template <typename Cells, int rows, int strips>
__attribute__((noinline)) void score_strips(Source queries, const char* const* keys, const char* const* next,
                                            int64_t step_bytes, int32_t steps, float* scores) {
    Floats sums[rows][strips * strip_vectors];
    clear_sums(sums);
    const char* from[strips];
    int64_t to_next[strips];
    for (int s = 0; s < strips; ++s) from[s] = keys[s], to_next[s] = next[s] - keys[s];
    for (int32_t step = 0; step < steps; ++step, queries.data += Cells::values / Cells::Steps::size) {
#pragma GCC unroll 4
        for (int s = 0; s < strips; ++s) __builtin_prefetch(from[s] + to_next[s]);
        add_cells<Cells, Seen::all, rows, strips>(queries, from, sums);
#pragma GCC unroll 4
        for (int s = 0; s < strips; ++s) from[s] += step_bytes;
    }
    store_sums(sums, scores, attention_chunk);
}

// Groups of strips from a multiple of their number on; what lies outside the chunk's strips is any strip, for nothing.
template <typename Cells, int rows>
void score_all_strips(const AttentionTile& tile, const ChunkStrips& strips, int32_t row) {
    constexpr int beside = strips_beside(rows);
    const KVView& kv = tile.call->kv;
    const Source queries{tile.queries(row), tile.layout.query_ld};
    const auto find = [&](int32_t s) { return strips.keys[s < strips.first ? strips.first : s]; };
    for (int32_t s = strips.first / beside * beside; s < strips.end; s += beside) {
        const char *keys[beside], *next[beside];
        for (int i = 0; i < beside; ++i) {
            keys[i] = s + i < strips.end ? find(s + i) : strips.keys[strips.end - 1];
            next[i] = s + beside + i < strips.end ? find(s + beside + i) : strips.values[strips.first];
        }
        score_strips<Cells, rows, beside>(queries, keys, next, static_cast<int64_t>(kv.block_size) * Cells::bytes,
                                          kv.qk_dim / Cells::values, tile.scores(row) + s * strip);
    }
}

// The values of a chunk, column `column` on.
template <typename Cells>
struct ValueWalk {
    static constexpr int32_t steps = strip / Cells::values;  // of a strip
    static constexpr int32_t words = Cells::values / Cells::Steps::size;  // of the weights, a step

    const ChunkStrips* strips;
    int64_t step_bytes;
    int32_t column;

    const char* find(int32_t step) const {
        return strips->values[step / steps] + step % steps * step_bytes + column * Cells::bytes;
    }
};

template <typename Cells, Seen seen, int rows, int strips>
HEADWAY_INLINE void add_step_of_values(const float* weights, const char* at,
                                       Floats (&sums)[rows][strips * strip_vectors]) {
    const char* from[strips];
#pragma GCC unroll 4
    for (int s = 0; s < strips; ++s) from[s] = at + s * strip * Cells::bytes;
    add_cells<Cells, seen, rows, strips>({weights, attention_chunk}, from, sums);
}

// Values of `rows` rows in the columns of `strips` strips, from the keys of a range.
template <typename Cells, int rows, int strips>
__attribute__((noinline)) void add_value_columns(const ValueWalk<Cells>& walk, const float* weights, KeyRange range,
                                                 Target to) {
    Floats sums[rows][strips * strip_vectors];
    clear_sums(sums);
    const int32_t first = (range.begin + Cells::values - 1) / Cells::values, last = range.end / Cells::values;
    if (first * Cells::values > range.begin) {
        const float* weight = weights + (first - 1) * walk.words;
        add_step_of_values<Cells, Seen::second, rows, strips>(weight, walk.find(first - 1), sums);
    }
    for (int32_t step = first; step < last;) {
        const int32_t next = step / walk.steps + 1, end = next * walk.steps < last ? next * walk.steps : last;
        const char* from = walk.find(step);
        const int64_t to_next = walk.strips->values[next] - walk.strips->values[next - 1];
        const float* weight = weights + step * walk.words;
        for (; step < end; ++step, from += walk.step_bytes, weight += walk.words) {
#pragma GCC unroll 4
            for (int s = 0; s < strips; ++s) __builtin_prefetch(from + to_next + s * strip * Cells::bytes);
            add_step_of_values<Cells, Seen::all, rows, strips>(weight, from, sums);
        }
    }
    if (last * Cells::values < range.end) {
        add_step_of_values<Cells, Seen::first, rows, strips>(weights + last * walk.words, walk.find(last), sums);
    }
    store_sums(sums, to.data, to.ld);
}

// Groups of columns; the last one may go over some again.
template <typename Cells, int rows>
void add_all_values(const AttentionTile& tile, const ChunkStrips& strips, KeyRange range, int32_t row) {
    constexpr int32_t columns = strips_beside(rows) * strip;
    const int32_t dim = tile.call->kv.v_dim;
    ValueWalk<Cells> walk{&strips, static_cast<int64_t>(dim) * Cells::bytes, 0};
    for (int32_t column = 0; column < dim; column += columns) {
        walk.column = column + columns <= dim ? column : dim - columns;
        add_value_columns<Cells, rows, columns / strip>(walk, tile.scores(row), range,
                                                        {tile.values(row) + walk.column, tile.layout.value_ld, false});
    }
}

// Calls run(rows as a constant) for a number of rows that is known only now.
template <int most_rows = direct_rows, typename Run>
HEADWAY_INLINE void with_rows(int32_t rows, Run run) {
    if constexpr (most_rows > 0) {
        if (rows == most_rows) return run(Constant<most_rows>{});
        with_rows<most_rows - 1>(rows, run);
    }
}

// run_chunk for a tile of one token.
template <typename KeyCells, typename ValueCells>
void run_chunk_direct(const AttentionTile& tile, int32_t chunk) {
    const KeyRange range = within_chunk(tile.seen_by(0), chunk);
    const ChunkStrips strips = find_strips<KeyCells, ValueCells>(tile, range, chunk);
    if (tile.call->kv.type == KVType::int8) load_scales(tile, chunk);
    const int32_t groups = (tile.rows + direct_rows - 1) / direct_rows, most = (tile.rows + groups - 1) / groups;
    for (int32_t row = 0; row < tile.rows; row += most) {
        with_rows(tile.rows - row < most ? tile.rows - row : most, [&](auto rows) {
            score_all_strips<KeyCells, decltype(rows)::value>(tile, strips, row);
        });
    }
    for (int32_t row = 0; row < tile.rows; ++row) weigh_row(tile, row, chunk);
    for (int32_t row = 0; row < tile.rows; row += most) {
        with_rows(tile.rows - row < most ? tile.rows - row : most, [&](auto rows) {
            add_all_values<ValueCells, decltype(rows)::value>(tile, strips, range, row);
        });
    }
}

// Dimensions of a key in a cell.
HEADWAY_INLINE int32_t key_cell(KVType type) { return type == KVType::int8 ? 4 : type == KVType::bf16 ? 2 : 1; }

// Whole cells of keys, and as many columns as a group has: what every known model has whose values are no part of keys.
HEADWAY_INLINE bool is_direct(const AttentionTile& tile) {
    const KVView& kv = tile.call->kv;
    const int32_t fewest = tile.rows == 1 ? strips_beside(1) * strip : strips_beside(2) * strip;
    return tile.rows == tile.heads && !kv.v_in_k && kv.qk_dim % key_cell(kv.type) == 0 &&
           kv.v_dim % strip == 0 && kv.v_dim >= fewest;
}

}  // namespace
}  // namespace headway
