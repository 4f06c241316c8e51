// When a choice's tokens came, and the histogram of the gaps between them. One thread at a time. Knows no Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace headway {

// Counts of one histogram: of each bucket alone, the last one without a bound.
class HistogramCounts {
public:
    // Upper bounds, ascending. Throws std::invalid_argument where they are not.
    explicit HistogramCounts(std::vector<double> bounds) : bounds_(std::move(bounds)), in_bucket_(bounds_.size() + 1) {
        if (!std::is_sorted(bounds_.begin(), bounds_.end())) throw std::invalid_argument("bounds must ascend");
    }

    // The same value so many times. It belongs to the first bucket whose bound it does not exceed.
    void observe(double value, uint64_t count) {
        const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
        in_bucket_[static_cast<size_t>(bound - bounds_.begin())] += count;
        sum_ += value * static_cast<double>(count);
    }

    const std::vector<uint64_t>& in_bucket() const { return in_bucket_; }
    double sum() const { return sum_; }

private:
    std::vector<double> bounds_;
    std::vector<uint64_t> in_bucket_;
    double sum_ = 0;
};

struct TokenTimes {
    double first_s, last_s;
    uint64_t num_tokens;

    // More tokens at once share the time since those before them. Throws std::invalid_argument for none.
    void add(uint64_t num_new, double now_s, HistogramCounts& gaps) {
        if (num_new == 0) throw std::invalid_argument("no tokens have no time");
        gaps.observe((now_s - last_s) / static_cast<double>(num_new), num_new);
        last_s = now_s;
        num_tokens += num_new;
    }
};

}  // namespace headway
