#include "simd_avx512.h"

#include "product_pending.h"

#define HEADWAY_EXEC_KERNELS exec_kernels_avx512_bf16
#define HEADWAY_EXEC_NAME "avx512_bf16"
#include "exec_kernels_impl.h"
