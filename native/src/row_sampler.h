// One row of logits to one token.
#pragma once

#include <cstdint>
#include <vector>

#include "row_kernels.h"
#include "selection.h"

namespace headway {

// How one sequence's tokens are chosen. Set once, when the sequence takes its row.
struct RowSettings {
    double temperature = 0.0;  // under min_temperature: greedy
    double top_p = 1.0;        // 1: off
    int32_t top_k = 0;         // 0: off
    float min_p = 0.0f;        // 0: off
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    float repetition_penalty = 1.0f;
    uint64_t seed = 0;
    uint64_t choice = 0;
    std::vector<int32_t> bias_ids;
    std::vector<float> biases;         // one for each of bias_ids
    std::vector<int32_t> allowed_ids;  // none: all; else no other token is chosen
    std::vector<std::vector<int32_t>> bad_words;  // the last token of each is not chosen behind the others of it
    std::vector<int32_t> banned_ids;   // never chosen before min_tokens
    int32_t min_tokens = 0;            // output tokens
    int32_t num_prompt_tokens = 0;
    int32_t num_logprobs = -1;         // -1: none asked for
    int32_t num_prompt_logprobs = -1;  // of the prompt's own tokens; -1: none asked for
};

// Below it the temperature is taken as 0, as vLLM does: what is divided by less is all or nothing.
constexpr double min_temperature = 1e-5;

// One row's task. Ids outside [0, vocab_size) are ignored wherever they stand.
struct Row {
    const RowSettings& settings;
    const float* logits;  // [vocab_size]
    int32_t vocab_size;
    const int32_t* token_ids;  // [num_tokens], prompt and output so far
    int32_t num_tokens;
    int32_t num_given;     // tokens of the row that are not to be chosen, over those that num_tokens counts
    const uint32_t* mask;  // [ceil(vocab_size / 32)], bit i % 32 of word i / 32: token i may be chosen; null: any may
    int32_t* top_ids;     // [num_top] as many as the settings ask for, the rest -1
    float* top_logprobs;  // [num_top], the rest -infinity
    int32_t num_top;
};

struct Chosen {
    int32_t token_id;
    bool is_finite;  // false: the logits have NaN or +infinity, or nothing but -infinity is left; token_id is 0
    float logprob;   // NaN if none was asked for
};

// In order (vLLM's):
//   1. is the row finite?
//   2. to -infinity: tokens that the mask or the settings do not allow; + logit bias; to -infinity: end tokens before min_tokens, last tokens of
//      bad words behind an output that ends with their others; repetition, frequency, presence penalty
//   3. greedy: the largest, the lowest id of equals
//   4. else / temperature, min_p, top_k, top_p, then the inverse of the distribution function, in ascending order of
//      ids, at the noise of (seed, choice, output position)
//   5. log-probabilities: log-softmax of the logits as they came, float32
// Where the row's next token is given already, nothing is drawn: it is what was "chosen", 1 and 5 are its. Given are
// the tokens of a prompt whose log-probabilities are asked for, and those before num_given.
bool is_given(const Row& row);
Chosen sample_row(const RowKernels& kernels, const Row& row, Scratch& scratch);

}  // namespace headway
