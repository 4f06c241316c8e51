// The table of an exec_kernels_*.cpp, which includes its simd_*.h, vector_math.h and product_*.h before and names the
// table in HEADWAY_EXEC_KERNELS. Everything else here is in an unnamed namespace and no C++ library header is included:
// see CMakeLists.txt.

#include <stdint.h>

#include "exec_kernels.h"
// In this order: each uses those before it.
#include "norm_impl.h"
#include "elementwise_impl.h"
#include "rope_impl.h"
#include "kv_impl.h"
#include "attention_tile_impl.h"
#include "attention_cache_impl.h"
#include "attention_impl.h"
#include "attention_direct_impl.h"
#include "attention_join_impl.h"

namespace headway {

extern const ExecKernels HEADWAY_EXEC_KERNELS;
const ExecKernels HEADWAY_EXEC_KERNELS = {
    .name = HEADWAY_EXEC_NAME,
    .row_tile = row_tile,
    .multiplies_bf16 = multiplies_bf16,
    .quantise_rows = quantise_rows,
    .pack_rows = pack_rows,
    .product = product,
    .read_row = read_row,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .activation = activation,
    .gate = gate,
    .multiply = multiply,
    .add = add_vectors,
    .scale = scale_vector,
    .soft_cap = soft_cap,
    .rope = rope,
    .write_kv = write_kv,
    .attend = attend,
    .attend_chunk = attend_chunk,
    .join_chunks = join_chunks,
    .attend_tokens = max_attend_tokens,
    .is_finite = is_finite,
};

}  // namespace headway
