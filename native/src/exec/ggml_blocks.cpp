// Block layouts: ggml-common.h and ggml-quants.c of ggml.
#include "ggml_blocks.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "float16.h"

namespace headway {
namespace {

struct TypeEntry {
    GgmlType type;
    const char* name;
    int32_t block_cols;
    int32_t block_bytes;
    MatrixFormat format;
};

constexpr TypeEntry types[] = {
    {GgmlType::f32, "F32", 1, 4, bf16_format},
    {GgmlType::f16, "F16", 1, 2, bf16_format},
    {GgmlType::bf16, "BF16", 1, 2, bf16_format},
    {GgmlType::q8_0, "Q8_0", 32, 34, {Form::q8, 32, false, false}},
    {GgmlType::q4_0, "Q4_0", 32, 18, {Form::q4, 32, false, false}},
    {GgmlType::q4_1, "Q4_1", 32, 20, {Form::q4, 32, true, false}},
    {GgmlType::q5_0, "Q5_0", 32, 22, {Form::q8, 32, false, false}},
    {GgmlType::q5_1, "Q5_1", 32, 24, {Form::q8, 32, true, false}},
    {GgmlType::q4_k, "Q4_K", 256, 144, {Form::q4, 32, true, true}},
    {GgmlType::q5_k, "Q5_K", 256, 176, {Form::q8, 32, true, true}},
    {GgmlType::q6_k, "Q6_K", 256, 210, {Form::q8, 16, false, true}},
};

const TypeEntry* find_entry(int32_t number) {
    for (const TypeEntry& entry : types) {
        if (static_cast<int32_t>(entry.type) == number) return &entry;
    }
    return nullptr;
}

const TypeEntry& entry_of(GgmlType type) {
    ggml_type(static_cast<int32_t>(type));
    return *find_entry(static_cast<int32_t>(type));
}

template <typename T>
T load_as(const uint8_t* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

float half_at(const uint8_t* bytes) { return float_of_f16(load_as<uint16_t>(bytes)); }

void set_scale(QuantisedGroup& out, uint32_t bits) { out.scales[0] = out.scales[1] = bits; }

// 16 bytes: the low halves are columns 0 to 15, the high halves 16 to 31.
void split_nibbles(const uint8_t* packed, uint8_t* q) {
    for (int i = 0; i < 16; ++i) {
        q[i] = packed[i] & 15;
        q[16 + i] = packed[i] >> 4;
    }
}

void add_to_all(uint8_t* q, int value) {
    for (int i = 0; i < group_cols; ++i) q[i] = static_cast<uint8_t>(q[i] + value);
}

void add_fifth_bits(uint32_t bits, uint8_t* q) {
    for (int i = 0; i < group_cols; ++i) q[i] |= static_cast<uint8_t>((bits >> i & 1u) << 4);
}

void read_q8_0(const uint8_t* block, QuantisedGroup& out) {
    set_scale(out, load_as<uint16_t>(block));
    std::memcpy(out.q, block + 2, group_cols);
    add_to_all(out.q, 128);
}

void read_q4_0(const uint8_t* block, QuantisedGroup& out) {
    set_scale(out, load_as<uint16_t>(block));
    split_nibbles(block + 2, out.q);
}

void read_q4_1(const uint8_t* block, QuantisedGroup& out) {
    set_scale(out, load_as<uint16_t>(block));
    out.min = load_as<uint16_t>(block + 2);
    split_nibbles(block + 4, out.q);
}

void read_q5_0(const uint8_t* block, QuantisedGroup& out) {
    set_scale(out, load_as<uint16_t>(block));
    split_nibbles(block + 6, out.q);
    add_fifth_bits(load_as<uint32_t>(block + 2), out.q);
    add_to_all(out.q, 128 - 16);
}

void read_q5_1(const uint8_t* block, QuantisedGroup& out) {
    set_scale(out, load_as<uint16_t>(block));
    out.min = load_as<uint16_t>(block + 2);
    split_nibbles(block + 8, out.q);
    add_fifth_bits(load_as<uint32_t>(block + 4), out.q);
    add_to_all(out.q, 128);
}

// Q4_K and Q5_K: d, dmin, then 12 bytes with eight 6-bit scales and eight 6-bit mins. The products are exact in float32.
void read_k_scales(const uint8_t* block, int32_t group, QuantisedGroup& out) {
    const uint8_t* packed = block + 4;
    int scale, min;
    if (group < 4) {
        scale = packed[group] & 63;
        min = packed[group + 4] & 63;
    } else {
        scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
        min = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4);
    }
    set_scale(out, bits_of_float(half_at(block) * static_cast<float>(scale)));
    out.min = bits_of_float(-(half_at(block + 2) * static_cast<float>(min)));
}

// 32 bytes hold two groups: the low halves of the first, the high halves of the second.
void read_k_nibbles(const uint8_t* packed, int32_t group, uint8_t* q) {
    for (int i = 0; i < group_cols; ++i) q[i] = packed[group / 2 * 32 + i] >> (group % 2 * 4) & 15;
}

void read_q4_k(const uint8_t* block, int32_t group, QuantisedGroup& out) {
    read_k_scales(block, group, out);
    read_k_nibbles(block + 16, group, out.q);
}

void read_q5_k(const uint8_t* block, int32_t group, QuantisedGroup& out) {
    read_k_scales(block, group, out);
    read_k_nibbles(block + 48, group, out.q);
    for (int i = 0; i < group_cols; ++i) out.q[i] |= static_cast<uint8_t>((block[16 + i] >> group & 1) << 4);
    add_to_all(out.q, 128);
}

// 128 bytes of low halves, 64 bytes of upper pairs of bits, 16 scales (int8), d. Each 128 columns have 64 and 32 bytes.
void read_q6_k(const uint8_t* block, int32_t group, QuantisedGroup& out) {
    const int32_t quarter = group % 4;
    const uint8_t* low = block + group / 4 * 64 + quarter % 2 * 32;
    const uint8_t* high = block + 128 + group / 4 * 32;
    for (int i = 0; i < group_cols; ++i) {
        const int code = (low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (quarter * 2) & 3) << 4;
        out.q[i] = static_cast<uint8_t>(code + 128 - 32);
    }
    for (int half = 0; half < 2; ++half) {
        const auto scale = static_cast<int8_t>(block[192 + group * 2 + half]);
        out.scales[half] = bits_of_float(half_at(block + 208) * static_cast<float>(scale));
    }
}

}  // namespace

GgmlType ggml_type(int32_t number) {
    if (const TypeEntry* entry = find_entry(number)) return entry->type;
    std::string known;
    for (const TypeEntry& entry : types) known += (known.empty() ? "" : ", ") + std::string(entry.name);
    throw std::invalid_argument("ggml tensor type " + std::to_string(number) + " cannot be run; these can: " + known);
}

const char* ggml_type_name(GgmlType type) { return entry_of(type).name; }

MatrixFormat form_of(GgmlType type) { return entry_of(type).format; }

bool is_float_type(GgmlType type) { return entry_of(type).block_cols == 1; }

int64_t row_bytes_of(GgmlType type, int32_t num_cols) {
    const TypeEntry& entry = entry_of(type);
    if (num_cols % entry.block_cols != 0) {
        throw std::invalid_argument("rows of " + std::to_string(num_cols) + " columns do not consist of whole " +
                                    entry.name + " blocks of " + std::to_string(entry.block_cols));
    }
    return int64_t{num_cols} / entry.block_cols * entry.block_bytes;
}

void read_group(GgmlType type, const uint8_t* row, int32_t group, QuantisedGroup& out) {
    const TypeEntry& entry = entry_of(type);
    const int32_t groups_a_block = entry.block_cols / group_cols;
    if (groups_a_block == 0) throw std::invalid_argument(std::string(entry.name) + " has no groups");
    const uint8_t* block = row + int64_t{group / groups_a_block} * entry.block_bytes;
    const int32_t inner = group % groups_a_block;
    switch (type) {
        case GgmlType::q8_0: return read_q8_0(block, out);
        case GgmlType::q4_0: return read_q4_0(block, out);
        case GgmlType::q4_1: return read_q4_1(block, out);
        case GgmlType::q5_0: return read_q5_0(block, out);
        case GgmlType::q5_1: return read_q5_1(block, out);
        case GgmlType::q4_k: return read_q4_k(block, inner, out);
        case GgmlType::q5_k: return read_q5_k(block, inner, out);
        case GgmlType::q6_k: return read_q6_k(block, inner, out);
        case GgmlType::f32:
        case GgmlType::f16:
        case GgmlType::bf16: break;
    }
}

void read_floats(GgmlType type, const uint8_t* row, int32_t begin, int32_t count, float* out) {
    if (type == GgmlType::f32) {
        std::memcpy(out, row + int64_t{begin} * 4, count * sizeof(float));
    } else if (type == GgmlType::f16) {
        for (int32_t i = 0; i < count; ++i) out[i] = half_at(row + (int64_t{begin} + i) * 2);
    } else if (type == GgmlType::bf16) {
        for (int32_t i = 0; i < count; ++i) out[i] = float_of_bf16(load_as<uint16_t>(row + (int64_t{begin} + i) * 2));
    } else {
        throw std::invalid_argument(std::string(ggml_type_name(type)) + " is no type of floats");
    }
}

}  // namespace headway
