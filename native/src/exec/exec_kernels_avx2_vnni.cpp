#include "simd_avx2.h"

#include "vector_math.h"
#include "product_avx2.h"

#define HEADWAY_EXEC_KERNELS exec_kernels_avx2_vnni
#define HEADWAY_EXEC_NAME "avx2_vnni"
#include "exec_kernels_impl.h"
