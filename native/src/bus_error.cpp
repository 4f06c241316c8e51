#include "bus_error.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace headway {

namespace {

// A mapping. `start` is written last and taken away first, so that a handler never sees half of one.
struct Watched {
    std::atomic<uintptr_t> start{0};  // 0: none
    size_t num_bytes = 0;
    std::string line;  // written as it is: a handler may not allocate
};

constexpr size_t max_watched = 1024;

struct Registry {
    std::mutex mutex;
    std::array<Watched, max_watched> mappings;
};

// Never destroyed: a handler may run while the process ends.
Registry& registry() {
    static Registry* const made = new Registry;
    return *made;
}

int exit_code_for_lost_pages = 0;
Registry* handler_registry = nullptr;  // a handler may not run a static's initialiser

void write_all(const std::string& line) {
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t written = write(STDERR_FILENO, line.data() + done, line.size() - done);
        if (written <= 0) return;
        done += static_cast<size_t>(written);
    }
}

// Only what is safe in a handler: atomic loads, write(2), _exit(2).
void on_bus_error(int number, siginfo_t* info, void*) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
    for (const Watched& mapping : handler_registry->mappings) {
        const uintptr_t start = mapping.start.load(std::memory_order_acquire);
        if (start == 0 || at < start || at - start >= mapping.num_bytes) continue;
        write_all(mapping.line);
        _exit(exit_code_for_lost_pages);
    }
    signal(number, SIG_DFL);
    raise(number);  // held back until this returns; then it kills
}

}  // namespace

void explain_bus_errors(int exit_code) {
    exit_code_for_lost_pages = exit_code;
    handler_registry = &registry();
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}

int watch_mapping(const void* start, size_t num_bytes, const std::string& path) {
    Registry& known = registry();
    const std::lock_guard lock(known.mutex);
    for (size_t place = 0; place < max_watched; ++place) {
        Watched& mapping = known.mappings[place];
        if (mapping.start.load(std::memory_order_relaxed) != 0) continue;
        mapping.num_bytes = num_bytes;
        mapping.line = path + " was cut while it was read, or its disk failed: load the model again, and replace a "
                              "model's file by renaming another over it\n";
        mapping.start.store(reinterpret_cast<uintptr_t>(start), std::memory_order_release);
        return static_cast<int>(place);
    }
    return -1;
}

void unwatch_mapping(int place) {
    if (place < 0 || static_cast<size_t>(place) >= max_watched) return;
    Registry& known = registry();
    const std::lock_guard lock(known.mutex);
    known.mappings[static_cast<size_t>(place)].start.store(0, std::memory_order_release);
}

}  // namespace headway
