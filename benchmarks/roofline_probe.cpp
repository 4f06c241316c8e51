// What this machine can do, one figure a call:  roofline_probe THREADS read BYTES | q4 | q8 | fma | bf16
//   read   GB/s of reading a buffer of so many bytes again and again, shared out over the threads
//   q4     GOPS (multiply and add: 2) of integer products in groups of 32 over operands in the cache, weights of 4 bits
//   q8     the same with weights of 8 bits
//   fma    GFLOPS of float32 fused multiply-adds in registers
//   bf16   GFLOPS of bfloat16 dot products in registers; 0 where the machine has none
// Each is the best of many short repetitions, so that what else runs disturbs little. Built with -O3 -march=native.
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

constexpr int num_repetitions = 40;

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
constexpr int lanes = 16, tile_rows = 6, tile_vectors = 2;
using Ints = __m512i;
using Floats = __m512;
Ints zero() { return _mm512_setzero_si512(); }
Floats zero_floats() { return _mm512_setzero_ps(); }
Ints load(const void* from) { return _mm512_loadu_si512(from); }
Floats load_floats(const float* from) { return _mm512_loadu_ps(from); }
Ints broadcast(int32_t value) { return _mm512_set1_epi32(value); }
Floats broadcast_float(float value) { return _mm512_set1_ps(value); }
Floats to_floats(Ints sums) { return _mm512_cvtepi32_ps(sums); }
Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
float sum_of(Floats values) { return _mm512_reduce_add_ps(values); }
Ints dot4(Ints sums, Ints b, Ints a) { return _mm512_dpbusd_epi32(sums, b, a); }
Ints dot8(Ints sums, Ints b, Ints a) { return _mm512_dpbusd_epi32(sums, b, a); }
Ints finish4(Ints sums) { return sums; }
Floats read_sum(const char* from, const char* end) {
    Ints sums[4] = {zero(), zero(), zero(), zero()};
    for (; from + 256 <= end; from += 256)
        for (int i = 0; i < 4; ++i) sums[i] = _mm512_xor_si512(sums[i], load(from + 64 * i));
    return to_floats(_mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3])));
}
#else
constexpr int lanes = 8, tile_rows = 2, tile_vectors = 2;
using Ints = __m256i;
using Floats = __m256;
Ints zero() { return _mm256_setzero_si256(); }
Floats zero_floats() { return _mm256_setzero_ps(); }
Ints load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
Floats load_floats(const float* from) { return _mm256_loadu_ps(from); }
Ints broadcast(int32_t value) { return _mm256_set1_epi32(value); }
Floats broadcast_float(float value) { return _mm256_set1_ps(value); }
Floats to_floats(Ints sums) { return _mm256_cvtepi32_ps(sums); }
Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
float sum_of(Floats values) {
    float parts[8];
    _mm256_storeu_ps(parts, values);
    float sum = 0;
    for (float part : parts) sum += part;
    return sum;
}
#if defined(__AVXVNNI__)
Ints dot4(Ints sums, Ints b, Ints a) { return _mm256_dpbusd_avx_epi32(sums, b, a); }
Ints dot8(Ints sums, Ints b, Ints a) { return _mm256_dpbusd_avx_epi32(sums, b, a); }
Ints finish4(Ints sums) { return sums; }
#else
// 8 sums of two products of at most 15 * 127 stay inside 16 bits, so 4-bit weights are widened once a group.
Ints dot4(Ints sums, Ints b, Ints a) { return _mm256_add_epi16(sums, _mm256_maddubs_epi16(b, a)); }
Ints finish4(Ints sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
Ints dot8(Ints sums, Ints b, Ints a) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(b, a), _mm256_set1_epi16(1)));
}
#endif
Floats read_sum(const char* from, const char* end) {
    Ints sums[4] = {zero(), zero(), zero(), zero()};
    for (; from + 128 <= end; from += 128)
        for (int i = 0; i < 4; ++i) sums[i] = _mm256_xor_si256(sums[i], load(from + 32 * i));
    return to_floats(_mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3])));
}
#endif

std::atomic<float> sink;
void keep(float value) { sink.store(value, std::memory_order_relaxed); }

// Runs part(thread) on all threads at once, many times; the fewest seconds that one round took.
double best_seconds(int num_threads, const std::function<void(int)>& part) {
    std::atomic<int> arrived{0};
    std::atomic<int> round{0};
    double best = 1e30;
    auto loop = [&](int thread) {
        for (int i = 0; i < num_repetitions; ++i) {
            if (arrived.fetch_add(1) + 1 == num_threads) {
                arrived = 0;
                round.store(i + 1);
            }
            while (round.load() <= i) std::this_thread::yield();
            double start = now();
            part(thread);
            double seconds = now() - start;
            // The slowest thread of a round counts.
            static std::atomic<double> slowest{0};
            double seen = slowest.load();
            while (seen < seconds && !slowest.compare_exchange_weak(seen, seconds)) {}
            if (arrived.fetch_add(1) + 1 == num_threads) {
                best = std::min(best, slowest.exchange(0));
                arrived = 0;
                round.store(-i - 1);
            }
            while (round.load() != -i - 1) std::this_thread::yield();
        }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) threads.emplace_back(loop, i);
    for (auto& thread : threads) thread.join();
    return best;
}

double measure_read(int num_threads, size_t bytes) {
    size_t share = bytes / num_threads / 4096 * 4096;
    char* buffer = static_cast<char*>(aligned_alloc(1 << 21, (bytes + (1 << 21)) >> 21 << 21));
    memset(buffer, 1, share * num_threads);
    double seconds = best_seconds(num_threads, [&](int thread) {
        const char* from = buffer + share * thread;
        keep(sum_of(read_sum(from, from + share)));
    });
    free(buffer);
    return share * num_threads / seconds / 1e9;
}

// Calls body(0), body(1), ... with constants, so that arrays indexed by them stay in registers.
template <int n, int first = 0>
[[gnu::always_inline]] inline void unrolled(auto&& body) {
    if constexpr (first < n) {
        body(std::integral_constant<int, first>{});
        unrolled<n, first + 1>(body);
    }
}

// A tile of rows by vectors over `groups` groups of 32: integer sums inside a group, then scales of both sides.
template <Ints (*dot)(Ints, Ints, Ints), Ints (*finish)(Ints)>
float multiply_tile(const int32_t* a, const uint8_t* b, const float* a_scales, const float* b_scales, int groups) {
    Floats totals[tile_rows * tile_vectors];
    unrolled<tile_rows * tile_vectors>([&](auto i) { totals[i] = zero_floats(); });
    for (int group = 0; group < groups; ++group) {
        Ints sums[tile_rows * tile_vectors];
        unrolled<tile_rows * tile_vectors>([&](auto i) { sums[i] = zero(); });
        unrolled<8>([&](auto i) {
            Ints weights[tile_vectors];
            unrolled<tile_vectors>([&](auto v) { weights[v] = load(b + ((group * 8 + i) * tile_vectors + v) * lanes * 4); });
            unrolled<tile_rows>([&](auto r) {
                Ints row = broadcast(a[(group * 8 + i) * tile_rows + r]);
                unrolled<tile_vectors>([&](auto v) {
                    sums[r * tile_vectors + v] = dot(sums[r * tile_vectors + v], weights[v], row);
                });
            });
        });
        unrolled<tile_rows * tile_vectors>([&](auto i) {
            Floats scale = multiply(load_floats(b_scales + (group * tile_vectors + i % tile_vectors) * lanes),
                                    broadcast_float(a_scales[group * tile_rows + i / tile_vectors]));
            totals[i] = fma(to_floats(finish(sums[i])), scale, totals[i]);
        });
    }
    float sum = 0;
    unrolled<tile_rows * tile_vectors>([&](auto i) { sum += sum_of(totals[i]); });
    return sum;
}

Ints unchanged(Ints sums) { return sums; }

template <Ints (*dot)(Ints, Ints, Ints), Ints (*finish)(Ints)>
double measure_groups(int num_threads) {
    constexpr int groups = 18, passes = 4000;
    double seconds = best_seconds(num_threads, [&](int) {
        std::vector<int32_t> a(groups * 8 * tile_rows, 0x01020304);
        std::vector<uint8_t> b(groups * 8 * tile_vectors * lanes * 4, 3);
        std::vector<float> a_scales(groups * tile_rows, 0.5f), b_scales(groups * tile_vectors * lanes, 0.5f);
        float sum = 0;
        for (int pass = 0; pass < passes; ++pass)
            sum += multiply_tile<dot, finish>(a.data(), b.data(), a_scales.data(), b_scales.data(), groups);
        keep(sum);
    });
    return 2.0 * num_threads * passes * groups * 32 * tile_rows * tile_vectors * lanes / seconds / 1e9;
}

double measure_fma(int num_threads) {
    constexpr int chains = 12, passes = 200000;
    double seconds = best_seconds(num_threads, [&](int) {
        Floats values[chains], factor = broadcast_float(0.999f);
        unrolled<chains>([&](auto i) { values[i] = broadcast_float(1.0f + i); });
        for (int pass = 0; pass < passes; ++pass) {
            unrolled<chains>([&](auto i) { values[i] = fma(values[i], factor, factor); });
        }
        float sum = 0;
        unrolled<chains>([&](auto i) { sum += sum_of(values[i]); });
        keep(sum);
    });
    return 2.0 * num_threads * passes * chains * lanes / seconds / 1e9;
}

#if defined(__AVX512BF16__)
double measure_bf16(int num_threads) {
    constexpr int chains = 12, passes = 200000;
    double seconds = best_seconds(num_threads, [&](int) {
        Floats values[chains];
        unrolled<chains>([&](auto i) { values[i] = broadcast_float(i); });
        __m512bh pair = (__m512bh)_mm512_set1_epi16(0x3c00);
        for (int pass = 0; pass < passes; ++pass) {
            unrolled<chains>([&](auto i) { values[i] = _mm512_dpbf16_ps(values[i], pair, pair); });
        }
        float sum = 0;
        unrolled<chains>([&](auto i) { sum += sum_of(values[i]); });
        keep(sum);
    });
    return 4.0 * num_threads * passes * chains * lanes / seconds / 1e9;
}
#else
double measure_bf16(int) { return 0; }
#endif

double measure(const std::string& what, int num_threads, size_t bytes) {
    if (what == "read" && bytes > 0) return measure_read(num_threads, bytes);
    if (what == "q4") return measure_groups<dot4, finish4>(num_threads);
    if (what == "q8") return measure_groups<dot8, unchanged>(num_threads);
    if (what == "fma") return measure_fma(num_threads);
    if (what == "bf16") return measure_bf16(num_threads);
    fprintf(stderr, "usage: roofline_probe THREADS read BYTES | q4 | q8 | fma | bf16\n");
    exit(2);
}

}  // namespace

int main(int count, char** arguments) {
    int num_threads = count > 1 ? atoi(arguments[1]) : 0;
    if (num_threads < 1 || num_threads > 1024) measure("", 0, 0);
    printf("%.2f\n", measure(count > 2 ? arguments[2] : "", num_threads, count > 3 ? strtoull(arguments[3], nullptr, 10) : 0));
}
