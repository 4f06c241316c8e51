// A few threads that share out the items of one call at a time, and sleep between calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace headway {

class ThreadPool {
public:
    // num_threads counts the caller's own: 1 starts none. Threads that the system refuses are done without.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return 1 + static_cast<int>(threads_.size()); }

    // Calls task(item, thread) for each item of 0..num_items - 1, each once, thread below num_threads(), and returns
    // when all are done. Which thread takes which item is left to chance. Never two calls at once; task does not throw.
    // In a process that was forked after the pool was made the caller does everything: its threads stayed behind.
    void run(int32_t num_items, const std::function<void(int32_t, int)>& task);

private:
    void serve(int thread);
    void work(int thread);

    // The call's number (24 bits), its number of items and the next item (20 bits each) in one word, so that a thread
    // that wakes late cannot take an item of a call that it does not belong to: its exchange fails.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<int32_t> num_done_{0};
    std::atomic<uint32_t> num_calls_{0};  // what the threads sleep on
    std::atomic<bool> is_closing_{false};
    const std::function<void(int32_t, int)>* task_ = nullptr;  // read only between taking an item and finishing it
    int process_id_;
    std::vector<std::thread> threads_;
};

}  // namespace headway
