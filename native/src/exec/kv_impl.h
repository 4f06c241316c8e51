// Writing K and V into the cache; its layouts are in exec_kernels.h.
#pragma once

namespace headway {
namespace {

// Two bfloat16, in memory that others see as uint16.
typedef uint32_t Pair __attribute__((may_alias));

// n values as bfloat16 in the low halves of words; `words` has room for whole vectors, and is zero behind n.
HEADWAY_INLINE void round_values(const float* x, int32_t n, uint32_t* words) {
    for_each_part(n, [&](int32_t i, int count) { store_ints(words + i, bfloat16_bits(load_part(x + i, count))); });
}

constexpr int32_t value_step = 256;  // values rounded at a time, a multiple of every width

// k: [qk_dim / 2][block_size][2], from the token's place on.
void write_key_pairs(const float* x, int32_t dim, int32_t block_size, Pair* pairs) {
    uint32_t words[value_step];
    for (int32_t start = 0; start < dim; start += value_step) {
        const int32_t count = dim - start < value_step ? dim - start : value_step;
        round_values(x + start, count, words);
        if (count % 2 != 0) words[count] = 0;
        for (int32_t d = 0; d < count; d += 2) {
            pairs[static_cast<int64_t>((start + d) / 2) * block_size] = words[d] | words[d + 1] << 16;
        }
    }
}

// v: the pairs [v_dim][2] of two tokens, of which this is the even or the odd one.
void write_value_pairs(const float* x, int32_t dim, bool is_odd, Pair* pairs) {
    uint32_t words[value_step];
    for (int32_t start = 0; start < dim; start += value_step) {
        const int32_t count = dim - start < value_step ? dim - start : value_step;
        round_values(x + start, count, words);
        for (int32_t d = 0; d < count; ++d) {
            Pair& pair = pairs[start + d];
            pair = is_odd ? (pair & 0xffffu) | words[d] << 16 : words[d];
        }
    }
}

void write_bfloat16(const KVView& kv, const float* k, const float* v, int64_t block_head, int32_t place) {
    const int64_t pairs_of_dim = (kv.qk_dim + 1) / 2;
    Pair* keys = static_cast<Pair*>(kv.k) + block_head * pairs_of_dim * kv.block_size + place;
    write_key_pairs(k, kv.qk_dim, kv.block_size, keys);
    if (kv.v_in_k) return;
    const int64_t pair = block_head * (kv.block_size / 2) + place / 2;
    write_value_pairs(v, kv.v_dim, place % 2 != 0, static_cast<Pair*>(kv.v) + pair * kv.v_dim);
}

// n values as float16; `halves` has room for whole vectors. What is finite stays so.
HEADWAY_INLINE void halve_values(const float* x, int32_t n, uint16_t* halves) {
    const Floats most = splat(65504.0f);
    for_each_part(n, [&](int32_t i, int count) {
        const Floats value = load_part(x + i, count);
        const Floats bounded = with_sign(smaller(absolute(value), most), value);
        store_float16(halves + i, select(less(absolute(value), splat(__builtin_inff())), bounded, value));
    });
}

void write_float16(const KVView& kv, const float* k, const float* v, int64_t block_head, int32_t place) {
    uint16_t halves[value_step];
    uint16_t* keys = static_cast<uint16_t*>(kv.k) + block_head * kv.qk_dim * kv.block_size + place;
    for (int32_t start = 0; start < kv.qk_dim; start += value_step) {
        const int32_t count = kv.qk_dim - start < value_step ? kv.qk_dim - start : value_step;
        halve_values(k + start, count, halves);
        for (int32_t d = 0; d < count; ++d) keys[static_cast<int64_t>(start + d) * kv.block_size] = halves[d];
    }
    if (kv.v_in_k) return;
    uint16_t* values = static_cast<uint16_t*>(kv.v) + (block_head * kv.block_size + place) * kv.v_dim;
    for (int32_t start = 0; start < kv.v_dim; start += value_step) {
        const int32_t count = kv.v_dim - start < value_step ? kv.v_dim - start : value_step;
        halve_values(v + start, count, halves);
        for (int32_t d = 0; d < count; ++d) values[start + d] = halves[d];
    }
}

// The scale with which n values become bytes; NaN if one is not finite.
HEADWAY_INLINE float byte_scale(const float* x, int32_t n) {
    Floats largest = splat(0.0f);
    for_each_part(n, [&](int32_t i, int count) { largest = larger(absolute(load_part(x + i, count)), largest); });
    return is_finite(x, n) ? largest_lane(largest) / 127.0f : __builtin_nanf("");
}

// visit(i, value) for each value / scale, rounded and within 127; zeros where there is no scale to divide by.
template <typename Visit>
HEADWAY_INLINE void quantise_values(const float* x, int32_t n, float scale, Visit visit) {
    const bool is_zero = !(scale > 0.0f);
    for_each_part(n, [&](int32_t i, int count) {
        float values[width];
        const Floats quotient = is_zero ? splat(0.0f) : div(load_part(x + i, count), splat(scale));
        store(values, larger(splat(-127.0f), smaller(splat(127.0f), nearest(quotient))));
        for (int lane = 0; lane < count; ++lane) visit(i + lane, static_cast<int8_t>(values[lane]));
    });
}

void write_bytes(const KVView& kv, const float* k, const float* v, int64_t block_head, int32_t place) {
    const int32_t padded = (kv.qk_dim + 3) / 4 * 4;
    int8_t* keys = static_cast<int8_t*>(kv.k) + block_head * padded * kv.block_size + static_cast<int64_t>(place) * 4;
    const auto key_at = [&](int32_t d) { return keys + static_cast<int64_t>(d / 4) * 4 * kv.block_size + d % 4; };
    const float key_scale = byte_scale(k, kv.qk_dim);
    quantise_values(k, kv.qk_dim, key_scale, [&](int32_t d, int8_t value) { *key_at(d) = value; });
    for (int32_t d = kv.qk_dim; d < padded; ++d) *key_at(d) = 0;
    kv.k_scales[block_head * kv.block_size + place] = key_scale;
    if (kv.v_in_k) return;
    int8_t* values = static_cast<int8_t*>(kv.v) + (block_head * kv.block_size + place) * kv.v_dim;
    const float value_scale = byte_scale(v, kv.v_dim);
    quantise_values(v, kv.v_dim, value_scale, [&](int32_t d, int8_t value) { values[d] = value; });
    kv.v_scales[block_head * kv.block_size + place] = value_scale;
}

void write_kv(const KVView* kv, const float* k, int64_t ld_k, const float* v, int64_t ld_v, const int64_t* slots,
              int32_t rows, int32_t head_begin, int32_t head_end) {
    for (int32_t row = 0; row < rows; ++row, k += ld_k, v += ld_v) {  // v may be null where it is in k, and ld_v is 0
        const int64_t block = slots[row] / kv->block_size;
        const auto place = static_cast<int32_t>(slots[row] % kv->block_size);
        for (int32_t head = head_begin; head < head_end; ++head) {
            const float* key = k + static_cast<int64_t>(head) * kv->qk_dim;
            const float* value = kv->v_in_k ? nullptr : v + static_cast<int64_t>(head) * kv->v_dim;
            const int64_t block_head = block * kv->num_kv_heads + head;
            if (kv->type == KVType::bf16) {
                write_bfloat16(*kv, key, value, block_head, place);
            } else if (kv->type == KVType::f16) {
                write_float16(*kv, key, value, block_head, place);
            } else {
                write_bytes(*kv, key, value, block_head, place);
            }
        }
    }
}

}  // namespace
}  // namespace headway
