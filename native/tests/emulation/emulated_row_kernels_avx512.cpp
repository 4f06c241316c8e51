#define HEADWAY_EMULATE_AVX512
#include <immintrin.h>

#define __AVX512F__ 1
#define row_kernels_avx512 emulated_row_kernels_avx512
#include "row_kernels_avx512.cpp"
