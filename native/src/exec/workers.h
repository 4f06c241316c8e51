// The threads of a step. All of them go through its stages in order; the items of a stage are claimed one by one, and the
// thread that finishes the last item of a stage opens the next. A thread that gets no core holds nobody up: only items
// are waited for, never threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace headway {

// What is run: stages in order, each of some items. Nothing throws.
class Job {
public:
    virtual ~Job() = default;
    virtual int32_t num_stages() const = 0;
    // Called by one thread when all stages before are done. How many items the stage has: none are skipped.
    virtual int32_t begin(int32_t stage) = 0;
    // One item, by any thread, beside other items of the stage.
    virtual void run(int32_t stage, int32_t item, int thread) = 0;
};

class Workers {
public:
    // num_threads counts the caller's own: 1 starts none. Threads that the system refuses are done without.
    explicit Workers(int num_threads);
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    int num_threads() const { return 1 + static_cast<int>(threads_.size()); }

    // Runs all of the job and returns when it is done. A stage of one item is run by the thread that opens it, without
    // telling the others. Threads without an item spin for about 50 us and then sleep; between calls all sleep. Never two
    // calls at once. In a process that was forked after this was made the caller does everything.
    void run(Job& job);

private:
    void run_alone(Job& job);
    void serve(int thread);
    void take_part(int thread);
    void work(int thread);
    void open_next(int32_t stage, int thread);
    void wake();

    // The stage's number since the start (24 bits), its items and the next one (20 bits each) in one word, so that a thread
    // that wakes late cannot take an item of a stage that it has not seen: its exchange fails.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<int32_t> num_done_{0};
    alignas(64) std::atomic<uint32_t> epoch_{0};  // changes with every stage that is opened; what threads sleep on
    std::atomic<int32_t> num_asleep_{0};
    std::atomic<bool> is_running_{false};
    std::atomic<bool> is_closing_{false};
    // Written before a ticket and read by who claimed an item of it.
    Job* job_ = nullptr;
    int32_t stage_ = 0;
    uint32_t num_opened_ = 0;
    int process_id_;
    std::vector<std::thread> threads_;
};

}  // namespace headway
