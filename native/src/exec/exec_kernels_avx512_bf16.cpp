#define HEADWAY_AVX512_BF16
#include "simd_avx512.h"

#include "vector_math.h"
#include "product_avx512.h"

#define HEADWAY_EXEC_KERNELS exec_kernels_avx512_bf16
#define HEADWAY_EXEC_NAME "avx512_bf16"
#include "exec_kernels_impl.h"
