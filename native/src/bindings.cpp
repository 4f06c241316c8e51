// headway._native: what Python sees of the kernels. Checks shapes; the types are checked by the signatures.

#include <stdexcept>
#include <utility>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "batch_sampler.h"
#include "philox.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using headway::BatchSampler;

template <typename T, size_t rank>
using Array = nb::ndarray<T, nb::ndim<rank>, nb::c_contig, nb::device::cpu>;
using Ids = std::vector<int32_t>;

void require(bool is_right, const char* message) {
    if (!is_right) throw std::invalid_argument(message);
}

// A BatchSampler and the token matrix that it reads.
struct Sampler {
    Array<const int32_t, 2> token_ids;
    BatchSampler batch;

    Sampler(Array<const int32_t, 2> matrix, int32_t vocab_size, int threads)
        : token_ids(matrix),
          batch(matrix.data(), static_cast<int32_t>(matrix.shape(0)), static_cast<int32_t>(matrix.shape(1)), vocab_size,
                threads) {}

    void set_row(int32_t row, double temperature, double top_p, int32_t top_k, float min_p, float presence_penalty,
                 float frequency_penalty, float repetition_penalty, uint64_t seed, uint64_t choice, Ids bias_ids,
                 std::vector<float> biases, Ids banned_ids, int32_t min_tokens, int32_t num_prompt_tokens,
                 int32_t num_logprobs) {
        require(bias_ids.size() == biases.size(), "bias_ids and biases differ in length");
        headway::RowSettings settings;
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
        settings.banned_ids = std::move(banned_ids);
        settings.min_tokens = min_tokens;
        settings.num_prompt_tokens = num_prompt_tokens;
        settings.num_logprobs = num_logprobs;
        batch.set_row(row, std::move(settings));
    }

    void sample(Array<const float, 2> logits, Array<const int32_t, 1> rows, Array<const int32_t, 1> num_tokens,
                Array<int32_t, 1> chosen, Array<bool, 1> is_finite, Array<float, 1> logprobs, Array<int32_t, 2> top_ids,
                Array<float, 2> top_logprobs) {
        const size_t n = rows.shape(0);
        require(logits.shape(1) == static_cast<size_t>(batch.vocab_size()), "logits are not of the vocabulary's width");
        require(logits.shape(0) == n && num_tokens.shape(0) == n, "logits, rows and num_tokens differ in length");
        require(chosen.shape(0) == n && is_finite.shape(0) == n && logprobs.shape(0) == n && top_ids.shape(0) == n &&
                    top_logprobs.shape(0) == n && top_ids.shape(1) == top_logprobs.shape(1),
                "an output array has another shape than the input needs");
        const headway::SampleCall call{logits.data(),   rows.data(),      num_tokens.data(), static_cast<int32_t>(n),
                                       chosen.data(),   is_finite.data(), logprobs.data(),   top_ids.data(),
                                       top_logprobs.data(), static_cast<int32_t>(top_ids.shape(1))};
        const nb::gil_scoped_release no_gil;
        batch.sample(call);
    }
};

std::vector<std::string> isa_names() {
    std::vector<std::string> names;
    for (headway::Isa isa : headway::available_isas()) names.emplace_back(headway::isa_name(isa));
    return names;
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Headway's kernels: arrays in, arrays out.";
    module.def("available_isas", &isa_names, "Instruction sets of this machine and build, the slowest first.");
    module.def(
        "chosen_isa", [] { return std::string(headway::isa_name(headway::choose_isa())); },
        "What HEADWAY_ISA names, else the fastest. Raises ValueError if it is not there.");
    module.def("philox4x64", &headway::philox4x64, "counter"_a, "key"_a, "Philox4x64-10 of one counter.");
    nb::class_<Sampler>(module, "Sampler", "Samples batches of rows; see headway.engine.sampler.")
        .def(nb::init<Array<const int32_t, 2>, int32_t, int>(), "token_ids"_a.noconvert(), "vocab_size"_a, "threads"_a)
        .def_prop_ro("isa", [](const Sampler& self) { return std::string(headway::isa_name(self.batch.isa())); })
        .def_prop_ro("threads", [](const Sampler& self) { return self.batch.num_threads(); })
        .def("set_row", &Sampler::set_row, "row"_a, nb::kw_only(), "temperature"_a, "top_p"_a, "top_k"_a, "min_p"_a,
             "presence_penalty"_a, "frequency_penalty"_a, "repetition_penalty"_a, "seed"_a, "choice"_a, "bias_ids"_a,
             "biases"_a, "banned_ids"_a, "min_tokens"_a, "num_prompt_tokens"_a, "num_logprobs"_a)
        .def("sample", &Sampler::sample, "logits"_a.noconvert(), "rows"_a.noconvert(), "num_tokens"_a.noconvert(),
             "chosen"_a.noconvert(), "is_finite"_a.noconvert(), "logprobs"_a.noconvert(), "top_ids"_a.noconvert(),
             "top_logprobs"_a.noconvert());
}
