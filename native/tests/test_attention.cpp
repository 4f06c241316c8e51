// Writing the cache and attending to it. Right values come from float64 over what the cache holds, read by loops that
// follow the layouts as exec_kernels.h states them. What no token was written to is NaN.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"

namespace {

using namespace headway;
using headway_tests::same_bits;

struct Shape {
    int32_t num_heads, num_kv_heads, qk_dim, v_dim, block_size;
    int32_t context_len, num_tokens;  // the last num_tokens of the context are the step's
    KVType type = KVType::bf16;
    int32_t window = 0;
    float soft_cap = 0.0f;
    bool causal = true;
    bool v_in_k = false;
    int32_t head_parts = 1;
    int32_t num_parts() const { return num_kv_heads * head_parts; }
};

constexpr KVType types[] = {KVType::bf16, KVType::int8, KVType::f16};

const char* type_name(KVType type) {
    return type == KVType::bf16 ? "bf16" : type == KVType::int8 ? "int8" : "f16";
}

#define SHAPE_FORMAT "%s %s heads %d/%d dims %d/%d block %d context %d tokens %d window %d cap %g parts %d%s"
#define SHAPE_VALUES(table, s)                                                                                    \
    (table).name, type_name((s).type), (s).num_heads, (s).num_kv_heads, (s).qk_dim, (s).v_dim, (s).block_size,    \
        (s).context_len, (s).num_tokens, (s).window, static_cast<double>((s).soft_cap), (s).head_parts,           \
        (s).v_in_k ? " values in keys" : ""

// By the definition: mantissa times a power of two.
double double_of_half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    const double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

float float_of(uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

// Memory of one cache, as big as it must be and no bigger, so that the sanitiser sees what goes beyond.
struct Cache {
    Cache(const Shape& shape, int32_t num_blocks) : shape(shape) {
        const int64_t heads = static_cast<int64_t>(num_blocks) * shape.num_kv_heads;
        const int64_t padded = (shape.qk_dim + 3) / 4 * 4, pairs = (shape.qk_dim + 1) / 2;
        if (shape.type == KVType::bf16) {
            k16.assign(heads * pairs * shape.block_size * 2, 0x7fc1);
            v16.assign(heads * shape.block_size * shape.v_dim, 0x7fc1);
        } else if (shape.type == KVType::f16) {
            k16.assign(heads * shape.qk_dim * shape.block_size, 0x7e01);
            v16.assign(heads * shape.block_size * shape.v_dim, 0x7e01);
        } else {
            k8.assign(heads * padded * shape.block_size, 77);
            v8.assign(heads * shape.block_size * shape.v_dim, 77);
            k_scales.assign(heads * shape.block_size, std::numeric_limits<float>::quiet_NaN());
            v_scales = k_scales;
        }
    }

    KVView view() {
        const bool is_wide = shape.type != KVType::int8;
        return {shape.type,  shape.block_size, shape.num_kv_heads,
                shape.qk_dim, shape.v_dim,     is_wide ? static_cast<void*>(k16.data()) : k8.data(),
                shape.v_in_k ? nullptr : is_wide ? static_cast<void*>(v16.data()) : v8.data(),
                k_scales.data(), shape.v_in_k ? nullptr : v_scales.data(), shape.v_in_k};
    }

    double key(int64_t slot, int32_t head, int32_t d) const {
        const int64_t block_head = slot / shape.block_size * shape.num_kv_heads + head, place = slot % shape.block_size;
        if (shape.type == KVType::bf16) {
            const int64_t pairs = (shape.qk_dim + 1) / 2;
            return float_of(k16[((block_head * pairs + d / 2) * shape.block_size + place) * 2 + d % 2]);
        }
        if (shape.type == KVType::f16) {
            return double_of_half(k16[(block_head * shape.qk_dim + d) * shape.block_size + place]);
        }
        const int64_t quads = (shape.qk_dim + 3) / 4;
        return static_cast<double>(k8[((block_head * quads + d / 4) * shape.block_size + place) * 4 + d % 4]) *
               k_scales[block_head * shape.block_size + place];
    }

    double value(int64_t slot, int32_t head, int32_t d) const {
        if (shape.v_in_k) return key(slot, head, d);
        const int64_t block_head = slot / shape.block_size * shape.num_kv_heads + head, place = slot % shape.block_size;
        if (shape.type == KVType::bf16) {
            const int64_t pair = block_head * (shape.block_size / 2) + place / 2;
            return float_of(v16[(pair * shape.v_dim + d) * 2 + place % 2]);
        }
        if (shape.type == KVType::f16) {
            return double_of_half(v16[(block_head * shape.block_size + place) * shape.v_dim + d]);
        }
        return static_cast<double>(v8[(block_head * shape.block_size + place) * shape.v_dim + d]) *
               v_scales[block_head * shape.block_size + place];
    }

    Shape shape;
    std::vector<uint16_t> k16, v16;
    std::vector<int8_t> k8, v8;
    std::vector<float> k_scales, v_scales;
};

// A sequence's q, k and v, and where its keys lie.
struct Sequence {
    Sequence(const Shape& shape, uint32_t seed) : shape(shape) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal(0.0f, 1.0f);
        const auto fill = [&](std::vector<float>& values, int64_t n) {
            values.resize(n);
            for (float& value : values) value = normal(random);
        };
        fill(q, static_cast<int64_t>(shape.num_tokens) * shape.num_heads * shape.qk_dim);
        fill(k, static_cast<int64_t>(shape.context_len) * shape.num_kv_heads * shape.qk_dim);
        fill(v, static_cast<int64_t>(shape.context_len) * shape.num_kv_heads * shape.v_dim);
        // One large key, so that the largest score moves from chunk to chunk.
        for (int32_t i = 0; i < shape.num_kv_heads * shape.qk_dim; ++i) k[i] *= 3.0f;
    }

    int32_t num_blocks() const { return (shape.context_len + shape.block_size - 1) / shape.block_size; }

    std::vector<int32_t> shuffled_blocks(uint32_t seed) const {
        std::vector<int32_t> blocks(num_blocks() + 3);
        std::iota(blocks.begin(), blocks.end(), 0);
        std::shuffle(blocks.begin(), blocks.end(), std::mt19937(seed));
        blocks.resize(num_blocks());
        return blocks;
    }

    Shape shape;
    std::vector<float> q, k, v;
};

// A cache in which tokens [0, length) of a sequence are written, in calls of random lengths.
struct Written {
    Written(const ExecKernels& table, const Sequence& sequence, int32_t length, uint32_t seed)
        : cache(sequence.shape, sequence.num_blocks() + 3), blocks(sequence.shuffled_blocks(seed)) {
        const Shape& shape = sequence.shape;
        const int64_t ld_k = static_cast<int64_t>(shape.num_kv_heads) * shape.qk_dim;
        const int64_t ld_v = static_cast<int64_t>(shape.num_kv_heads) * shape.v_dim;
        std::mt19937 random(seed + 1);
        const KVView view = cache.view();
        for (int32_t begin = 0; begin < length;) {
            const int32_t rows = std::min<int32_t>(length - begin, 1 + random() % 40);
            std::vector<int64_t> slots(rows);
            for (int32_t row = 0; row < rows; ++row) slots[row] = slot(begin + row);
            const int32_t half = shape.num_kv_heads / 2;
            for (auto [head_begin, head_end] : {std::pair(0, half), std::pair(half, shape.num_kv_heads)}) {
                table.write_kv(&view, sequence.k.data() + begin * ld_k, ld_k, sequence.v.data() + begin * ld_v, ld_v,
                               slots.data(), rows, head_begin, head_end);
            }
            begin += rows;
        }
    }

    int64_t slot(int32_t token) const {
        const int32_t block_size = cache.shape.block_size;
        return static_cast<int64_t>(blocks[token / block_size]) * block_size + token % block_size;
    }

    Cache cache;
    std::vector<int32_t> blocks;
};

// The outputs of tokens [first, first + count) of the step over a cache that holds them and what is before.
AttentionCall make_call(const Sequence& sequence, Written& written, std::vector<float>& out) {
    const Shape& shape = sequence.shape;
    AttentionCall call{};
    call.kv = written.cache.view();
    call.q = sequence.q.data();
    call.ld_q = static_cast<int64_t>(shape.num_heads) * shape.qk_dim;
    call.out = out.data();
    call.ld_out = static_cast<int64_t>(shape.num_heads) * shape.v_dim;
    call.num_heads = shape.num_heads;
    call.head_parts = shape.head_parts;
    call.scale = 1.0f / std::sqrt(static_cast<float>(shape.qk_dim));
    call.soft_cap = shape.soft_cap;
    call.window = shape.window;
    call.causal = shape.causal;
    call.block_table = written.blocks.data();
    call.context_len = shape.context_len;
    call.first_token = 0;
    call.first_position = shape.context_len - shape.num_tokens;
    return call;
}

std::vector<float> make_scratch(const AttentionCall& call) {
    return std::vector<float>(attention_scratch_floats(call), std::numeric_limits<float>::quiet_NaN());
}

size_t out_size(const Shape& shape) { return static_cast<size_t>(shape.num_tokens) * shape.num_heads * shape.v_dim; }

// All tokens in pieces of at most `most` tokens, of random sizes if there is a seed.
std::vector<float> attend_in_pieces(const ExecKernels& table, const Sequence& sequence, Written& written, int32_t most,
                                    uint32_t seed) {
    std::vector<float> out(out_size(sequence.shape), -1.0f);
    const AttentionCall call = make_call(sequence, written, out);
    std::vector<float> scratch = make_scratch(call);
    std::mt19937 random(seed);
    for (int32_t begin = 0; begin < sequence.shape.num_tokens;) {
        const int32_t size = seed == 0 ? most : 1 + static_cast<int32_t>(random() % most);
        const int32_t end = std::min(sequence.shape.num_tokens, begin + size);
        for (int32_t head = 0; head < sequence.shape.num_parts(); ++head) {
            table.attend(&call, begin, end, head, scratch.data());
        }
        begin = end;
    }
    return out;
}

std::vector<float> attend_by_chunks(const ExecKernels& table, const Sequence& sequence, Written& written) {
    const Shape& shape = sequence.shape;
    std::vector<float> out(out_size(shape), -1.0f);
    const AttentionCall call = make_call(sequence, written, out);
    std::vector<float> scratch = make_scratch(call);
    const int32_t num_chunks = (shape.context_len + attention_chunk - 1) / attention_chunk;
    const int32_t heads = shape.num_heads / shape.num_parts();
    std::vector<float> largest(num_chunks * heads), sum(largest), values(largest.size() * shape.v_dim);
    std::vector<PartialAttention> partials;
    for (int32_t c = 0; c < num_chunks; ++c) {
        float* chunk_values = &values[static_cast<size_t>(c) * heads * shape.v_dim];
        partials.push_back({&largest[c * heads], &sum[c * heads], chunk_values});
    }
    for (int32_t token = 0; token < shape.num_tokens; ++token) {
        for (int32_t head = 0; head < shape.num_parts(); ++head) {
            for (int32_t c = num_chunks - 1; c >= 0; --c) {
                table.attend_chunk(&call, token, head, c, scratch.data(), &partials[c]);
            }
            table.join_chunks(&call, token, head, num_chunks, partials.data());
        }
    }
    return out;
}

// Each token as a decode: the cache holds nothing behind it.
std::vector<float> attend_as_decodes(const ExecKernels& table, const Sequence& sequence) {
    const Shape& shape = sequence.shape;
    std::vector<float> out(out_size(shape), -1.0f);
    for (int32_t token = 0; token < shape.num_tokens; ++token) {
        const int32_t length = shape.context_len - shape.num_tokens + token + 1;
        Written written(table, sequence, length, 1000 + token);
        AttentionCall call = make_call(sequence, written, out);
        written.blocks.resize((length + shape.block_size - 1) / shape.block_size);
        written.blocks.shrink_to_fit();
        call.block_table = written.blocks.data();
        call.context_len = length;
        call.first_token = token;
        call.first_position = length - 1;
        std::vector<float> scratch = make_scratch(call);
        for (int32_t head = 0; head < shape.num_parts(); ++head) table.attend(&call, 0, 1, head, scratch.data());
    }
    return out;
}

void right_row(const Sequence& sequence, const Written& written, int32_t token, int32_t head,
               std::vector<double>& out) {
    const Shape& shape = sequence.shape;
    const int32_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const int32_t position = shape.context_len - shape.num_tokens + token;
    const int32_t end = shape.causal ? position + 1 : shape.context_len;
    const int32_t begin = shape.window > 0 ? std::max(0, end - shape.window) : 0;
    const float* q = sequence.q.data() + (static_cast<int64_t>(token) * shape.num_heads + head) * shape.qk_dim;
    std::vector<double> weights;
    for (int32_t key = begin; key < end; ++key) {
        double score = 0.0;
        for (int32_t d = 0; d < shape.qk_dim; ++d) score += q[d] * written.cache.key(written.slot(key), kv_head, d);
        score /= std::sqrt(static_cast<double>(shape.qk_dim));
        if (shape.soft_cap > 0.0f) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
        weights.push_back(score);
    }
    const double peak = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - peak);
    std::fill(out.begin(), out.end(), 0.0);
    for (int32_t key = begin; key < end; ++key) {
        const double weight = weights[key - begin] / sum;
        for (int32_t d = 0; d < shape.v_dim; ++d) out[d] += weight * written.cache.value(written.slot(key), kv_head, d);
    }
}

// float32 over the stored keys and values, queries and weights in bfloat16 where the table multiplies that: each score
// is then off by some 2^-9 of its size, and so are the weights.
void check_values(const ExecKernels& table, const Sequence& sequence, const Written& written,
                  const std::vector<float>& out) {
    const Shape& shape = sequence.shape;
    const double largest_value = shape.v_in_k ? 3.0 : 1.0;  // of the large key's
    const double bound = largest_value * (table.multiplies_bf16 && shape.type == KVType::bf16 ? 2e-2 : 4e-6);
    std::vector<double> right(shape.v_dim);
    double worst = 0.0;
    for (int32_t token = 0; token < shape.num_tokens; ++token) {
        for (int32_t head = 0; head < shape.num_heads; ++head) {
            right_row(sequence, written, token, head, right);
            const float* row = out.data() + (static_cast<int64_t>(token) * shape.num_heads + head) * shape.v_dim;
            for (int32_t d = 0; d < shape.v_dim; ++d) {
                const double error = std::abs(row[d] - right[d]);
                worst = error <= worst ? worst : error;  // NaN stays
            }
        }
    }
    CHECK(worst <= bound, SHAPE_FORMAT ": off by %g", SHAPE_VALUES(table, shape), worst);
}

void check_shape(const ExecKernels& table, const Shape& shape, uint32_t seed) {
    const Sequence sequence(shape, seed);
    Written written(table, sequence, shape.context_len, seed);
    const std::vector<float> whole = attend_in_pieces(table, sequence, written, table.attend_tokens, 0);
    check_values(table, sequence, written, whole);
    CHECK(same_bits(whole, attend_in_pieces(table, sequence, written, 1, 0)), SHAPE_FORMAT ": one by one differs",
          SHAPE_VALUES(table, shape));
    CHECK(same_bits(whole, attend_in_pieces(table, sequence, written, table.attend_tokens, seed)),
          SHAPE_FORMAT ": random pieces differ", SHAPE_VALUES(table, shape));
    CHECK(same_bits(whole, attend_by_chunks(table, sequence, written)), SHAPE_FORMAT ": by chunks differs",
          SHAPE_VALUES(table, shape));
    if (shape.causal) {
        CHECK(same_bits(whole, attend_as_decodes(table, sequence)), SHAPE_FORMAT ": decodes differ",
              SHAPE_VALUES(table, shape));
    }
    Written elsewhere(table, sequence, shape.context_len, seed + 77);
    CHECK(same_bits(whole, attend_in_pieces(table, sequence, elsewhere, 7, 0)), SHAPE_FORMAT ": other blocks differ",
          SHAPE_VALUES(table, shape));
}

// Heads, dimensions and block sizes of real models, and odd ones; contexts on both sides of a chunk's end:
// num_heads, num_kv_heads, qk_dim, v_dim, block_size, context_len, num_tokens.
const Shape shapes[] = {
    {9, 3, 64, 64, 16, 300, 50},
    {4, 2, 16, 16, 32, 33, 33},
    {2, 2, 48, 48, 48, 550, 21},
    {8, 1, 80, 80, 16, 257, 5},
    {7, 1, 96, 96, 512, 530, 9},
    {4, 4, 128, 128, 64, 256, 3},
    {5, 1, 256, 256, 16, 40, 7},
    {3, 1, 33, 7, 16, 290, 40},
    {6, 2, 18, 50, 16, 70, 1},
};

void test_shapes(const ExecKernels& table) {
    uint32_t seed = 1;
    for (Shape shape : shapes) {
        for (KVType type : types) {
            shape.type = type;
            check_shape(table, shape, ++seed);
        }
        shape.window = 20 + static_cast<int32_t>(seed % 5);
        check_shape(table, shape, ++seed);
        shape.type = KVType::bf16;
        shape.soft_cap = 2.5f;
        check_shape(table, shape, ++seed);
        shape.window = 1;
        check_shape(table, shape, ++seed);
        shape.window = 0;
        shape.causal = false;
        check_shape(table, shape, ++seed);
    }
}

// Latent attention: a value is the first columns of its key; and many query heads in parts, whose number changes no bit.
void test_values_in_keys(const ExecKernels& table) {
    uint32_t seed = 500;
    for (Shape shape : {Shape{16, 1, 72, 64, 16, 300, 20}, Shape{8, 2, 40, 24, 32, 33, 33}, Shape{4, 1, 19, 15, 16, 70, 3}}) {
        for (KVType type : types) {
            shape.type = type;
            shape.v_in_k = true;
            std::vector<float> in_one;
            for (int32_t head_parts : {1, 2, 4}) {
                shape.head_parts = head_parts;
                check_shape(table, shape, seed);
                const Sequence sequence(shape, seed);
                Written written(table, sequence, shape.context_len, seed);
                const std::vector<float> out = attend_in_pieces(table, sequence, written, table.attend_tokens, 0);
                if (head_parts == 1) in_one = out;
                CHECK(same_bits(in_one, out), SHAPE_FORMAT ": parts of heads differ", SHAPE_VALUES(table, shape));
            }
            ++seed;
        }
    }
}

// A later token whose K and V are NaN and infinite changes no bit of an earlier one in the same tile.
void test_later_tokens_are_not_seen(const ExecKernels& table, KVType type) {
    Shape shape = shapes[0];
    shape.type = type;
    for (int32_t bad_token : {280, 285, 291}) {
        Sequence sequence(shape, 5);
        Written written(table, sequence, shape.context_len, 5);
        const std::vector<float> right = attend_in_pieces(table, sequence, written, table.attend_tokens, 0);
        for (int32_t i = 0; i < shape.num_kv_heads * 64; ++i) {
            sequence.k[bad_token * shape.num_kv_heads * 64 + i] = std::numeric_limits<float>::quiet_NaN();
            sequence.v[bad_token * shape.num_kv_heads * 64 + i] = std::numeric_limits<float>::infinity();
        }
        Written broken(table, sequence, shape.context_len, 5);
        std::vector<float> out = attend_in_pieces(table, sequence, broken, table.attend_tokens, 0);
        const size_t first_bad = static_cast<size_t>(bad_token - 250) * shape.num_heads * shape.v_dim;
        CHECK(std::memcmp(out.data(), right.data(), first_bad * sizeof(float)) == 0,
              "%s: token %d is seen before it is there", table.name, bad_token);
        CHECK(!table.is_finite(out.data() + first_bad, 64), "%s: token %d is finite", table.name, bad_token);
    }
}

// What write_kv stores, by a rounding of its own: nearest even, or within half a step of the scale.
void test_stored_values(const ExecKernels& table) {
    for (KVType type : types) {
        Shape shape = shapes[7];
        shape.type = type;
        const Sequence sequence(shape, 3);
        const Written written(table, sequence, shape.context_len, 3);
        for (int32_t token = 0; token < shape.context_len; ++token) {
            const float* k = sequence.k.data() + token * shape.qk_dim;
            float largest = 0.0f;
            for (int32_t d = 0; d < shape.qk_dim; ++d) largest = std::max(largest, std::abs(k[d]));
            for (int32_t d = 0; d < shape.qk_dim; ++d) {
                const double stored = written.cache.key(written.slot(token), 0, d);
                const double unit = std::ldexp(1.0, std::ilogb(k[d]));
                const double fine = std::max(unit / 1024, std::ldexp(1.0, -24));
                const double step = type == KVType::bf16 ? unit / 128 : type == KVType::f16 ? fine : largest / 127.0;
                CHECK(std::abs(stored - k[d]) <= 0.50001 * step, "%s %s: %g is stored as %g", table.name,
                      type_name(type), k[d], stored);
            }
        }
    }
}

void test_odd_partner_is_zeroed(const ExecKernels& table) {
    const Shape shape{1, 1, 16, 16, 16, 3, 3};
    const Sequence sequence(shape, 9);
    const Written written(table, sequence, 3, 9);
    for (int32_t d = 0; d < 16; ++d) {
        CHECK(written.cache.value(written.slot(2) + 1, 0, d) == 0.0, "%s: the odd partner is not zero", table.name);
    }
}

void test_rounding_of_special_values(const ExecKernels& table) {
    const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    uint32_t all_ones = 0x7fffffff;
    float loud_nan;
    std::memcpy(&loud_nan, &all_ones, sizeof loud_nan);
    const float values[] = {0.0f, -0.0f, infinity, -infinity, nan, loud_nan, 3.4e38f, 1.00390625f, 1.01171875f, 1e-40f};
    const uint16_t right[] = {0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x7fc0, 0x7f80, 0x3f80, 0x3f82, 1};
    Shape shape{1, 1, 10, 10, 16, 1, 1};
    Cache cache(shape, 1);
    const KVView view = cache.view();
    const int64_t slot = 4;
    table.write_kv(&view, values, 10, values, 10, &slot, 1, 0, 1);
    for (int32_t d = 0; d < 10; ++d) {
        const uint16_t k = cache.k16[(d / 2 * 16 + 4) * 2 + d % 2], v = cache.v16[(2 * 10 + d) * 2];
        CHECK(k == right[d] && v == right[d], "%s: %g is stored as %04x and %04x, not %04x", table.name,
              values[d], k, v, right[d]);
    }
}

// Ties to even, the largest, subnormal ones; what is finite stays finite.
void test_halves_of_special_values(const ExecKernels& table) {
    const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    struct Rounding {
        float value;
        uint16_t right;
    };
    const Rounding roundings[] = {
        {0.0f, 0},           {-0.0f, 0x8000},      {infinity, 0x7c00},   {-infinity, 0xfc00}, {65504.0f, 0x7bff},
        {65519.0f, 0x7bff},  {65520.0f, 0x7bff},   {-65536.0f, 0xfbff},  {3.4e38f, 0x7bff},   {-3.4e38f, 0xfbff},
        {0x1.002p0f, 0x3c00}, {0x1.006p0f, 0x3c02}, {0x1.002002p0f, 0x3c01}, {-0x1.006p0f, 0xbc02}, {0x1p-14f, 0x0400},
        {0x1p-24f, 1},       {0x1p-25f, 0},        {0x1.8p-24f, 2},      {0x1.000002p-25f, 1}, {1e-40f, 0},
        {0x1.ffap-15f, 0x03ff}, {0x1.ffcp-15f, 0x0400}, {nan, 0x7e00},
    };
    constexpr int32_t dim = sizeof roundings / sizeof roundings[0];
    float values[dim];
    for (int32_t d = 0; d < dim; ++d) values[d] = roundings[d].value;
    Shape shape{1, 1, dim, dim, 16, 1, 1, KVType::f16};
    Cache cache(shape, 1);
    const KVView view = cache.view();
    const int64_t slot = 4;
    table.write_kv(&view, values, dim, values, dim, &slot, 1, 0, 1);
    for (int32_t d = 0; d < dim; ++d) {
        const uint16_t k = cache.k16[d * 16 + 4], v = cache.v16[4 * dim + d], right = roundings[d].right;
        const bool is_right = std::isnan(values[d]) ? (k & 0x7fff) > 0x7c00 && k == v : k == right && v == right;
        CHECK(is_right, "%s: %g is stored as %04x and %04x, not %04x", table.name, values[d], k, v, right);
    }
}

// A single key's value comes back as it is: every float16 that is finite.
void test_all_halves_are_read(const ExecKernels& table) {
    constexpr int32_t dim = 64;
    for (int32_t start = 0; start < 0x10000; start += dim) {
        Shape shape{1, 1, dim, dim, 16, 1, 1, KVType::f16};
        Cache cache(shape, 1);
        for (int32_t d = 0; d < dim; ++d) {
            cache.k16[d * 16] = 0;
            cache.v16[d] = static_cast<uint16_t>(start + d);
        }
        AttentionCall call{};
        call.kv = cache.view();
        std::vector<float> q(dim, 1.0f), out(dim, -1.0f);
        const int32_t block = 0;
        call.q = q.data(), call.ld_q = dim, call.out = out.data(), call.ld_out = dim;
        call.num_heads = 1, call.head_parts = 1, call.scale = 1.0f, call.causal = true;
        call.block_table = &block, call.context_len = 1;
        std::vector<float> scratch = make_scratch(call);
        table.attend(&call, 0, 1, 0, scratch.data());
        for (int32_t d = 0; d < dim; ++d) {
            const double right = double_of_half(static_cast<uint16_t>(start + d));
            if (!std::isfinite(right)) continue;
            CHECK(out[d] == static_cast<float>(right), "%s: %04x is read as %g, not %g", table.name, start + d, out[d], right);
        }
    }
}

}  // namespace

void headway_tests::test_attention() {
    for (const ExecKernels* table : exec_tables()) {
        test_stored_values(*table);
        test_odd_partner_is_zeroed(*table);
        test_rounding_of_special_values(*table);
        test_halves_of_special_values(*table);
        test_all_halves_are_read(*table);
        test_shapes(*table);
        test_values_in_keys(*table);
        for (KVType type : types) test_later_tokens_are_not_seen(*table, type);
    }
}
