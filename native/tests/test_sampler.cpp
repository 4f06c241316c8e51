// The sampler's loops, its selection, the noise, the thread pool and a batch.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "batch_sampler.h"
#include "check.h"
#include "philox.h"
#if defined(HEADWAY_EMULATE)
#include "emulation/tables.h"
#endif

namespace {

using namespace headway;
using headway_tests::same_bits;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
enum class Kind { normal, equal, few_values, with_minus_infinity, wide };
constexpr Kind kinds[] = {Kind::normal, Kind::equal, Kind::few_values, Kind::with_minus_infinity, Kind::wide};

std::vector<float> make_row(Kind kind, int32_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, kind == Kind::wide ? 1e30f : 4.0f);
    std::vector<float> row(n);
    for (float& value : row) {
        value = kind == Kind::equal ? 1.5f : normal(random);
        if (kind == Kind::few_values) value = std::round(value / 4.0f);
        if (kind == Kind::with_minus_infinity && random() % 3 == 0) value = -infinity;
    }
    if (kind == Kind::with_minus_infinity) row[n / 2] = 0.25f;
    return row;
}

std::vector<int32_t> order_of(const std::vector<float>& row) {
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    return order;
}

constexpr int32_t sizes[] = {1, 2, 15, 16, 17, 31, 255, 256, 257, 1000, 4095, 4097, 9001};

void test_peak(const RowKernels& kernels, const std::vector<float>& row) {
    const auto n = static_cast<int32_t>(row.size());
    const Peak peak = kernels.find_peak(row.data(), n);
    const int32_t right = order_of(row)[0];
    CHECK(peak.index == right && peak.value == row[right], "n %d: %d, not %d", n, peak.index, right);
    for (int32_t at : {0, n / 2, n - 1}) {
        for (float bad : {not_a_number, -not_a_number}) {
            std::vector<float> broken = row;
            broken[at] = bad;
            CHECK(kernels.find_peak(broken.data(), n).index == -1, "NaN at %d of %d is not seen", at, n);
        }
        std::vector<float> broken = row;
        broken[at] = infinity;
        CHECK(kernels.find_peak(broken.data(), n).value == infinity, "infinity at %d of %d is not seen", at, n);
    }
}

void test_exponentials(const RowKernels& kernels, const std::vector<float>& row) {
    const auto n = static_cast<int32_t>(row.size());
    const float peak = *std::max_element(row.begin(), row.end());
    for (float scale : {1.0f, 1.25f, 1e5f}) {
        std::vector<float> made(n), plain(n);
        std::vector<double> sums((n + sum_block - 1) / sum_block), plain_sums(sums);
        const double total = kernels.exponentials(row.data(), n, peak, scale, made.data(), sums.data());
        const double plain_total =
            row_kernels_plain.exponentials(row.data(), n, peak, scale, plain.data(), plain_sums.data());
        CHECK(same_bits(made, plain) && total == plain_total && sums == plain_sums, "n %d: other bits than plain", n);
        double right_total = 0.0;
        for (int32_t i = 0; i < n; ++i) {
            const float argument = (row[i] - peak) * scale;
            const double right = std::exp(static_cast<double>(argument));
            right_total += right;
            const double slack = 2e-7 * (1.0 + std::abs(static_cast<double>(argument))) * right;
            const bool is_far = argument < -86.9f && made[i] == 0.0f;
            CHECK(is_far || std::abs(made[i] - right) <= slack, "exp(%g) is %g", argument, made[i]);
        }
        CHECK(std::abs(total - right_total) <= 1e-6 * right_total, "sum %g, not %g", total, right_total);
        CHECK(total == kernels.exponentials(row.data(), n, peak, scale, nullptr, nullptr), "the sum alone differs");
    }
}

void test_blocks_and_collecting(const RowKernels& kernels, const std::vector<float>& row) {
    const auto n = static_cast<int32_t>(row.size());
    for (int32_t block : {16, 64, 1024}) {
        std::vector<float> maxima((n + block - 1) / block);
        kernels.block_maxima(row.data(), n, block, maxima.data());
        for (size_t b = 0; b < maxima.size(); ++b) {
            const auto start = row.begin() + static_cast<int32_t>(b) * block;
            const float right = *std::max_element(start, row.end() - start > block ? start + block : row.end());
            CHECK(maxima[b] == right, "block %zu of %d: %g, not %g", b, block, maxima[b], right);
        }
    }
    for (float bound : {-infinity, row[0], row[n / 2], infinity}) {
        std::vector<int32_t> right, ids(n);
        for (int32_t i = 0; i < n; ++i) {
            if (row[i] >= bound) right.push_back(7 + i);
        }
        ids.resize(kernels.collect_at_least(row.data(), n, bound, 7, ids.data()));
        CHECK(ids == right, "n %d, bound %g: %zu ids, not %zu", n, bound, ids.size(), right.size());
    }
}

void test_masked(const RowKernels& kernels, const std::vector<float>& row) {
    const auto n = static_cast<int32_t>(row.size());
    std::mt19937 random(static_cast<uint32_t>(n));
    std::vector<uint32_t> mask(num_mask_words(n));
    for (uint32_t& word : mask) word = static_cast<uint32_t>(random());
    std::vector<float> right(row), kept(n, 7.0f);
    for (int32_t i = 0; i < n; ++i) {
        if ((mask[i / 32] >> (i % 32) & 1u) == 0) right[i] = -infinity;
    }
    kernels.copy_masked(row.data(), mask.data(), n, kept.data());
    CHECK(same_bits(kept, right), "n %d: another row than the mask leaves", n);
}

void test_largest(const RowKernels& kernels, const std::vector<float>& row) {
    const auto n = static_cast<int32_t>(row.size());
    const std::vector<int32_t> order = order_of(row);
    Scratch scratch(n);
    for (int32_t k : {1, 2, 20, n / 2, n - 1, n, n + 5}) {
        if (k < 1) continue;
        const int32_t found = select_largest(kernels, row.data(), n, k, scratch);
        CHECK(found == std::min(k, n), "%d of %d: %d found", k, n, found);
        std::vector<int32_t> ids(scratch.ids.begin(), scratch.ids.begin() + found);
        std::vector<int32_t> right(order.begin(), order.begin() + found);
        std::sort(ids.begin(), ids.end());
        std::sort(right.begin(), right.end());
        CHECK(ids == right, "%d of %d: other ids", k, n);
    }
}

void test_mass_threshold(const RowKernels& kernels, const std::vector<float>& row) {
    const auto n = static_cast<int32_t>(row.size());
    Scratch scratch(n);
    const float peak = *std::max_element(row.begin(), row.end());
    kernels.exponentials(row.data(), n, peak, 1.0f, scratch.values.data(), nullptr);
    const std::vector<float> weights = scratch.values;
    const std::vector<int32_t> order = order_of(weights);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double share : {0.0, 1e-9, 0.1, 0.5, 0.95, 0.999999, 1.0, 1.5}) {
        const double target = share * total;
        const Threshold threshold = find_mass_threshold(n, target, scratch);
        double mass = 0.0, mass_before_last = 0.0;
        int32_t count = 0, num_ties = threshold.num_ties;
        float smallest = infinity;
        for (int32_t i : order) {
            if (weights[i] < threshold.weight || (weights[i] == threshold.weight && num_ties-- <= 0)) break;
            mass_before_last = mass;
            mass += weights[i];
            smallest = weights[i];
            ++count;
        }
        const double slack = 1e-9 * total;
        CHECK(count >= 1, "share %g: nothing stays", share);
        CHECK(std::abs(mass - threshold.mass) <= slack, "share %g: mass %g, not %g", share, threshold.mass, mass);
        CHECK(count == 1 || mass_before_last < target + slack, "share %g: %d are too many", share, count);
        const bool all_stay = count == n || smallest == 0.0f;
        CHECK(all_stay || mass >= target - slack, "share %g: %d are too few", share, count);
    }
}

std::vector<const RowKernels*> row_tables() {
    std::vector<const RowKernels*> tables;
    for (Isa isa : available_isas()) tables.push_back(&row_kernels(isa));
#if defined(HEADWAY_EMULATE)
    for (const RowKernels* emulated : headway_tests::emulated_row_tables()) tables.push_back(emulated);
#endif
    return tables;
}

void test_kernels() {
    for (const RowKernels* table : row_tables()) {
        const RowKernels& kernels = *table;
        for (Kind kind : kinds) {
            for (int32_t n : sizes) {
                const std::vector<float> row = make_row(kind, n, static_cast<uint32_t>(n));
                test_peak(kernels, row);
                test_exponentials(kernels, row);
                test_blocks_and_collecting(kernels, row);
                test_masked(kernels, row);
                test_largest(kernels, row);
                test_mass_threshold(kernels, row);
            }
        }
        const std::vector<float> nothing(100, -infinity);
        CHECK(kernels.find_peak(nothing.data(), 100).value == -infinity, "all -infinity");
    }
}

void test_philox() {
    // Random123's known answers (kat_vectors) for philox4x64, 10 rounds.
    constexpr uint64_t ones = ~uint64_t{0};
    const std::array<uint64_t, 4> of_zeros{0x16554d9eca36314cu, 0xdb20fe9d672d0fdcu, 0xd7e772cee186176bu,
                                           0x7e68b68aec7ba23bu};
    const std::array<uint64_t, 4> of_ones{0x87b092c3013fe90bu, 0x438c3c67be8d0224u, 0x9cc7d7c69cd777b6u,
                                          0xa09caebf594f0ba0u};
    CHECK(philox4x64({0, 0, 0, 0}, {0, 0}) == of_zeros, "zeros");
    CHECK(philox4x64({ones, ones, ones, ones}, {ones, ones}) == of_ones, "ones");
    for (uint64_t position = 0; position < 1000; ++position) {
        const double noise = uniform_noise(position * position, 1, position);
        CHECK(noise >= 0.0 && noise < 1.0, "%g is outside [0, 1)", noise);
    }
}

void test_thread_pool() {
    for (int num_threads : {1, 2, 5}) {
        ThreadPool pool(num_threads);
        for (int32_t num_items = 0; num_items < 200; ++num_items) {
            std::vector<std::atomic<int>> taken(num_items);
            pool.run(num_items, [&](int32_t item, int thread) {
                CHECK(thread >= 0 && thread < pool.num_threads(), "thread %d", thread);
                taken[item].fetch_add(1);
            });
            for (const auto& count : taken) CHECK(count.load() == 1, "an item was done %d times", count.load());
        }
    }
}

struct Outputs {
    explicit Outputs(int32_t n, int32_t k) : token_ids(n), is_finite(n), logprobs(n), top_ids(n * k), top_logprobs(n * k) {}
    std::vector<int32_t> token_ids;
    std::vector<char> is_finite;
    std::vector<float> logprobs;
    std::vector<int32_t> top_ids;
    std::vector<float> top_logprobs;
};

// Sixteen ways to ask, over a vocabulary that is no multiple of 16.
RowSettings make_settings(int32_t row) {
    RowSettings settings;
    settings.temperature = row % 4 == 0 ? 0.0 : 0.7;
    settings.top_p = row % 3 == 0 ? 0.9 : 1.0;
    settings.top_k = row % 5 == 0 ? 40 : 0;
    settings.min_p = row % 7 == 0 ? 0.02f : 0.0f;
    settings.repetition_penalty = row % 2 == 0 ? 1.2f : 1.0f;
    settings.frequency_penalty = row % 6 == 0 ? 0.5f : 0.0f;
    settings.seed = static_cast<uint64_t>(row);
    settings.bias_ids = {3, -1, 1 << 30};
    settings.biases = {5.0f, 1.0f, 1.0f};
    settings.banned_ids = {0, -7, 1 << 30};
    settings.min_tokens = 100;
    settings.num_prompt_tokens = 5;
    settings.num_logprobs = row % 8 - 1;
    settings.num_prompt_logprobs = row == 46 ? 3 : -1;
    settings.bad_words = {{}, {7}, {1 << 30}, {2, 9}, {-50, -50, -50, 3}};
    if (row % 9 == 1) settings.allowed_ids = {1, 2, 3, -4, 1 << 30};
    return settings;
}

void test_batch() {
    constexpr int32_t num_rows = 48, vocab_size = 5003, max_len = 64, num_top = 6;
    std::vector<int32_t> matrix(num_rows * max_len);
    for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<int32_t>(i * 7919 % (vocab_size + 100)) - 50;
    std::vector<float> logits;
    for (int32_t r = 0; r < num_rows; ++r) {
        const std::vector<float> row = make_row(kinds[r % 4], vocab_size, static_cast<uint32_t>(r));
        logits.insert(logits.end(), row.begin(), row.end());
    }
    logits[3 * vocab_size + 17] = not_a_number;
    std::vector<int32_t> rows(num_rows), num_tokens(num_rows);
    for (int32_t r = 0; r < num_rows; ++r) rows[r] = num_rows - 1 - r, num_tokens[r] = r % (max_len + 1);
    std::vector<uint32_t> masks(static_cast<size_t>(num_rows) * num_mask_words(vocab_size));
    std::vector<Outputs> all;
    for (int num_threads : {1, 2, 4}) {
        BatchSampler sampler(matrix.data(), masks.data(), num_rows, max_len, vocab_size, num_threads);
        for (int32_t r = 0; r < num_rows; ++r) sampler.set_row(r, make_settings(r));
        for (int32_t r = 5; r < num_rows; r += 10) sampler.set_masked(r, true);
        sampler.set_given(40, 10);
        sampler.close_masks();
        std::thread writer([&] {
            for (int32_t id = 100; id < 200; ++id) {
                for (int32_t r = 0; r < num_rows; ++r) masks[r * num_mask_words(vocab_size) + id / 32] |= 1u << (id % 32);
            }
            sampler.open_masks();
        });
        Outputs& out = all.emplace_back(num_rows, num_top);
        const SampleCall call{logits.data(), rows.data(), num_tokens.data(), num_rows, out.token_ids.data(),
                              reinterpret_cast<bool*>(out.is_finite.data()), out.logprobs.data(), out.top_ids.data(),
                              out.top_logprobs.data(), num_top};
        for (int repeat = 0; repeat < 5; ++repeat) sampler.sample(call);
        writer.join();
        SampleCall wrong = call;
        const int32_t bad[] = {num_rows, -1, 0};
        for (int which = 0; which < 3; ++which) {
            std::vector<int32_t> broken = which < 2 ? rows : num_tokens;
            broken[5] = which < 2 ? bad[which] : max_len + 1;
            (which < 2 ? wrong.rows : wrong.num_tokens) = broken.data();
            bool is_refused = false;
            try {
                sampler.sample(wrong);
            } catch (const std::invalid_argument&) {
                is_refused = true;
            }
            CHECK(is_refused, "an index out of range is taken");
            wrong = call;
        }
    }
    CHECK(all[0].is_finite[3] == 0 && all[0].is_finite[4] == 1, "finite flags");
    CHECK(all[0].token_ids[1] == matrix[46 * max_len + 1] && all[0].logprobs[1] < 0.0f, "a prompt's own token");
    CHECK(all[0].token_ids[7] == matrix[40 * max_len + 7], "a given token");
    for (int32_t r = 5; r < num_rows; r += 10) {
        const int32_t id = all[0].token_ids[num_rows - 1 - r];
        CHECK(id >= 100 && id < 200, "masked row %d: token %d", r, id);
    }
    for (int32_t r = 0; r < num_rows; ++r) {
        const int32_t id = all[0].token_ids[r];
        CHECK(id >= 0 && id < vocab_size && (r == 3 || id != 0), "row %d: token %d", r, id);
    }
    for (size_t i = 1; i < all.size(); ++i) {
        CHECK(all[i].token_ids == all[0].token_ids && all[i].top_ids == all[0].top_ids, "threads change tokens");
        CHECK(same_bits(all[i].logprobs, all[0].logprobs), "threads change logprobs");
        CHECK(same_bits(all[i].top_logprobs, all[0].top_logprobs), "threads change the top");
    }
}

}  // namespace

void headway_tests::test_sampler() {
    test_kernels();
    test_philox();
    test_thread_pool();
    test_batch();
}
