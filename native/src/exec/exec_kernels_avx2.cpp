#include "simd_avx2.h"

#include "product_pending.h"

#define HEADWAY_EXEC_KERNELS exec_kernels_avx2
#define HEADWAY_EXEC_NAME "avx2"
#include "exec_kernels_impl.h"
