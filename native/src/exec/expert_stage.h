// The experts of a step, in four stages over one schedule. The rows of an expert lie together, ascending; the experts
// one behind the other, ascending: `places`, of which there are at most rows times top_k.
//
//   prepare   each expert's rows are gathered and made ready         input    -> ready
//   pairs     gate and up in one product, which ends with the gate   ready    -> hidden
//   prepare   as before, but that the rows lie together already      hidden   -> hidden_ready
//   sum       down, times the row's weight, added up                 hidden_ready -> out
//
// What a row gives depends on that row alone: products do not depend on the rows beside it, and one thread adds all
// experts of a column, ascending, from 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "step.h"

namespace headway {

// One expert with its places [first, first + count).
struct ExpertRun {
    int32_t expert;
    int32_t first;
    int32_t count;
};

// Which rows each expert has, by what Route made: made once a step and layer, by the first of the stages.
class ExpertSchedule {
public:
    // routing: [tokens, experts]; max_places: rows of a step times the experts that one has.
    ExpertSchedule(const Place& routing, int32_t max_places);
    void begin(const StepContext& context);

    const std::vector<ExpertRun>& runs() const { return runs_; }
    int32_t num_places() const { return static_cast<int32_t>(rows_.size()); }
    int32_t row(int32_t place) const { return rows_[place]; }
    const Place& routing() const { return routing_; }

private:
    Place routing_;
    std::vector<ExpertRun> runs_;
    std::vector<int32_t> rows_;    // of each place
    std::vector<int32_t> counts_;  // of each expert
};

// Memory of each thread, shared by all stages of experts, of which one runs at a time.
class ExpertScratch {
public:
    explicit ExpertScratch(int num_threads) : floats_(num_threads) {}
    void grow(size_t num_floats);
    float* of(int thread) { return floats_[thread].data(); }
    int num_threads() const { return static_cast<int>(floats_.size()); }

private:
    std::vector<std::vector<float>> floats_;
};

// Rows of one expert, at most a tile of Activations.
struct ExpertTile {
    int32_t run;
    int32_t begin;  // of the expert's rows
    int32_t end;
};

class ExpertPrepareStage final : public Stage {
public:
    // gathers: `in` has a row a token, and this is the first stage of the schedule; else a row a place.
    ExpertPrepareStage(ExpertSchedule& schedule, bool gathers, const Place& in, const PreparedPlace& out,
                       ExpertScratch& scratch);
    int32_t begin(const StepContext& context) override;
    void run(const StepContext& context, int32_t item, int thread) override;

private:
    void run_tile(const StepContext& context, const ExpertTile& tile, float* scratch) const;

    ExpertSchedule& schedule_;
    bool gathers_;
    Place in_;
    PreparedPlace out_;
    ExpertScratch& scratch_;  // a tile of rows
    int32_t tiles_an_item_ = 1;
    std::vector<ExpertTile> tiles_;
};

// Matrices of all experts, one under another, each from a panel on.
struct ExpertMatrices {
    MatrixView all;
    int32_t num_rows;  // of one expert
    MatrixView of(int32_t expert) const;
};

class ExpertPairStage final : public Stage {
public:
    // pairs: gate and up in turns of 16 rows; out: a row a place.
    ExpertPairStage(const ExpertSchedule& schedule, const ExpertMatrices& pairs, Gate gate, const PreparedPlace& in,
                    const Place& out, int num_threads);
    int32_t begin(const StepContext& context) override;
    void run(const StepContext& context, int32_t item, int thread) override;

private:
    const ExpertSchedule& schedule_;
    ExpertMatrices pairs_;
    Gate gate_;
    PreparedPlace in_;
    Place out_;
    int num_threads_;
    int32_t block_rows_ = 0;
    int32_t block_panels_ = 0;
    int32_t panel_blocks_ = 0;
    std::vector<int32_t> first_item_;  // of each run
};

class ExpertSumStage final : public Stage {
public:
    // out: a row a token.
    ExpertSumStage(const ExpertSchedule& schedule, const ExpertMatrices& downs, const PreparedPlace& in, const Place& out,
                   ExpertScratch& scratch);
    int32_t begin(const StepContext& context) override;
    void run(const StepContext& context, int32_t item, int thread) override;

private:
    void add(const StepContext& context, const ExpertRun& run, int32_t row_begin, const float* made, int64_t ld,
             int32_t column, int32_t num_columns, int32_t num_rows) const;

    const ExpertSchedule& schedule_;
    ExpertMatrices downs_;
    PreparedPlace in_;
    Place out_;
    ExpertScratch& scratch_;  // a block of results
    int32_t block_panels_ = 0;
};

}  // namespace headway
