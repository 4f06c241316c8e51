// What the files of the standalone test share: CHECK, the tables to test, and the subjects.
#pragma once

#include <cstdio>
#include <cstring>
#include <vector>

#include "exec/exec_kernels.h"

namespace headway_tests {

extern int failures;

// Every table that runs on this machine, and where the build has them the emulated ones of other machines.
const std::vector<const headway::ExecKernels*>& exec_tables();

// One a file.
void test_sampler();
void test_layers();
void test_attention();
void test_products();
void test_workers();
void test_stream();
void test_door();

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace headway_tests

#define CHECK(condition, ...)                                             \
    do {                                                                  \
        if (!(condition)) {                                               \
            ++headway_tests::failures;                                    \
            std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);   \
            std::printf(__VA_ARGS__);                                     \
            std::printf("\n");                                            \
        }                                                                 \
    } while (false)
