// The threads of a step: every item once, stages in order, whatever the number of threads; and nothing left behind for
// the next call.

#include <atomic>
#include <vector>

#include "check.h"
#include "exec/workers.h"

namespace {

// Stages of 0, 1 and many items; each item checks that all of the stages before are done.
class CountingJob final : public headway::Job {
public:
    CountingJob(int32_t num_stages, int num_threads) : num_threads_(num_threads), counts_(num_stages) {
        for (int32_t stage = 0; stage < num_stages; ++stage) {
            counts_[stage] = std::vector<std::atomic<int32_t>>(items_of(stage));
        }
    }

    int32_t num_stages() const override { return static_cast<int32_t>(counts_.size()); }

    int32_t begin(int32_t stage) override {
        expected_ += items_of(stage - 1);
        if (num_done_.load() != expected_ || stage != last_begun_ + 1) ++num_faults_;
        last_begun_ = stage;
        return items_of(stage);
    }

    void run(int32_t stage, int32_t item, int thread) override {
        if (stage != last_begun_ || thread < 0 || thread >= num_threads_) ++num_faults_;
        ++counts_[stage][item];
        ++num_done_;
    }

    int32_t num_faults() const {
        int32_t faults = num_faults_.load();
        for (const auto& stage : counts_) {
            for (const auto& count : stage) faults += count.load() != 1;
        }
        return faults;
    }

private:
    static int32_t items_of(int32_t stage) {
        constexpr int32_t sizes[] = {5, 1, 0, 33, 2, 1, 1, 200};
        return stage < 0 ? 0 : sizes[stage % 8];
    }

    int num_threads_;
    std::vector<std::vector<std::atomic<int32_t>>> counts_;
    std::atomic<int32_t> num_done_{0};
    std::atomic<int32_t> num_faults_{0};
    int32_t expected_ = 0;     // written by who begins a stage, when no item is running
    int32_t last_begun_ = -1;
};

}  // namespace

void headway_tests::test_workers() {
    for (int num_threads : {1, 2, 3, 8}) {
        headway::Workers workers(num_threads);
        CHECK(workers.num_threads() == num_threads, "%d threads", workers.num_threads());
        for (int32_t num_stages : {0, 1, 2, 40, 300}) {
            for (int repeat = 0; repeat < 20; ++repeat) {
                CountingJob job(num_stages, num_threads);
                workers.run(job);
                CHECK(job.num_faults() == 0, "%d faults: %d threads, %d stages", job.num_faults(), num_threads,
                      num_stages);
            }
        }
    }
}
