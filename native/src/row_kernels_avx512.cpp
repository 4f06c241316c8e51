#define HEADWAY_ROW_KERNELS row_kernels_avx512
#include "row_kernels_impl.h"
