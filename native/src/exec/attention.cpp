#include "attention_scratch.h"

namespace headway {

int64_t attention_scratch_floats(const AttentionCall& call) { return divide_scratch(call, max_attend_tokens).size; }

}  // namespace headway
