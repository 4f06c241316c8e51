#define HEADWAY_ROW_KERNELS row_kernels_plain
#include "row_kernels_impl.h"
