#define HEADWAY_EMULATE_AVX512
#include <immintrin.h>

#define exec_kernels_avx512 emulated_avx512
#include "exec/exec_kernels_avx512.cpp"
