// Reading K and V of a chunk from the cache: as float32, or as the pairs of bfloat16 that they are (only on machines that
// multiply these).
#pragma once

namespace headway {
namespace {

// The 16 keys from a multiple of 16 on lie in one block.
struct StripPlace {
    int64_t block_head;  // block and kv head, counted together
    int32_t place;       // of the first key in the block
};

HEADWAY_INLINE StripPlace find_strip(const AttentionCall& call, int32_t kv_head, int32_t key) {
    const int32_t block = call.block_table[key / call.kv.block_size];
    return {static_cast<int64_t>(block) * call.kv.num_kv_heads + kv_head / call.head_parts, key % call.kv.block_size};
}

// 16 keys into columns of [steps][ld].
template <bool as_pairs>
void unpack_key_pairs(const KVView& kv, StripPlace strip_place, float* to, int64_t ld) {
    const int32_t num_pairs = (kv.qk_dim + 1) / 2;
    const uint16_t* from = static_cast<const uint16_t*>(kv.k) +
                           (strip_place.block_head * num_pairs * kv.block_size + strip_place.place) * 2;
    for (int32_t pair = 0; pair < num_pairs; ++pair, from += static_cast<int64_t>(kv.block_size) * 2) {
#pragma GCC unroll 4
        for (int v = 0; v < strip_vectors; ++v) {
            const Ints pairs = load_ints(from + v * width * 2);
            if constexpr (as_pairs) {
                store_ints(to + v * width, pairs);
            } else {
                store(to + v * width, even_of_pairs(pairs));
                store(to + ld + v * width, odd_of_pairs(pairs));
            }
        }
        to += as_pairs ? ld : 2 * ld;
    }
}

void unpack_key_halves(const KVView& kv, StripPlace strip_place, float* to, int64_t ld) {
    const uint16_t* from =
        static_cast<const uint16_t*>(kv.k) + strip_place.block_head * kv.qk_dim * kv.block_size + strip_place.place;
    for (int32_t d = 0; d < kv.qk_dim; ++d, from += kv.block_size, to += ld) {
#pragma GCC unroll 4
        for (int v = 0; v < strip_vectors; ++v) store(to + v * width, load_float16(from + v * width));
    }
}

template <int byte>
HEADWAY_INLINE Floats byte_of_quads(Ints quads) {
    return from_ints(shift_right_signed<24>(shift_left<24 - 8 * byte>(quads)));
}

void unpack_key_bytes(const KVView& kv, StripPlace strip_place, float* to, int64_t ld) {
    const int32_t num_quads = (kv.qk_dim + 3) / 4;
    const int8_t* from = static_cast<const int8_t*>(kv.k) +
                         (strip_place.block_head * num_quads * kv.block_size + strip_place.place) * 4;
    for (int32_t quad = 0; quad < num_quads; ++quad, from += static_cast<int64_t>(kv.block_size) * 4, to += 4 * ld) {
#pragma GCC unroll 4
        for (int v = 0; v < strip_vectors; ++v) {
            const Ints quads = load_ints(from + v * width * 4);
            store(to + v * width, byte_of_quads<0>(quads));
            store(to + ld + v * width, byte_of_quads<1>(quads));
            store(to + 2 * ld + v * width, byte_of_quads<2>(quads));
            store(to + 3 * ld + v * width, byte_of_quads<3>(quads));
        }
    }
}

// `width` pairs, of which the last may not be there.
HEADWAY_INLINE Ints load_pairs(const uint16_t* from, int32_t count) {
    if (count >= width) return load_ints(from);
    return bits_of(load_some(reinterpret_cast<const float*>(from), count > 0 ? count : 0));
}

// `columns` columns from `column` on of the values of 16 keys, into rows of [steps][ld].
template <bool as_pairs>
void unpack_value_pairs(const KVView& kv, StripPlace strip_place, int32_t column, int32_t columns, float* to,
                        int64_t ld) {
    const int64_t pair = strip_place.block_head * (kv.block_size / 2) + strip_place.place / 2;
    const uint16_t* from = static_cast<const uint16_t*>(kv.v) + (pair * kv.v_dim + column) * 2;
    for (int32_t i = 0; i < strip / 2; ++i, from += static_cast<int64_t>(kv.v_dim) * 2) {
        for (int32_t c = 0; c < columns; c += width) {
            const Ints pairs = load_pairs(from + c * 2, kv.v_dim - column - c);
            if constexpr (as_pairs) {
                store_ints(to + c, pairs);
            } else {
                store(to + c, even_of_pairs(pairs));
                store(to + ld + c, odd_of_pairs(pairs));
            }
        }
        to += as_pairs ? ld : 2 * ld;
    }
}

// `width` float16, of which the last may not be there.
HEADWAY_INLINE Floats load_some_float16(const uint16_t* from, int32_t count) {
    if (count >= width) return load_float16(from);
    uint16_t halves[width] = {};
    for (int32_t lane = 0; lane < count; ++lane) halves[lane] = from[lane];
    return load_float16(halves);
}

void unpack_value_halves(const KVView& kv, StripPlace strip_place, int32_t column, int32_t columns, float* to,
                         int64_t ld) {
    const int64_t key = strip_place.block_head * kv.block_size + strip_place.place;
    const uint16_t* from = static_cast<const uint16_t*>(kv.v) + key * kv.v_dim + column;
    for (int32_t i = 0; i < strip; ++i, from += kv.v_dim, to += ld) {
        for (int32_t c = 0; c < columns; c += width) {
            store(to + c, load_some_float16(from + c, kv.v_dim - column - c));
        }
    }
}

void unpack_value_bytes(const KVView& kv, StripPlace strip_place, int32_t column, int32_t columns, float* to,
                        int64_t ld) {
    const int64_t key = strip_place.block_head * kv.block_size + strip_place.place;
    const int8_t* from = static_cast<const int8_t*>(kv.v) + key * kv.v_dim + column;
    for (int32_t i = 0; i < strip; ++i, from += kv.v_dim, to += ld) {
        for (int32_t c = 0; c < columns; c += width) {
            const int32_t count = kv.v_dim - column - c;
            if (count >= width) {
                store(to + c, load_bytes(from + c));
                continue;
            }
            for (int32_t lane = 0; lane < width; ++lane) to[c + lane] = lane < count ? from[c + lane] : 0.0f;
        }
    }
}

typedef float Four __attribute__((vector_size(16)));
typedef float LooseFour __attribute__((vector_size(16), aligned(4), may_alias));

HEADWAY_INLINE Four load_four(const float* from) { return *reinterpret_cast<const LooseFour*>(from); }
HEADWAY_INLINE void store_four(float* to, Four value) { *reinterpret_cast<LooseFour*>(to) = value; }

// Columns of 16 keys, [columns][strip], as rows of columns, [strip][columns]; columns is a multiple of 4.
HEADWAY_INLINE void transpose_strip(const float* from, int32_t columns, float* to) {
    for (int32_t c = 0; c < columns; c += 4) {
#pragma GCC unroll 4
        for (int32_t i = 0; i < strip; i += 4) {
            const float* corner = from + c * strip + i;
            const Four a = load_four(corner), b = load_four(corner + strip);
            const Four d = load_four(corner + 2 * strip), e = load_four(corner + 3 * strip);
            const Four low_ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            const Four low_de = __builtin_shufflevector(d, e, 0, 4, 1, 5);
            const Four high_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            const Four high_de = __builtin_shufflevector(d, e, 2, 6, 3, 7);
            float* rows = to + i * columns + c;
            store_four(rows, __builtin_shufflevector(low_ab, low_de, 0, 1, 4, 5));
            store_four(rows + columns, __builtin_shufflevector(low_ab, low_de, 2, 3, 6, 7));
            store_four(rows + 2 * columns, __builtin_shufflevector(high_ab, high_de, 0, 1, 4, 5));
            store_four(rows + 3 * columns, __builtin_shufflevector(high_ab, high_de, 2, 3, 6, 7));
        }
    }
}

// The same of values that are columns of their keys, in float16: a column of 16 keys lies side by side.
void unpack_halves_of_keys(const KVView& kv, StripPlace strip_place, int32_t column, int32_t columns, float* to) {
    const int32_t end = kv.v_dim - column < columns ? kv.v_dim - column : columns;
    const uint16_t* from = static_cast<const uint16_t*>(kv.k) +
                           (strip_place.block_head * kv.qk_dim + column) * kv.block_size + strip_place.place;
    float keys[panel_columns * strip];
    for (int32_t c = 0; c < columns; ++c, from += kv.block_size) {
#pragma GCC unroll 4
        for (int32_t i = 0; i < strip; i += width) {
            store(keys + c * strip + i, c < end ? load_float16(from + i) : splat(0.0f));
        }
    }
    transpose_strip(keys, columns, to);
}

// Columns that are keys' alone, from `end` on.
HEADWAY_INLINE void clear_columns(float* keys, int32_t end, int32_t columns) {
    for (int32_t at = end * strip; at < columns * strip; at += width) store(keys + at, splat(0.0f));
}

// In the other types a cell of the cache holds two columns of one key, or four in int8.
template <bool as_pairs>
void unpack_values_of_keys(const KVView& kv, StripPlace strip_place, int32_t column, int32_t columns, float* to) {
    const int32_t end = kv.v_dim - column < columns ? kv.v_dim - column : columns;
    const int64_t cells = strip_place.block_head * kv.block_size;
    if constexpr (as_pairs) {
        const int64_t pairs_of_dim = (kv.qk_dim + 1) / 2;
        const uint16_t* from = static_cast<const uint16_t*>(kv.k) + (cells * pairs_of_dim + strip_place.place) * 2;
        for (int32_t i = 0; i < strip / 2; ++i) {
            Word* row = reinterpret_cast<Word*>(to + i * columns);
            for (int32_t c = 0; c < columns; ++c) {
                const uint16_t* cell = from + (static_cast<int64_t>(column + c) / 2 * kv.block_size + 2 * i) * 2 + c % 2;
                row[c] = c < end ? static_cast<int32_t>(cell[0] | static_cast<uint32_t>(cell[2]) << 16) : 0;
            }
        }
    } else if (kv.type == KVType::int8) {
        const int64_t quads_of_dim = (kv.qk_dim + 3) / 4;
        const int64_t first = cells * quads_of_dim + static_cast<int64_t>(column / 4) * kv.block_size;
        const int8_t* from = static_cast<const int8_t*>(kv.k) + (first + strip_place.place) * 4;
        float keys[panel_columns * strip];
        for (int32_t c = 0; c < columns; c += 4, from += static_cast<int64_t>(kv.block_size) * 4) {
            float* quad = keys + c * strip;
            for (int32_t i = 0; i < strip; i += width) {
                const Ints bytes = c < end ? load_ints(from + i * 4) : splat_int(0);
                store(quad + i, byte_of_quads<0>(bytes));
                store(quad + strip + i, byte_of_quads<1>(bytes));
                store(quad + 2 * strip + i, byte_of_quads<2>(bytes));
                store(quad + 3 * strip + i, byte_of_quads<3>(bytes));
            }
        }
        clear_columns(keys, end, columns);
        transpose_strip(keys, columns, to);
    } else {
        const int64_t pairs_of_dim = (kv.qk_dim + 1) / 2;
        const int64_t first = cells * pairs_of_dim + static_cast<int64_t>(column / 2) * kv.block_size;
        const uint16_t* from = static_cast<const uint16_t*>(kv.k) + (first + strip_place.place) * 2;
        float keys[panel_columns * strip];
        for (int32_t c = 0; c < columns; c += 2, from += static_cast<int64_t>(kv.block_size) * 2) {
            for (int32_t i = 0; i < strip; i += width) {
                const Ints pairs = c < end ? load_ints(from + i * 2) : splat_int(0);
                store(keys + c * strip + i, even_of_pairs(pairs));
                store(keys + (c + 1) * strip + i, odd_of_pairs(pairs));
            }
        }
        clear_columns(keys, end, columns);
        transpose_strip(keys, columns, to);
    }
}

}  // namespace
}  // namespace headway
