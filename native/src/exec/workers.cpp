#include "workers.h"

#include <chrono>
#include <system_error>
#include <unistd.h>

namespace headway {

namespace {

constexpr int field_bits = 20;
constexpr uint64_t field_mask = (uint64_t{1} << field_bits) - 1;
constexpr auto spin_time = std::chrono::microseconds(50);
constexpr int pauses_a_look = 32;  // at the clock, which costs as much as some pauses

uint64_t make_ticket(uint32_t number, int32_t num_items) {
    return (static_cast<uint64_t>(number) & 0xFFFFFFu) << (2 * field_bits) |
           static_cast<uint64_t>(num_items) << field_bits;
}

bool has_item(uint64_t ticket) { return (ticket & field_mask) < (ticket >> field_bits & field_mask); }

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Workers::Workers(int num_threads) : process_id_(getpid()) {
    try {
        threads_.reserve(num_threads > 1 ? num_threads - 1 : 0);
        for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
    } catch (const std::system_error&) {
        // Fewer threads than wished for compute the same.
    }
}

Workers::~Workers() {
    if (getpid() != process_id_) {
        for (std::thread& thread : threads_) thread.detach();
        return;
    }
    is_closing_.store(true);
    wake();
    for (std::thread& thread : threads_) thread.join();
}

void Workers::run(Job& job) {
    if (threads_.empty() || getpid() != process_id_) {
        run_alone(job);
        return;
    }
    job_ = &job;
    is_running_.store(true);
    open_next(-1, 0);
    take_part(0);
}

void Workers::run_alone(Job& job) {
    for (int32_t stage = 0; stage < job.num_stages(); ++stage) {
        const int32_t num_items = job.begin(stage);
        for (int32_t item = 0; item < num_items; ++item) job.run(stage, item, 0);
    }
}

void Workers::wake() {
    epoch_.fetch_add(1);
    if (num_asleep_.load() > 0) epoch_.notify_all();
}

void Workers::open_next(int32_t stage, int thread) {
    while (++stage < job_->num_stages()) {
        const int32_t num_items = job_->begin(stage);
        if (num_items == 1) {
            job_->run(stage, 0, thread);
        } else if (num_items > 1) {
            stage_ = stage;
            num_done_.store(0, std::memory_order_relaxed);
            ticket_.store(make_ticket(++num_opened_, num_items));
            wake();
            return;
        }
    }
    is_running_.store(false);
    wake();
}

void Workers::work(int thread) {
    uint64_t ticket = ticket_.load();
    while (has_item(ticket)) {
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
        const auto num_items = static_cast<int32_t>(ticket >> field_bits & field_mask);
        const int32_t stage = stage_;
        job_->run(stage, static_cast<int32_t>(ticket & field_mask), thread);
        if (num_done_.fetch_add(1) + 1 == num_items) open_next(stage, thread);
        ticket = ticket_.load();
    }
}

void Workers::take_part(int thread) {
    while (is_running_.load()) {
        const uint32_t seen = epoch_.load();
        work(thread);
        const auto until = std::chrono::steady_clock::now() + spin_time;
        while (epoch_.load(std::memory_order_relaxed) == seen && std::chrono::steady_clock::now() < until) {
            for (int i = 0; i < pauses_a_look && epoch_.load(std::memory_order_relaxed) == seen; ++i) pause();
        }
        if (epoch_.load() != seen || !is_running_.load()) continue;
        num_asleep_.fetch_add(1);
        epoch_.wait(seen);
        num_asleep_.fetch_sub(1);
    }
}

void Workers::serve(int thread) {
    while (!is_closing_.load()) {
        take_part(thread);
        const uint32_t seen = epoch_.load();
        if (is_running_.load() || is_closing_.load()) continue;
        num_asleep_.fetch_add(1);
        epoch_.wait(seen);
        num_asleep_.fetch_sub(1);
    }
}

}  // namespace headway
