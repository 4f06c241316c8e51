// The table of an exec_kernels_*.cpp, which includes its simd_*.h and product_*.h before and names the table in
// HEADWAY_EXEC_KERNELS. Everything else here is in an unnamed namespace and no C++ library header is included: see
// CMakeLists.txt.

#include <stdint.h>

#include "exec_kernels.h"

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
    .rms_norm = nullptr,
    .layer_norm = nullptr,
    .activation = nullptr,
    .gate = nullptr,
    .multiply = nullptr,
    .add = nullptr,
    .scale = nullptr,
    .soft_cap = nullptr,
    .rope = nullptr,
    .write_kv = nullptr,
    .attend = nullptr,
    .attend_chunk = nullptr,
    .join_chunks = nullptr,
    .attend_tokens = 32,
    .is_finite = nullptr,
};

}  // namespace headway
