#define HEADWAY_EMULATE_AVXVNNI
#include <immintrin.h>

#define exec_kernels_avx2_vnni emulated_avx2_vnni
#include "exec/exec_kernels_avx2_vnni.cpp"
