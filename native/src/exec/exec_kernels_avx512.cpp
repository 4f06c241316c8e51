#include "simd_avx512.h"

#include "vector_math.h"
#include "product_avx512.h"

#define HEADWAY_EXEC_KERNELS exec_kernels_avx512
#define HEADWAY_EXEC_NAME "avx512"
#include "exec_kernels_impl.h"
