#define HEADWAY_EMULATE_AVX512
#include <immintrin.h>

#define exec_kernels_avx512_bf16 emulated_avx512_bf16
#include "exec/exec_kernels_avx512_bf16.cpp"
