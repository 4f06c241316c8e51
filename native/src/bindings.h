// What the files of bindings share.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "batch_sampler.h"

namespace headway {

template <typename T, size_t rank>
using Array = nanobind::ndarray<T, nanobind::ndim<rank>, nanobind::c_contig, nanobind::device::cpu>;
using Ids = std::vector<int32_t>;

inline void require(bool is_right, const char* message) {
    if (!is_right) throw std::invalid_argument(message);
}

// Lives as long as the object does.
inline std::string_view view_of(const nanobind::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// A BatchSampler, and the token matrix and masks that it reads.
struct BoundSampler {
    Array<const int32_t, 2> token_ids;
    Array<const int32_t, 2> masks;
    BatchSampler batch;

    BoundSampler(Array<const int32_t, 2> token_matrix, Array<const int32_t, 2> mask_matrix, int32_t vocab_size,
                 int threads);

    void set_row(int32_t row, double temperature, double top_p, int32_t top_k, float min_p, float presence_penalty,
                 float frequency_penalty, float repetition_penalty, uint64_t seed, uint64_t choice, Ids bias_ids,
                 std::vector<float> biases, Ids allowed_ids, std::vector<Ids> bad_words, Ids banned_ids,
                 int32_t min_tokens, int32_t num_prompt_tokens, int32_t num_logprobs, int32_t num_prompt_logprobs);
    void sample(Array<const float, 2> logits, Array<const int32_t, 1> rows, Array<const int32_t, 1> num_tokens,
                Array<int32_t, 1> chosen, Array<bool, 1> is_finite, Array<float, 1> logprobs, Array<int32_t, 2> top_ids,
                Array<float, 2> top_logprobs);
    // Throws std::invalid_argument where an array is not of n rows.
    SampleCall make_call(const float* logits, size_t n, const Array<const int32_t, 1>& rows,
                         const Array<const int32_t, 1>& num_tokens, const Array<int32_t, 1>& chosen,
                         const Array<bool, 1>& is_finite, const Array<float, 1>& logprobs,
                         const Array<int32_t, 2>& top_ids, const Array<float, 2>& top_logprobs) const;
};

void bind_exec(nanobind::module_& module);
void bind_matrix(nanobind::module_& module);
void bind_bus_errors(nanobind::module_& module);
void bind_streams(nanobind::module_& module);
void bind_writes(nanobind::module_& module);
void bind_door(nanobind::module_& module);
void bind_door_codecs(nanobind::module_& module);

}  // namespace headway
