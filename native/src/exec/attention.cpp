#include "exec_kernels.h"

namespace headway {

int64_t attention_scratch_floats(const AttentionCall&) { return 0; }

}  // namespace headway
