// headway._native: plans of the native executor (headway.executor.native*). Values are given as
// tuples: a place is (offset, ld, width) in floats, a prepared place (q, scales, sums, wide, width) in bytes, -1: none.

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.h"
#include "exec/expert_stage.h"
#include "exec/head_columns.h"
#include "exec/matrix_part.h"
#include "exec/packing.h"
#include "exec/plan.h"
#include "exec/pool.h"
#include "exec/route.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {

namespace {

using PlaceTuple = std::tuple<int64_t, int64_t, int32_t>;
using PreparedTuple = std::tuple<int64_t, int64_t, int64_t, int64_t, int32_t>;
using Floats = Array<const float, 1>;

Place to_place(const PlaceTuple& tuple) { return {std::get<0>(tuple), std::get<1>(tuple), std::get<2>(tuple)}; }

PreparedPlace to_prepared(const PreparedTuple& tuple) {
    return {std::get<0>(tuple), std::get<1>(tuple), std::get<2>(tuple), std::get<3>(tuple), std::get<4>(tuple)};
}

KVType kv_type(const std::string& dtype) {
    if (dtype == "bfloat16") return KVType::bf16;
    if (dtype == "float16") return KVType::f16;
    require(dtype == "int8", "K and V are kept as bfloat16, float16 or int8");
    return KVType::int8;
}

// A plan, and what its stages point into.
class BoundPlan {
public:
    BoundPlan(nb::object workers, int32_t max_tokens, int32_t max_selected, int32_t max_seqs, int32_t max_context,
              int32_t num_embeddings, int32_t num_blocks, int32_t block_size, int64_t arena_bytes, bool has_floats)
        : kept_{workers},
          plan_({max_tokens, max_selected, max_seqs, max_context, num_embeddings, num_blocks, block_size}, arena_bytes,
                nb::cast<Workers&>(workers), has_floats),
          expert_scratch_(plan_.num_threads()),
          num_blocks_(num_blocks),
          block_size_(block_size) {}

    Plan& plan() { return plan_; }

    void row_stage(bool is_selected, bool cuts_at_blocks) {
        plan_.add_row_stage(is_selected ? RowKind::selected : RowKind::tokens, cuts_at_blocks);
    }

    void embed(nb::object table, bool by_position, int32_t offset, float scale, const PlaceTuple& out) {
        auto op = std::make_unique<EmbedRows>();
        op->table = view_of(table);
        op->index = by_position ? EmbedIndex::position : EmbedIndex::token;
        op->index_offset = offset;
        op->scale = scale;
        op->out = to_place(out);
        plan_.add_row_op(std::move(op));
    }

    void embed_types(nb::object table, const PlaceTuple& out) {
        auto op = std::make_unique<EmbedRows>();
        op->table = view_of(table);
        op->index = EmbedIndex::token_type;
        op->index_offset = 0;
        op->scale = 1.0f;
        op->out = to_place(out);
        num_token_types_ = op->table.num_rows;
        plan_.add_row_op(std::move(op));
    }

    void norm(bool is_layer, const PlaceTuple& in, const PlaceTuple& out, int32_t head, Floats weight,
              std::optional<Floats> bias, float eps, bool one_plus) {
        require(static_cast<int32_t>(weight.shape(0)) == head, "a norm's weight is not of its head's width");
        auto op = std::make_unique<NormRows>();
        op->is_layer = is_layer;
        op->in = to_place(in);
        op->out = to_place(out);
        op->head = head;
        op->weight = floats_of(weight);
        op->bias = bias ? floats_of(*bias) : nullptr;
        op->eps = eps;
        op->one_plus = one_plus;
        plan_.add_row_op(std::move(op));
    }

    void prepare(bool is_selected, const PlaceTuple& in, const PreparedTuple& out) {
        auto op = std::make_unique<PrepareRows>();
        op->kind = is_selected ? RowKind::selected : RowKind::tokens;
        op->in = to_place(in);
        op->out = to_prepared(out);
        plan_.add_row_op(std::move(op));
    }

    void element(int what, int activation, int gate, float factor, float cap, const PlaceTuple& left,
                 const PlaceTuple& right, const PlaceTuple& out) {
        auto op = std::make_unique<ElementRows>();
        op->what = static_cast<ElementRows::What>(what);
        op->activation = activation;
        op->gate = static_cast<Gate>(gate);
        op->factor = factor;
        op->cap = cap;
        op->left = to_place(left);
        op->right = to_place(right);
        op->out = to_place(out);
        plan_.add_row_op(std::move(op));
    }

    void rope(const PlaceTuple& value, int32_t head_dim, Array<const float, 2> cosines, Array<const float, 2> sines,
              bool interleaved) {
        require(cosines.shape(0) == sines.shape(0) && cosines.shape(1) == sines.shape(1),
                "cosines and sines differ in shape");
        auto op = std::make_unique<RopeRows>();
        op->value = to_place(value);
        op->head_dim = head_dim;
        op->table = {cosines.data(), sines.data(), static_cast<int32_t>(cosines.shape(1)), interleaved};
        kept_.push_back(nb::cast(cosines));
        kept_.push_back(nb::cast(sines));
        plan_.add_row_op(std::move(op));
    }

    void select(const PlaceTuple& in, const PlaceTuple& out) {
        auto op = std::make_unique<SelectRows>();
        op->in = to_place(in);
        op->out = to_place(out);
        plan_.add_row_op(std::move(op));
    }

    void pool(int kind, bool normalise, const PlaceTuple& in, const PlaceTuple& out) {
        auto op = std::make_unique<PoolRows>();
        op->kind = static_cast<PoolKind>(kind);
        op->normalise = normalise;
        op->in = to_place(in);
        op->out = to_place(out);
        plan_.add_row_op(std::move(op));
        has_pool_ = true;
    }

    void copy_heads(const PlaceTuple& in, const PlaceTuple& out, int32_t num_heads, int32_t width, int32_t in_step,
                    int32_t out_step) {
        auto op = std::make_unique<CopyHeadRows>();
        op->in = to_place(in);
        op->out = to_place(out);
        op->num_heads = num_heads;
        op->width = width;
        op->in_step = in_step;
        op->out_step = out_step;
        plan_.add_row_op(std::move(op));
    }

    void route(const PlaceTuple& in, const PlaceTuple& out, bool is_sigmoid, int32_t top_k, int32_t num_groups,
               int32_t top_groups, int32_t num_counted, std::optional<Floats> bias, bool normalise, float scale) {
        auto op = std::make_unique<RouteRows>();
        op->in = to_place(in);
        op->out = to_place(out);
        require(op->in.width <= max_experts, "there are more experts than a row can be routed to");
        require(!bias || static_cast<int32_t>(bias->shape(0)) == op->in.width, "the bias is not of so many experts");
        op->scoring = is_sigmoid ? Scoring::sigmoid : Scoring::softmax;
        op->top_k = top_k;
        op->num_groups = num_groups;
        op->top_groups = top_groups;
        op->num_counted = num_counted;
        op->bias = bias ? floats_of(*bias) : nullptr;
        op->normalise = normalise;
        op->scale = scale;
        plan_.add_row_op(std::move(op));
    }

    // The experts' four stages in turn; `schedule` of the others is what the first one gave.
    int expert_gather(const PlaceTuple& routing, int32_t max_places, const PlaceTuple& in, const PreparedTuple& out) {
        expert_schedules_.push_back(std::make_unique<ExpertSchedule>(to_place(routing), max_places));
        const int schedule = static_cast<int>(expert_schedules_.size()) - 1;
        plan_.add_stage(std::make_unique<ExpertPrepareStage>(*expert_schedules_.back(), true, to_place(in), to_prepared(out),
                                                             expert_scratch_));
        return schedule;
    }

    void expert_pairs(int schedule, nb::object matrix, int32_t num_rows, int gate, const PreparedTuple& in,
                      const PlaceTuple& out) {
        plan_.add_stage(std::make_unique<ExpertPairStage>(schedule_at(schedule), ExpertMatrices{view_of(matrix), num_rows},
                                                          static_cast<Gate>(gate), to_prepared(in), to_place(out),
                                                          plan_.num_threads()));
    }

    void expert_prepare(int schedule, const PlaceTuple& in, const PreparedTuple& out) {
        plan_.add_stage(std::make_unique<ExpertPrepareStage>(schedule_at(schedule), false, to_place(in), to_prepared(out),
                                                             expert_scratch_));
    }

    void expert_sum(int schedule, nb::object matrix, int32_t num_rows, const PreparedTuple& in, const PlaceTuple& out) {
        plan_.add_stage(std::make_unique<ExpertSumStage>(schedule_at(schedule), ExpertMatrices{view_of(matrix), num_rows},
                                                         to_prepared(in), to_place(out), expert_scratch_));
    }

    void product_stage(bool is_selected, const PreparedTuple& input) {
        plan_.add_product_stage(is_selected ? RowKind::selected : RowKind::tokens);
        stage_input_ = to_prepared(input);
    }

    // input: the stage's where there is none; rows: (first, number) of the matrix, first a multiple of 16; none: all.
    void product(nb::object matrix, const PlaceTuple& out, std::optional<Floats> bias, const PlaceTuple& base, float scale,
                 int gate, std::optional<PreparedTuple> input, std::optional<std::pair<int32_t, int32_t>> rows) {
        ProductPart part;
        part.input = input ? to_prepared(*input) : stage_input_;
        part.matrix = view_of(matrix);
        if (rows) {
            require(rows->first % panel_lanes == 0 && rows->second >= 1 &&
                        rows->first + rows->second <= part.matrix.num_rows,
                    "these are no rows of the matrix that begin a panel");
            part.matrix = matrix_part(part.matrix, rows->first / panel_lanes, rows->second);
        }
        part.out = to_place(out);
        part.bias = bias ? floats_of(*bias) : nullptr;
        part.base = to_place(base);
        part.scale = scale;
        part.gate = static_cast<Gate>(gate);
        plan_.add_product(part);
    }

    // The cache: k and v as bytes of a type that is named as Python names it; scales of int8 behind the values of the same
    // buffer.
    // Without a v the values are columns of the keys.
    KVView cache(const std::string& dtype, int32_t num_kv_heads, int32_t qk_dim, int32_t v_dim, Array<uint8_t, 1> k,
                 std::optional<Array<uint8_t, 1>> v) {
        KVView view{};
        view.type = kv_type(dtype);
        view.block_size = block_size_;
        view.num_kv_heads = num_kv_heads;
        view.qk_dim = qk_dim;
        view.v_dim = v_dim;
        view.k = k.data();
        view.v_in_k = !v.has_value();
        const int64_t slots = static_cast<int64_t>(num_blocks_) * block_size_ * num_kv_heads;
        const bool is_int8 = view.type == KVType::int8;
        const int32_t k_padding = is_int8 ? 4 : view.type == KVType::bf16 ? 2 : 1;
        const int64_t k_width = static_cast<int64_t>(qk_dim + k_padding - 1) / k_padding * k_padding * (is_int8 ? 1 : 2);
        const int64_t k_bytes = slots * k_width, v_bytes = slots * v_dim * (is_int8 ? 1 : 2);
        const int64_t scale_bytes = is_int8 ? slots * static_cast<int64_t>(sizeof(float)) : 0;
        require(static_cast<int64_t>(k.shape(0)) >= k_bytes + scale_bytes, "the memory of K is too small for the cache");
        if (is_int8) view.k_scales = reinterpret_cast<float*>(k.data() + k_bytes);
        kept_.push_back(nb::cast(k));
        if (v) {
            require(static_cast<int64_t>(v->shape(0)) >= v_bytes + scale_bytes,
                    "the memory of V is too small for the cache");
            view.v = v->data();
            if (is_int8) view.v_scales = reinterpret_cast<float*>(v->data() + v_bytes);
            kept_.push_back(nb::cast(*v));
        }
        return view;
    }

    void write_kv(const KVView& kv, const PlaceTuple& k, const PlaceTuple& v) {
        auto op = std::make_unique<WriteKVRows>();
        op->kv = kv;
        op->k = to_place(k);
        op->v = to_place(v);
        plan_.add_row_op(std::move(op));
    }

    void attention(const KVView& kv, const PlaceTuple& q, const PlaceTuple& out, int32_t num_heads, float scale,
                   float soft_cap, int32_t window, bool causal, int32_t head_parts) {
        require(head_parts >= 1 && num_heads % (kv.num_kv_heads * head_parts) == 0,
                "the query heads are not divided evenly");
        plan_.add_attention({kv, to_place(q), to_place(out), scale, soft_cap},
                            {num_heads, kv.num_kv_heads, kv.qk_dim, kv.v_dim, window, causal, head_parts});
    }

    void finish(const PlaceTuple& last_hidden, const PlaceTuple& logits) {
        plan_.set_last_hidden(to_place(last_hidden));
        plan_.set_logits(to_place(logits));
        plan_.finish();
    }

    void execute(Array<const int32_t, 1> token_ids, Array<const int32_t, 1> positions, Array<const int64_t, 1> slots,
                 Array<const int32_t, 1> query_starts, Array<const int32_t, 1> context_lens,
                 Array<const int32_t, 2> block_tables, Array<const int32_t, 1> logit_rows) {
        const Step step = to_step(token_ids, positions, slots, query_starts, context_lens, block_tables, logit_rows);
        require(!has_pool_ && num_token_types_ == 0, "an encoder's plan runs by encode()");
        num_selected_ = step.num_selected;
        const nb::gil_scoped_release no_gil;
        plan_.run(step, {});
    }

    // Whole sequences, whose last tokens are last_rows; logits() has a row of each.
    void encode(Array<const int32_t, 1> token_ids, Array<const int32_t, 1> token_types, Array<const int32_t, 1> positions,
                Array<const int64_t, 1> slots, Array<const int32_t, 1> query_starts,
                Array<const int32_t, 1> context_lens, Array<const int32_t, 2> block_tables,
                Array<const int32_t, 1> last_rows) {
        Step step = to_step(token_ids, positions, slots, query_starts, context_lens, block_tables, last_rows);
        require(has_pool_, "a language model's plan runs by execute() and sample()");
        require(step.num_selected == step.num_seqs, "there is not one row a sequence");
        require(token_types.shape(0) == token_ids.shape(0), "token_ids and token_types differ in length");
        for (int32_t token = 0; token < step.num_tokens; ++token) {
            const int32_t type = token_types.data()[token];
            // Without a table (DistilBERT) there is one type.
            require(type >= 0 && type < std::max(num_token_types_, 1), "a token type is outside of its table");
        }
        step.token_types = token_types.data();
        num_selected_ = step.num_selected;
        const nb::gil_scoped_release no_gil;
        plan_.run(step, {});
    }

    void sample(Array<const int32_t, 1> token_ids, Array<const int32_t, 1> positions, Array<const int64_t, 1> slots,
                Array<const int32_t, 1> query_starts, Array<const int32_t, 1> context_lens,
                Array<const int32_t, 2> block_tables, Array<const int32_t, 1> logit_rows,
                Array<const int32_t, 1> checked_rows, Array<bool, 1> checked_finite, BoundSampler& sampler,
                Array<const int32_t, 1> rows, Array<const int32_t, 1> num_tokens, Array<int32_t, 1> chosen,
                Array<bool, 1> is_finite, Array<float, 1> logprobs, Array<int32_t, 2> top_ids,
                Array<float, 2> top_logprobs) {
        const Step step = to_step(token_ids, positions, slots, query_starts, context_lens, block_tables, logit_rows);
        require(!has_pool_ && num_token_types_ == 0, "an encoder's plan runs by encode()");
        require(sampler.batch.vocab_size() == plan_.logits_width(), "the sampler is of another vocabulary");
        require(checked_rows.shape(0) == checked_finite.shape(0), "checked_rows and checked_finite differ in length");
        const SampleCall call = sampler.make_call(nullptr, logit_rows.shape(0), rows, num_tokens, chosen, is_finite,
                                                  logprobs, top_ids, top_logprobs);
        num_selected_ = step.num_selected;
        const nb::gil_scoped_release no_gil;
        plan_.run(step, {checked_rows.data(), static_cast<int32_t>(checked_rows.shape(0)), checked_finite.data(),
                         &sampler.batch, call});
    }

    // The last step's, as a view of the plan's memory.
    auto logits() {
        const auto width = static_cast<size_t>(plan_.logits_width());
        return nb::ndarray<nb::numpy, const float, nb::ndim<2>>(plan_.logits(), {static_cast<size_t>(num_selected_), width},
                                                                nb::find(this));
    }

private:
    static Step to_step(const Array<const int32_t, 1>& token_ids, const Array<const int32_t, 1>& positions,
                        const Array<const int64_t, 1>& slots, const Array<const int32_t, 1>& query_starts,
                        const Array<const int32_t, 1>& context_lens, const Array<const int32_t, 2>& block_tables,
                        const Array<const int32_t, 1>& logit_rows) {
        const size_t num_tokens = token_ids.shape(0), num_seqs = context_lens.shape(0);
        require(positions.shape(0) == num_tokens && slots.shape(0) == num_tokens,
                "token_ids, positions and slots differ in length");
        require(query_starts.shape(0) == num_seqs + 1 && block_tables.shape(0) == num_seqs,
                "query_starts, context_lens and block_tables are not of one number of sequences");
        return {token_ids.data(),
                positions.data(),
                slots.data(),
                query_starts.data(),
                context_lens.data(),
                block_tables.data(),
                logit_rows.data(),
                static_cast<int32_t>(num_tokens),
                static_cast<int32_t>(num_seqs),
                static_cast<int32_t>(block_tables.shape(1)),
                static_cast<int32_t>(logit_rows.shape(0))};
    }

    MatrixView view_of(nb::object matrix) {
        kept_.push_back(matrix);
        return nb::cast<PackedMatrix&>(matrix).view();
    }

    const float* floats_of(const Floats& array) {
        kept_.push_back(nb::cast(array));
        return array.data();
    }

    ExpertSchedule& schedule_at(int schedule) {
        require(schedule >= 0 && schedule < static_cast<int>(expert_schedules_.size()), "there is no such schedule");
        return *expert_schedules_[schedule];
    }

    std::vector<nb::object> kept_;
    std::vector<std::unique_ptr<ExpertSchedule>> expert_schedules_;
    PreparedPlace stage_input_;
    Plan plan_;
    ExpertScratch expert_scratch_;
    int32_t num_blocks_;
    int32_t block_size_;
    int32_t num_selected_ = 0;
    int32_t num_token_types_ = 0;
    bool has_pool_ = false;
};

void bind_plan(nb::module_& module) {
    nb::class_<KVView>(module, "KVCacheView");
    nb::class_<BoundPlan>(module, "Plan", "A compiled Program; see headway.executor.native_plan.")
        .def(nb::init<nb::object, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int64_t, bool>(), "workers"_a,
             nb::kw_only(), "max_tokens"_a, "max_selected"_a, "max_seqs"_a, "max_context"_a, "num_embeddings"_a,
             "num_blocks"_a, "block_size"_a, "arena_bytes"_a, "has_floats"_a = false)
        .def_prop_ro("num_bytes", [](BoundPlan& self) { return self.plan().num_bytes(); })
        .def("row_stage", &BoundPlan::row_stage, nb::kw_only(), "is_selected"_a, "cuts_at_blocks"_a)
        .def("embed", &BoundPlan::embed, "table"_a, nb::kw_only(), "by_position"_a, "offset"_a, "scale"_a, "out"_a)
        .def("embed_types", &BoundPlan::embed_types, "table"_a, nb::kw_only(), "out"_a)
        .def("norm", &BoundPlan::norm, nb::kw_only(), "is_layer"_a, "input"_a, "out"_a, "head"_a, "weight"_a.noconvert(),
             "bias"_a.none(), "eps"_a, "one_plus"_a)
        .def("prepare", &BoundPlan::prepare, nb::kw_only(), "is_selected"_a, "input"_a, "out"_a)
        .def("element", &BoundPlan::element, nb::kw_only(), "what"_a, "activation"_a, "gate"_a, "factor"_a, "cap"_a,
             "left"_a, "right"_a, "out"_a)
        .def("rope", &BoundPlan::rope, nb::kw_only(), "value"_a, "head_dim"_a, "cosines"_a.noconvert(),
             "sines"_a.noconvert(), "interleaved"_a)
        .def("select", &BoundPlan::select, nb::kw_only(), "input"_a, "out"_a)
        .def("pool", &BoundPlan::pool, nb::kw_only(), "kind"_a, "normalise"_a, "input"_a, "out"_a)
        .def("copy_heads", &BoundPlan::copy_heads, nb::kw_only(), "input"_a, "out"_a, "num_heads"_a, "width"_a,
             "in_step"_a, "out_step"_a)
        .def("route", &BoundPlan::route, nb::kw_only(), "input"_a, "out"_a, "is_sigmoid"_a, "top_k"_a, "num_groups"_a,
             "top_groups"_a, "num_counted"_a, "bias"_a.none(), "normalise"_a, "scale"_a)
        .def("expert_gather", &BoundPlan::expert_gather, nb::kw_only(), "routing"_a, "max_places"_a, "input"_a, "out"_a)
        .def("expert_pairs", &BoundPlan::expert_pairs, "schedule"_a, "matrix"_a, nb::kw_only(), "num_rows"_a, "gate"_a,
             "input"_a, "out"_a)
        .def("expert_prepare", &BoundPlan::expert_prepare, "schedule"_a, nb::kw_only(), "input"_a, "out"_a)
        .def("expert_sum", &BoundPlan::expert_sum, "schedule"_a, "matrix"_a, nb::kw_only(), "num_rows"_a, "input"_a,
             "out"_a)
        .def("product_stage", &BoundPlan::product_stage, nb::kw_only(), "is_selected"_a, "input"_a)
        .def("product", &BoundPlan::product, "matrix"_a, nb::kw_only(), "out"_a, "bias"_a.none(), "base"_a, "scale"_a,
             "gate"_a, "input"_a = nb::none(), "rows"_a = nb::none())
        .def("cache", &BoundPlan::cache, nb::kw_only(), "dtype"_a, "num_kv_heads"_a, "qk_dim"_a, "v_dim"_a,
             "k"_a.noconvert(), "v"_a.noconvert().none())
        .def("write_kv", &BoundPlan::write_kv, "cache"_a, nb::kw_only(), "k"_a, "v"_a)
        .def("attention", &BoundPlan::attention, "cache"_a, nb::kw_only(), "q"_a, "out"_a, "num_heads"_a, "scale"_a,
             "soft_cap"_a, "window"_a, "causal"_a, "head_parts"_a = 1)
        .def("finish", &BoundPlan::finish, nb::kw_only(), "last_hidden"_a, "logits"_a)
        .def("execute", &BoundPlan::execute)
        .def("encode", &BoundPlan::encode)
        .def("sample", &BoundPlan::sample)
        .def("logits", &BoundPlan::logits)
        .def("time_stages", [](BoundPlan& self, bool is_on) { self.plan().time_stages(is_on); }, "is_on"_a)
        .def("stage_times", [](BoundPlan& self) {
            nb::list times;
            for (int64_t time : self.plan().stage_times()) times.append(time);
            return times;
        });
}

}  // namespace

void bind_exec(nb::module_& module) {
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const OutOfMemory& error) {
            PyErr_SetString(PyExc_MemoryError, error.what());
        }
    });
    bind_matrix(module);
    bind_plan(module);
    module.def(
        "step_kernels",
        [] {
            const ExecKernels& kernels = exec_kernels(choose_isa());
            return std::make_tuple(std::string(kernels.name), kernels.row_tile, kernels.multiplies_bf16);
        },
        "Name, row tile and whether bfloat16 is multiplied as it is. Raises ValueError as chosen_isa().");
}

}  // namespace headway
