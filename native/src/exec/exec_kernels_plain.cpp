#include "simd_plain.h"

#include "product_pending.h"

#define HEADWAY_EXEC_KERNELS exec_kernels_plain
#define HEADWAY_EXEC_NAME "plain"
#include "exec_kernels_impl.h"
