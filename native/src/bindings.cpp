// headway._native: what Python sees of the kernels. Checks shapes; the types are checked by the signatures.

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "philox.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {

BoundSampler::BoundSampler(Array<const int32_t, 2> token_matrix, Array<const int32_t, 2> mask_matrix,
                           int32_t vocab_size, int threads)
    : token_ids(token_matrix),
      masks(mask_matrix),
      batch(token_matrix.data(), reinterpret_cast<const uint32_t*>(mask_matrix.data()),
            static_cast<int32_t>(token_matrix.shape(0)), static_cast<int32_t>(token_matrix.shape(1)), vocab_size,
            threads) {
    require(masks.shape(0) == token_ids.shape(0) && masks.shape(1) == static_cast<size_t>(num_mask_words(vocab_size)),
            "masks have another shape than the token matrix and the vocabulary need");
}

void BoundSampler::set_row(int32_t row, double temperature, double top_p, int32_t top_k, float min_p,
                           float presence_penalty, float frequency_penalty, float repetition_penalty, uint64_t seed,
                           uint64_t choice, Ids bias_ids, std::vector<float> biases, Ids allowed_ids,
                           std::vector<Ids> bad_words, Ids banned_ids, int32_t min_tokens, int32_t num_prompt_tokens,
                           int32_t num_logprobs, int32_t num_prompt_logprobs) {
    require(bias_ids.size() == biases.size(), "bias_ids and biases differ in length");
    RowSettings settings;
    settings.temperature = temperature;
    settings.top_p = top_p;
    settings.top_k = top_k;
    settings.min_p = min_p;
    settings.presence_penalty = presence_penalty;
    settings.frequency_penalty = frequency_penalty;
    settings.repetition_penalty = repetition_penalty;
    settings.seed = seed;
    settings.choice = choice;
    settings.bias_ids = std::move(bias_ids);
    settings.biases = std::move(biases);
    settings.allowed_ids = std::move(allowed_ids);
    settings.bad_words = std::move(bad_words);
    settings.banned_ids = std::move(banned_ids);
    settings.min_tokens = min_tokens;
    settings.num_prompt_tokens = num_prompt_tokens;
    settings.num_logprobs = num_logprobs;
    settings.num_prompt_logprobs = num_prompt_logprobs;
    batch.set_row(row, std::move(settings));
}

SampleCall BoundSampler::make_call(const float* logits, size_t n, const Array<const int32_t, 1>& rows,
                                   const Array<const int32_t, 1>& num_tokens, const Array<int32_t, 1>& chosen,
                                   const Array<bool, 1>& is_finite, const Array<float, 1>& logprobs,
                                   const Array<int32_t, 2>& top_ids, const Array<float, 2>& top_logprobs) const {
    require(rows.shape(0) == n && num_tokens.shape(0) == n, "logits, rows and num_tokens differ in length");
    require(chosen.shape(0) == n && is_finite.shape(0) == n && logprobs.shape(0) == n && top_ids.shape(0) == n &&
                top_logprobs.shape(0) == n && top_ids.shape(1) == top_logprobs.shape(1),
            "an output array has another shape than the input needs");
    return {logits,         rows.data(),    num_tokens.data(), static_cast<int32_t>(n), chosen.data(), is_finite.data(),
            logprobs.data(), top_ids.data(), top_logprobs.data(), static_cast<int32_t>(top_ids.shape(1))};
}

void BoundSampler::sample(Array<const float, 2> logits, Array<const int32_t, 1> rows,
                          Array<const int32_t, 1> num_tokens, Array<int32_t, 1> chosen, Array<bool, 1> is_finite,
                          Array<float, 1> logprobs, Array<int32_t, 2> top_ids, Array<float, 2> top_logprobs) {
    require(logits.shape(1) == static_cast<size_t>(batch.vocab_size()), "logits are not of the vocabulary's width");
    const SampleCall call = make_call(logits.data(), logits.shape(0), rows, num_tokens, chosen, is_finite, logprobs,
                                      top_ids, top_logprobs);
    const nb::gil_scoped_release no_gil;
    batch.sample(call);
}

}  // namespace headway

namespace {

using headway::Array;
using headway::BoundSampler;
using headway::Ids;

std::vector<std::string> isa_names() {
    std::vector<std::string> names;
    for (headway::Isa isa : headway::available_isas()) names.emplace_back(headway::isa_name(isa));
    return names;
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Headway's kernels: arrays in, arrays out.";
    // What an event loop holds at the end of the process is not freed, and that is no news.
    nb::set_leak_warnings(false);
    module.def("available_isas", &isa_names, "Instruction sets of this machine and build, the slowest first.");
    module.def(
        "chosen_isa", [] { return std::string(headway::isa_name(headway::choose_isa())); },
        "What HEADWAY_ISA names, else the fastest. Raises ValueError if it is not there.");
    module.def("philox4x64", &headway::philox4x64, "counter"_a, "key"_a, "Philox4x64-10 of one counter.");
    headway::bind_exec(module);
    headway::bind_bus_errors(module);
    headway::bind_writes(module);
    headway::bind_door(module);
    headway::bind_door_codecs(module);
    headway::bind_streams(module);
    nb::class_<BoundSampler>(module, "Sampler", "Samples batches of rows; see headway.engine.sampler.")
        .def(nb::init<Array<const int32_t, 2>, Array<const int32_t, 2>, int32_t, int>(), "token_ids"_a.noconvert(),
             "masks"_a.noconvert(), "vocab_size"_a, "threads"_a)
        .def_prop_ro("isa", [](const BoundSampler& self) { return std::string(headway::isa_name(self.batch.isa())); })
        .def_prop_ro("threads", [](const BoundSampler& self) { return self.batch.num_threads(); })
        .def("set_row", &BoundSampler::set_row, "row"_a, nb::kw_only(), "temperature"_a, "top_p"_a, "top_k"_a, "min_p"_a,
             "presence_penalty"_a, "frequency_penalty"_a, "repetition_penalty"_a, "seed"_a, "choice"_a, "bias_ids"_a,
             "biases"_a, "allowed_ids"_a = Ids(), "bad_words"_a = std::vector<Ids>(), "banned_ids"_a, "min_tokens"_a,
             "num_prompt_tokens"_a, "num_logprobs"_a, "num_prompt_logprobs"_a = -1)
        .def("set_masked", [](BoundSampler& self, int32_t row, bool is_masked) { self.batch.set_masked(row, is_masked); },
             "row"_a, "is_masked"_a)
        .def("set_given", [](BoundSampler& self, int32_t row, int32_t num_given) { self.batch.set_given(row, num_given); },
             "row"_a, "num_given"_a)
        .def("close_masks", [](BoundSampler& self) { self.batch.close_masks(); })
        .def("open_masks", [](BoundSampler& self) { self.batch.open_masks(); })
        .def("sample", &BoundSampler::sample, "logits"_a.noconvert(), "rows"_a.noconvert(), "num_tokens"_a.noconvert(),
             "chosen"_a.noconvert(), "is_finite"_a.noconvert(), "logprobs"_a.noconvert(), "top_ids"_a.noconvert(),
             "top_logprobs"_a.noconvert());
}
