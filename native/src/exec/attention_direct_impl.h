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

constexpr int strips_beside(int rows) {
    int strips = 4;
    while (strips > 1 && rows * strips * strip_vectors > num_registers - 4) strips /= 2;
    return strips;
}

enum class Part { all, first, second };  // of a cell's two keys

// What a cell of the cache holds, and how it is added to the sums of `rows` rows, `stride` apart: `words` of a row belong
// to it, ascending.
struct Bfloat16Cells {
    static constexpr int words = 2, values = 2;
    static constexpr int32_t bytes = 4;
    typedef Ints Loaded;
    static HEADWAY_INLINE Ints load_cells(const char* from) { return load_ints(from); }
    template <int rows, Part part>
    static HEADWAY_INLINE void add_cells(const float* a, int64_t ld, Ints cells, Floats* sums, int stride) {
        const Floats even = even_of_pairs(cells), odd = odd_of_pairs(cells);
#pragma GCC unroll 8
        for (int r = 0; part != Part::second && r < rows; ++r) {
            sums[r * stride] = fma(splat(a[r * ld]), even, sums[r * stride]);
        }
#pragma GCC unroll 8
        for (int r = 0; part != Part::first && r < rows; ++r) {
            sums[r * stride] = fma(splat(a[r * ld + 1]), odd, sums[r * stride]);
        }
    }
};

struct PairCells {
    static constexpr int words = 1, values = 2;
    static constexpr int32_t bytes = 4;
    typedef Ints Loaded;
    static HEADWAY_INLINE Ints load_cells(const char* from) { return load_ints(from); }
    template <int rows, Part part>
    static HEADWAY_INLINE void add_cells(const float* a, int64_t ld, Ints cells, Floats* sums, int stride) {
        if (part == Part::first) cells = bits_and(cells, splat_int(0xffff));
        if (part == Part::second) cells = bits_and(cells, splat_int(-0x10000));
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            sums[r * stride] = dot_pairs(sums[r * stride], bits_of(PairSteps::splat_step(a + r * ld)), cells);
        }
    }
};

struct KeyByteCells {
    static constexpr int words = 4, values = 4;
    static constexpr int32_t bytes = 4;
    typedef Ints Loaded;
    static HEADWAY_INLINE Ints load_cells(const char* from) { return load_ints(from); }
    template <int rows, Part>
    static HEADWAY_INLINE void add_cells(const float* a, int64_t ld, Ints cells, Floats* sums, int stride) {
        const Floats parts[4] = {byte_of_quads<0>(cells), byte_of_quads<1>(cells), byte_of_quads<2>(cells),
                                 byte_of_quads<3>(cells)};
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                sums[r * stride] = fma(splat(a[r * ld + part]), parts[part], sums[r * stride]);
            }
        }
    }
};

struct ValueByteCells {
    static constexpr int words = 1, values = 1;
    static constexpr int32_t bytes = 1;
    typedef Floats Loaded;
    static HEADWAY_INLINE Floats load_cells(const char* from) {
        return load_bytes(reinterpret_cast<const int8_t*>(from));
    }
    template <int rows, Part>
    static HEADWAY_INLINE void add_cells(const float* a, int64_t ld, Floats cells, Floats* sums, int stride) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) sums[r * stride] = fma(splat(a[r * ld]), cells, sums[r * stride]);
    }
};

// Where the strips of a chunk lie, from its first that is seen on; the last one's successor is only prefetched.
struct ChunkStrips {
    const char* keys[attention_chunk / strip + 1];
    const char* values[attention_chunk / strip + 1];
    int32_t first, end;  // strips
};

ChunkStrips find_strips(const AttentionTile& tile, KeyRange seen, int32_t chunk) {
    const KVView& kv = tile.call->kv;
    const int32_t cell = kv.type == KVType::int8 ? 4 : 2;
    const int64_t key_bytes = static_cast<int64_t>(round_up(kv.qk_dim, cell)) / cell * kv.block_size * 4;
    const int64_t value_bytes = static_cast<int64_t>(kv.block_size) * kv.v_dim * (kv.type == KVType::int8 ? 1 : 2);
    ChunkStrips strips;
    strips.first = seen.begin / strip;
    strips.end = (seen.end + strip - 1) / strip;
    for (int32_t s = strips.first; s < strips.end; ++s) {
        const StripPlace at = find_strip(*tile.call, tile.kv_head, chunk * attention_chunk + s * strip);
        strips.keys[s] = static_cast<const char*>(kv.k) + at.block_head * key_bytes + at.place * 4;
        strips.values[s] = static_cast<const char*>(kv.v) + at.block_head * value_bytes +
                           value_bytes / kv.block_size * at.place;
    }
    strips.keys[strips.end] = strips.values[strips.first];
    strips.values[strips.end] = strips.values[strips.end - 1];
    return strips;
}

// Scores of `rows` rows and the keys of `strips` strips.
template <typename Cells, int rows, int strips>
void score_strips(Source queries, const char* const* keys, const char* const* next, int64_t step_bytes, int32_t steps,
                  float* scores) {
    constexpr int vectors = strips * strip_vectors;
    Floats sums[rows * vectors];
#pragma GCC unroll 64
    for (int i = 0; i < rows * vectors; ++i) sums[i] = splat(0.0f);
    for (int32_t step = 0; step < steps; ++step) {
        const int64_t offset = step * step_bytes;
#pragma GCC unroll 4
        for (int s = 0; s < strips; ++s) {
            __builtin_prefetch(next[s] + offset);
#pragma GCC unroll 4
            for (int v = 0; v < strip_vectors; ++v) {
                const auto cells = Cells::load_cells(keys[s] + offset + v * width * 4);
                Cells::template add_cells<rows, Part::all>(queries.data + step * Cells::words, queries.ld, cells,
                                                sums + s * strip_vectors + v, vectors);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) store(scores + r * attention_chunk + v * width, sums[r * vectors + v]);
    }
}

template <typename Cells, int rows>
void score_all_strips(const AttentionTile& tile, const ChunkStrips& strips, int32_t row) {
    constexpr int beside = strips_beside(rows);
    const KVView& kv = tile.call->kv;
    const int64_t step_bytes = static_cast<int64_t>(kv.block_size) * 4;
    const int32_t steps = kv.qk_dim / Cells::values;
    const Source queries{tile.queries(row), tile.layout.query_ld};
    int32_t s = strips.first;
    const char* next[beside];
    for (; s + beside <= strips.end; s += beside) {
        for (int i = 0; i < beside; ++i) next[i] = strips.keys[s + beside + i < strips.end ? s + beside + i : strips.end];
        score_strips<Cells, rows, beside>(queries, strips.keys + s, next, step_bytes, steps, tile.scores(row) + s * strip);
    }
    for (; s < strips.end; ++s) {
        score_strips<Cells, rows, 1>(queries, strips.keys + s, strips.keys + s + 1, step_bytes, steps,
                                     tile.scores(row) + s * strip);
    }
}

// What all strips of values are walked with.
struct ValueWalk {
    const ChunkStrips* strips;
    int64_t step_bytes;
    int32_t column_bytes;  // where the columns begin in a step
    bool prefetches;
};

template <typename Cells>
HEADWAY_INLINE const char* find_step(const ValueWalk& walk, int32_t step) {
    constexpr int32_t steps = strip / Cells::values;
    const char* const* at = walk.strips->values + step / steps;
    const int64_t offset = step % steps * walk.step_bytes;
    if (walk.prefetches) {
        for (int64_t line = 0; line < walk.step_bytes; line += 64) __builtin_prefetch(at[1] + offset + line);
    }
    return at[0] + offset + walk.column_bytes;
}

// Values of `rows` rows in the columns of `strips` strips, from the keys of a range.
template <typename Cells, int rows, int strips>
void add_value_columns(const ValueWalk& walk, const float* weights, KeyRange range, Target to) {
    constexpr int vectors = strips * strip_vectors;
    Floats sums[rows * vectors];
#pragma GCC unroll 64
    for (int i = 0; i < rows * vectors; ++i) sums[i] = splat(0.0f);
#define HEADWAY_ADD_STEP(step, part)                                                                              \
    do {                                                                                                          \
        const char* from = find_step<Cells>(walk, step);                                                         \
        _Pragma("GCC unroll 16") for (int v = 0; v < vectors; ++v) {                                              \
            const auto cells = Cells::load_cells(from + v * width * Cells::bytes);                                \
            Cells::template add_cells<rows, part>(weights + (step) * Cells::words, attention_chunk, cells,        \
                                                  sums + v, vectors);                                             \
        }                                                                                                         \
    } while (false)
    const int32_t first = (range.begin + Cells::values - 1) / Cells::values, last = range.end / Cells::values;
    if (first * Cells::values > range.begin) HEADWAY_ADD_STEP(first - 1, Part::second);
    for (int32_t step = first; step < last; ++step) HEADWAY_ADD_STEP(step, Part::all);
    if (last * Cells::values < range.end) HEADWAY_ADD_STEP(last, Part::first);
#undef HEADWAY_ADD_STEP
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < vectors; ++v) store(to.data + r * to.ld + v * width, sums[r * vectors + v]);
    }
}

template <typename Cells, int rows>
void add_all_values(const AttentionTile& tile, const ChunkStrips& strips, KeyRange range, int32_t row) {
    constexpr int beside = strips_beside(rows);
    const int32_t dim = tile.call->kv.v_dim;
    ValueWalk walk{&strips, static_cast<int64_t>(dim) * Cells::bytes, 0, row == 0};
    int32_t column = 0;
    const auto to = [&] { return Target{tile.values(row) + column, tile.layout.value_ld, false}; };
    for (; column + beside * strip <= dim; column += beside * strip) {
        add_value_columns<Cells, rows, beside>(walk, tile.scores(row), range, to());
        walk.prefetches = false;
        walk.column_bytes += beside * strip * Cells::bytes;
    }
    for (; column < dim; column += strip) {
        add_value_columns<Cells, rows, 1>(walk, tile.scores(row), range, to());
        walk.prefetches = false;
        walk.column_bytes += strip * Cells::bytes;
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
    const ChunkStrips strips = find_strips(tile, range, chunk);
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

// Whole cells of keys and whole strips of columns: what every known model has.
HEADWAY_INLINE bool is_direct(const AttentionTile& tile) {
    const KVView& kv = tile.call->kv;
    return tile.rows == tile.heads && kv.qk_dim % (kv.type == KVType::int8 ? 4 : 2) == 0 && kv.v_dim % strip == 0;
}

}  // namespace
}  // namespace headway
