#define HEADWAY_ROW_KERNELS row_kernels_avx2
#include "row_kernels_impl.h"
