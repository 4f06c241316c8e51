#include "expert_stage.h"

#include <algorithm>
#include <cstring>

#include "matrix_part.h"

namespace headway {

namespace {

constexpr int32_t most_block_rows = 96;  // as product_stage.cpp
constexpr int32_t items_a_thread = 4;
constexpr int32_t most_pair_panels = 64;
constexpr int32_t most_sum_panels = 16;  // their results stay in a core's second-level cache
// Fewer rows than this are made ready by one thread before another has woken.
constexpr int32_t few_places = 16;

int32_t divide_up(int32_t value, int32_t by) { return (value + by - 1) / by; }

// What a stage of `width` columns makes ready, or has been made ready for it, for all places.
Activations all_places(const StepContext& context, const PreparedPlace& place, const ExpertSchedule& schedule) {
    return context.activations(place, schedule.num_places());
}

}  // namespace

ExpertSchedule::ExpertSchedule(const Place& routing, int32_t max_places) : routing_(routing), counts_(routing.width) {
    // Steps take no memory of the system.
    runs_.reserve(routing.width);
    rows_.reserve(max_places);
}

void ExpertSchedule::begin(const StepContext& context) {
    const int32_t num_rows = context.step->num_tokens;
    std::fill(counts_.begin(), counts_.end(), 0);
    for (int32_t row = 0; row < num_rows; ++row) {
        const float* weights = context.at(routing_, row);
        for (int32_t expert = 0; expert < routing_.width; ++expert) counts_[expert] += weights[expert] != 0.0f;
    }
    runs_.clear();
    int32_t num_places = 0;
    for (int32_t expert = 0; expert < routing_.width; ++expert) {
        if (counts_[expert] == 0) continue;
        runs_.push_back({expert, num_places, counts_[expert]});
        num_places += counts_[expert];
        counts_[expert] = runs_.back().first;  // from here on where its next row goes
    }
    rows_.resize(num_places);
    for (int32_t row = 0; row < num_rows; ++row) {
        const float* weights = context.at(routing_, row);
        for (int32_t expert = 0; expert < routing_.width; ++expert) {
            if (weights[expert] != 0.0f) rows_[counts_[expert]++] = row;
        }
    }
}

void ExpertScratch::grow(size_t num_floats) {
    for (std::vector<float>& floats : floats_) floats.resize(std::max(floats.size(), num_floats));
}

ExpertPrepareStage::ExpertPrepareStage(ExpertSchedule& schedule, bool gathers, const Place& in, const PreparedPlace& out,
                                       ExpertScratch& scratch)
    : schedule_(schedule), gathers_(gathers), in_(in), out_(out), scratch_(scratch) {
    scratch_.grow(static_cast<size_t>(max_row_tile) * in.width);
}

int32_t ExpertPrepareStage::begin(const StepContext& context) {
    if (gathers_) schedule_.begin(context);
    const int32_t tile = context.kernels->row_tile;
    tiles_.clear();
    for (size_t run = 0; run < schedule_.runs().size(); ++run) {
        const int32_t count = schedule_.runs()[run].count;
        for (int32_t begin = 0; begin < count; begin += tile) {
            tiles_.push_back({static_cast<int32_t>(run), begin, std::min(begin + tile, count)});
        }
    }
    const auto num_tiles = static_cast<int32_t>(tiles_.size());
    const bool is_small = schedule_.num_places() <= few_places;
    tiles_an_item_ = std::max(1, is_small ? num_tiles : num_tiles / (scratch_.num_threads() * items_a_thread));
    return divide_up(num_tiles, tiles_an_item_);
}

void ExpertPrepareStage::run(const StepContext& context, int32_t item, int thread) {
    const auto num_tiles = static_cast<int32_t>(tiles_.size());
    const int32_t end = std::min((item + 1) * tiles_an_item_, num_tiles);
    for (int32_t i = item * tiles_an_item_; i < end; ++i) run_tile(context, tiles_[i], scratch_.of(thread));
}

void ExpertPrepareStage::run_tile(const StepContext& context, const ExpertTile& tile, float* scratch) const {
    const int32_t first = schedule_.runs()[tile.run].first + tile.begin;
    const int32_t num_rows = tile.end - tile.begin;
    const float* rows = gathers_ ? scratch : context.at(in_, first);
    int64_t ld = in_.ld;
    if (gathers_) {
        ld = in_.width;
        for (int32_t row = 0; row < num_rows; ++row) {
            std::memcpy(scratch + row * ld, context.at(in_, schedule_.row(first + row)), sizeof(float) * in_.width);
        }
    }
    const Activations made = activations_part(all_places(context, out_, schedule_), first, num_rows);
    if (out_.q >= 0) context.kernels->quantise_rows(rows, ld, 0, num_rows, &made);
    if (out_.wide >= 0) context.kernels->pack_rows(rows, ld, 0, num_rows, &made);
}

MatrixView ExpertMatrices::of(int32_t expert) const {
    return matrix_part(all, expert * divide_up(num_rows, panel_lanes), num_rows);
}

ExpertPairStage::ExpertPairStage(const ExpertSchedule& schedule, const ExpertMatrices& pairs, Gate gate,
                                 const PreparedPlace& in, const Place& out, int num_threads)
    : schedule_(schedule), pairs_(pairs), gate_(gate), in_(in), out_(out), num_threads_(num_threads) {}

int32_t ExpertPairStage::begin(const StepContext& context) {
    const int32_t tile = context.kernels->row_tile;
    const int32_t num_panels = divide_up(pairs_.num_rows, panel_lanes);
    block_rows_ = std::max(tile, most_block_rows / tile * tile);
    int64_t total_panels = 0;
    for (const ExpertRun& run : schedule_.runs()) {
        total_panels += static_cast<int64_t>(num_panels) * divide_up(run.count, block_rows_);
    }
    const int64_t wanted = total_panels / (num_threads_ * items_a_thread);
    block_panels_ = static_cast<int32_t>(std::clamp<int64_t>(wanted, 2, most_pair_panels)) & ~1;  // gate and up
    if (num_threads_ == 1) block_panels_ = most_pair_panels;
    panel_blocks_ = divide_up(num_panels, block_panels_);
    first_item_.assign(1, 0);
    for (const ExpertRun& run : schedule_.runs()) {
        first_item_.push_back(first_item_.back() + panel_blocks_ * divide_up(run.count, block_rows_));
    }
    return first_item_.back();
}

void ExpertPairStage::run(const StepContext& context, int32_t item, int) {
    const auto behind = std::upper_bound(first_item_.begin(), first_item_.end(), item);
    const auto at = static_cast<int32_t>(behind - first_item_.begin()) - 1;
    const ExpertRun& run = schedule_.runs()[at];
    const int32_t in_run = item - first_item_[at];
    const int32_t row_begin = in_run / panel_blocks_ * block_rows_;
    const int32_t panel_begin = in_run % panel_blocks_ * block_panels_;
    const MatrixView matrix = pairs_.of(run.expert);
    const Activations rows = activations_part(all_places(context, in_, schedule_), run.first, run.count);
    const ProductOut out{context.at(out_, run.first), out_.ld, nullptr, nullptr, 0, 1.0f, gate_};
    context.kernels->product(&matrix, &rows, row_begin, std::min(row_begin + block_rows_, run.count), panel_begin,
                             std::min(panel_begin + block_panels_, matrix.num_panels), &out);
}

ExpertSumStage::ExpertSumStage(const ExpertSchedule& schedule, const ExpertMatrices& downs, const PreparedPlace& in,
                               const Place& out, ExpertScratch& scratch)
    : schedule_(schedule), downs_(downs), in_(in), out_(out), scratch_(scratch) {
    scratch_.grow(static_cast<size_t>(most_block_rows + max_row_tile) * most_sum_panels * panel_lanes);
}

int32_t ExpertSumStage::begin(const StepContext& context) {
    if (context.step->num_tokens == 0) return 0;
    const int32_t num_panels = divide_up(downs_.num_rows, panel_lanes);
    block_panels_ = std::clamp(num_panels / (scratch_.num_threads() * items_a_thread), 1, most_sum_panels);
    if (scratch_.num_threads() == 1) block_panels_ = most_sum_panels;
    return divide_up(num_panels, block_panels_);
}

void ExpertSumStage::run(const StepContext& context, int32_t item, int thread) {
    const int32_t tile = context.kernels->row_tile;
    const int32_t block_rows = std::max(tile, most_block_rows / tile * tile);
    const int32_t column = item * block_panels_ * panel_lanes;
    const int32_t num_columns = std::min(block_panels_ * panel_lanes, downs_.num_rows - column);
    const int64_t ld = static_cast<int64_t>(block_panels_) * panel_lanes;
    float* made = scratch_.of(thread);
    for (int32_t row = 0; row < context.step->num_tokens; ++row) std::fill_n(context.at(out_, row) + column, num_columns, 0.0f);
    for (const ExpertRun& run : schedule_.runs()) {
        const MatrixView matrix = matrix_part(downs_.of(run.expert), item * block_panels_, num_columns);
        for (int32_t begin = 0; begin < run.count; begin += block_rows) {
            const int32_t num_rows = std::min(block_rows, run.count - begin);
            const Activations rows = activations_part(all_places(context, in_, schedule_), run.first + begin, num_rows);
            const ProductOut out{made, ld, nullptr, nullptr, 0, 1.0f, Gate::none};
            context.kernels->product(&matrix, &rows, 0, num_rows, 0, matrix.num_panels, &out);
            add(context, run, begin, made, ld, column, num_columns, num_rows);
        }
    }
}

void ExpertSumStage::add(const StepContext& context, const ExpertRun& run, int32_t row_begin, const float* made,
                         int64_t ld, int32_t column, int32_t num_columns, int32_t num_rows) const {
    for (int32_t i = 0; i < num_rows; ++i) {
        const int32_t row = schedule_.row(run.first + row_begin + i);
        const float weight = context.at(schedule_.routing(), row)[run.expert];
        float* to = context.at(out_, row) + column;
        const float* from = made + i * ld;
        for (int32_t n = 0; n < num_columns; ++n) to[n] = to[n] + weight * from[n];
    }
}

}  // namespace headway
