#include "simd_plain.h"

#include "vector_math.h"
#include "product_plain.h"

#define HEADWAY_EXEC_KERNELS exec_kernels_plain
#define HEADWAY_EXEC_NAME "plain"
#include "exec_kernels_impl.h"
