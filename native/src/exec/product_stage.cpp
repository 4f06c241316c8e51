#include "product_stage.h"

#include <algorithm>

namespace headway {

namespace {

// So many rows of activations stay in a core's second-level cache, with a panel of weights in its first.
constexpr int32_t most_block_rows = 96;
// Items a thread: enough that one that came late, or that shares its core, costs little, few enough that claims and the
// breaks in the prefetching cost less. Few rows are a matter of memory.
int32_t items_a_thread(int32_t num_rows) { return num_rows >= 16 ? 12 : 4; }
constexpr int32_t least_block_panels = 2;
constexpr int32_t most_block_panels = 64;

int32_t divide_up(int32_t value, int32_t by) { return (value + by - 1) / by; }

}  // namespace

void ProductStage::add(const ProductPart& part) {
    parts_.push_back(part);
    num_panels_ += part.matrix.num_panels;
}

int32_t ProductStage::begin(const StepContext& context) {
    num_rows_ = context.num_rows(kind_);
    if (num_rows_ == 0) return 0;
    const int32_t tile = context.kernels->row_tile;
    const int32_t num_row_blocks = divide_up(num_rows_, most_block_rows);
    block_rows_ = divide_up(divide_up(num_rows_, num_row_blocks), tile) * tile;
    const int32_t wanted = divide_up(num_threads_ * items_a_thread(num_rows_), divide_up(num_rows_, block_rows_));
    block_panels_ = std::clamp(num_panels_ / wanted, least_block_panels, most_block_panels) & ~1;  // gates: even
    if (num_threads_ == 1) block_panels_ = most_block_panels;
    first_item_.assign(1, 0);
    for (const ProductPart& part : parts_) {
        first_item_.push_back(first_item_.back() + divide_up(part.matrix.num_panels, block_panels_));
    }
    items_a_block_ = first_item_.back();
    return items_a_block_ * divide_up(num_rows_, block_rows_);
}

void ProductStage::run(const StepContext& context, int32_t item, int) {
    const int32_t row_begin = item / items_a_block_ * block_rows_;
    const int32_t in_block = item % items_a_block_;
    size_t at = 0;
    while (in_block >= first_item_[at + 1]) ++at;
    const ProductPart& part = parts_[at];
    const int32_t panel_begin = (in_block - first_item_[at]) * block_panels_;
    const bool has_base = part.base.width > 0;
    const ProductOut out{context.at(part.out), part.out.ld,
                         part.bias,            has_base ? context.at(part.base) : nullptr,
                         part.base.ld,         part.scale,
                         part.gate};
    const Activations input = context.activations(part.input, num_rows_);
    context.kernels->product(&part.matrix, &input, row_begin, std::min(row_begin + block_rows_, num_rows_), panel_begin,
                             std::min(panel_begin + block_panels_, part.matrix.num_panels), &out);
}

}  // namespace headway
