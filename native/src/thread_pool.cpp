#include "thread_pool.h"

#include <system_error>
#include <unistd.h>

namespace headway {

namespace {

constexpr int field_bits = 20;
constexpr uint64_t field_mask = (uint64_t{1} << field_bits) - 1;
constexpr int32_t max_items = static_cast<int32_t>(field_mask);

uint64_t make_ticket(uint32_t call, int32_t num_items) {
    return (static_cast<uint64_t>(call) & 0xFFFFFFu) << (2 * field_bits) | static_cast<uint64_t>(num_items) << field_bits;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : process_id_(getpid()) {
    try {
        threads_.reserve(num_threads > 1 ? num_threads - 1 : 0);
        for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
    } catch (const std::system_error&) {
        // Fewer threads than wished for compute the same.
    }
}

ThreadPool::~ThreadPool() {
    if (getpid() != process_id_) {
        for (std::thread& thread : threads_) thread.detach();
        return;
    }
    is_closing_.store(true);
    num_calls_.fetch_add(1);
    num_calls_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int32_t num_items, const std::function<void(int32_t, int)>& task) {
    if (num_items <= 1 || num_items > max_items || threads_.empty() || getpid() != process_id_) {
        for (int32_t item = 0; item < num_items; ++item) task(item, 0);
        return;
    }
    task_ = &task;
    num_done_.store(0);
    ticket_.store(make_ticket(num_calls_.load() + 1, num_items));
    num_calls_.fetch_add(1);
    num_calls_.notify_all();
    work(0);
    // Only for items, not for threads: one that never got a core is not waited for.
    for (int32_t done = num_done_.load(); done != num_items; done = num_done_.load()) num_done_.wait(done);
}

void ThreadPool::serve(int thread) {
    uint32_t seen = 0;
    while (true) {
        num_calls_.wait(seen);
        seen = num_calls_.load();
        if (is_closing_.load()) return;
        work(thread);
    }
}

void ThreadPool::work(int thread) {
    uint64_t ticket = ticket_.load();
    while (true) {
        const auto num_items = static_cast<int32_t>(ticket >> field_bits & field_mask);
        const auto item = static_cast<int32_t>(ticket & field_mask);
        if (item >= num_items) return;
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
        (*task_)(item, thread);
        if (num_done_.fetch_add(1) + 1 == num_items) num_done_.notify_all();
        ticket = ticket_.load();
    }
}

}  // namespace headway
