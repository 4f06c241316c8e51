// Products of prepared rows with matrices: items are blocks of rows times blocks of panels.
#pragma once

#include <cstdint>
#include <vector>

#include "step.h"

namespace headway {

// One matrix of a stage, and the rows that it multiplies. Without a gate row n of it goes to column n of `out`.
struct ProductPart {
    PreparedPlace input;
    MatrixView matrix;
    Place out;
    const float* bias = nullptr;
    Place base;             // width 0: none
    float scale = 1.0f;
    Gate gate = Gate::none;
};

class ProductStage final : public Stage {
public:
    ProductStage(RowKind kind, int num_threads) : kind_(kind), num_threads_(num_threads) {}
    void add(const ProductPart& part);
    int32_t begin(const StepContext& context) override;
    void run(const StepContext& context, int32_t item, int thread) override;

private:
    RowKind kind_;
    int num_threads_;
    std::vector<ProductPart> parts_;
    int32_t num_panels_ = 0;  // of all parts
    // of this step
    int32_t num_rows_ = 0;
    int32_t block_rows_ = 0;
    int32_t block_panels_ = 0;
    std::vector<int32_t> first_item_;  // of each part, of a block of rows
    int32_t items_a_block_ = 0;        // of rows
};

}  // namespace headway
