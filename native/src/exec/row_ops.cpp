#include "row_ops.h"

#include <algorithm>
#include <cstring>

namespace headway {

namespace {

// A multiple of every row tile's width is not asked for: a block is rounded up to whole tiles.
constexpr int32_t block_rows = 32;

int32_t whole_tiles(int32_t rows, int32_t tile) { return (rows + tile - 1) / tile * tile; }

}  // namespace

Activations StepContext::activations(const PreparedPlace& place, int32_t num_rows) const {
    Activations made{};
    made.num_rows = num_rows;
    made.num_cols = place.width;
    made.num_groups = (place.width + group_cols - 1) / group_cols;
    if (place.q >= 0) {
        made.q = reinterpret_cast<int8_t*>(arena + place.q);
        made.scales = reinterpret_cast<float*>(arena + place.scales);
        made.sums = reinterpret_cast<int32_t*>(arena + place.sums);
    }
    if (place.wide >= 0) {
        made.bf16 = reinterpret_cast<uint16_t*>(arena + place.wide);
        made.f32 = reinterpret_cast<float*>(arena + place.wide);
    }
    return made;
}

void EmbedRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    const Step& step = *context.step;
    const int32_t* indexes = index == EmbedIndex::token      ? step.token_ids
                             : index == EmbedIndex::position ? step.positions
                                                             : step.token_types;
    for (int32_t row = row_begin; row < row_end; ++row) {
        context.kernels->read_row(&table, indexes[row] + index_offset, scale, context.at(out, row));
    }
}

void NormRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    const float* from = context.at(in, row_begin);
    float* to = context.at(out, row_begin);
    const int32_t rows = row_end - row_begin;
    if (is_layer) {
        context.kernels->layer_norm(from, in.ld, to, out.ld, rows, in.width, head, weight, bias, eps, one_plus);
    } else {
        context.kernels->rms_norm(from, in.ld, to, out.ld, rows, in.width, head, weight, eps, one_plus);
        if (bias != nullptr) add_bias(context, row_begin, row_end);
    }
}

void NormRows::add_bias(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    for (int32_t row = row_begin; row < row_end; ++row) {
        float* to = context.at(out, row);
        for (int32_t start = 0; start < in.width; start += head) {
            context.kernels->add(to + start, bias, to + start, head);
        }
    }
}

void PrepareRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    const Activations made = context.activations(out, context.num_rows(kind));
    if (out.q >= 0) context.kernels->quantise_rows(context.at(in), in.ld, row_begin, row_end, &made);
    if (out.wide >= 0) context.kernels->pack_rows(context.at(in), in.ld, row_begin, row_end, &made);
}

void ElementRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    const bool is_dense = left.ld == out.width && out.ld == out.width && what != What::broadcast &&
                          (right.width == 0 || right.ld == out.width);
    if (is_dense) {
        const int64_t n = static_cast<int64_t>(row_end - row_begin) * out.width;
        run_part(context, context.at(left, row_begin), context.at(right, row_begin), context.at(out, row_begin), n);
        return;
    }
    for (int32_t row = row_begin; row < row_end; ++row) {
        run_part(context, context.at(left, row), context.at(right, row), context.at(out, row), out.width);
    }
}

void ElementRows::run_part(const StepContext& context, const float* x, const float* y, float* to, int64_t n) const {
    const ExecKernels& kernels = *context.kernels;
    switch (what) {
        case What::activation:
            return kernels.activation(activation, x, to, n);
        case What::gate:
            return kernels.gate(gate, x, y, to, n);
        case What::multiply:
            return kernels.multiply(x, y, to, n);
        case What::add:
            return kernels.add(x, y, to, n);
        case What::scale:
            return kernels.scale(x, factor, to, n);
        case What::soft_cap:
            return kernels.soft_cap(x, factor, cap, to, n);
        case What::broadcast:
            return kernels.scale(x, *y, to, n);
        case What::copy:
            std::memmove(to, x, static_cast<size_t>(n) * sizeof(float));
    }
}

void RopeRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    context.kernels->rope(context.at(value, row_begin), value.ld, context.step->positions + row_begin,
                          row_end - row_begin, value.width / head_dim, head_dim, &table);
}

void WriteKVRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    context.kernels->write_kv(&kv, context.at(k, row_begin), k.ld, context.at(v, row_begin), v.ld,
                              context.step->slots + row_begin, row_end - row_begin, 0, kv.num_kv_heads);
}

void SelectRows::run(const StepContext& context, int32_t row_begin, int32_t row_end) const {
    for (int32_t row = row_begin; row < row_end; ++row) {
        std::memcpy(context.at(out, row), context.at(in, context.step->selected[row]), sizeof(float) * out.width);
    }
}

int32_t RowStage::begin(const StepContext& context) {
    const int32_t num_rows = context.num_rows(kind_);
    const int32_t block = whole_tiles(block_rows, context.kernels->row_tile);
    cuts_.assign(1, 0);
    while (cuts_.back() < num_rows) {
        int32_t end = std::min(cuts_.back() + block, num_rows);
        // A row that is neither first in its block of the cache nor first of its sequence goes with the one before.
        while (cuts_at_blocks_ && end < num_rows && context.step->slots[end] % block_size_ != 0 &&
               context.step->slots[end] == context.step->slots[end - 1] + 1) {
            ++end;
        }
        cuts_.push_back(end);
    }
    return static_cast<int32_t>(cuts_.size()) - 1;
}

void RowStage::run(const StepContext& context, int32_t item, int) {
    for (const auto& op : ops_) op->run(context, cuts_[item], cuts_[item + 1]);
}

}  // namespace headway
