// Attention on one thread, each call's best time of many added up, in GFLOPS (two a product of a query and a key or of a
// weight and a value, of what a causal row sees) and GB/s of keys and values: prefills of one sequence, decodes of many.
// SmolLM2-135M's heads, and DeepSeek-V2-Lite's latent attention.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "isa.h"

namespace {

using namespace headway;

constexpr int32_t block_size = 16;

struct Heads {
    int32_t num_heads, num_kv_heads, qk_dim, v_dim;
    bool v_in_k;

    // Of K and V, a token.
    int32_t width() const { return num_kv_heads * (v_in_k ? qk_dim : qk_dim + v_dim); }
};

constexpr Heads grouped{9, 3, 64, 64, false};
constexpr Heads latent{16, 1, 576, 512, true};

const char* name_of(KVType type) {
    return type == KVType::bf16 ? "bf16" : type == KVType::int8 ? "int8" : "f16";
}

struct Bench {
    const ExecKernels& table;
    Heads heads;
    KVType type;
    int32_t sequences, context_len, num_tokens;
    std::vector<char> k, v;
    std::vector<float> scales, q, out, scratch;
    std::vector<int32_t> blocks;
    KVView view;
    AttentionCall call{};

    Bench(const ExecKernels& table, const Heads& heads, KVType type, int32_t sequences, int32_t context_len,
          int32_t num_tokens)
        : table(table),
          heads(heads),
          type(type),
          sequences(sequences),
          context_len(context_len),
          num_tokens(num_tokens) {
        const int64_t slots = static_cast<int64_t>(sequences) * context_len;
        const int64_t size = slots * heads.num_kv_heads * (type == KVType::int8 ? 1 : 2);
        k.resize(size * heads.qk_dim), v.resize(heads.v_in_k ? 0 : size * heads.v_dim);
        scales.resize(slots * heads.num_kv_heads);
        blocks.resize(slots / block_size);
        std::iota(blocks.begin(), blocks.end(), 0);
        std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
        view = {type,          block_size, heads.num_kv_heads, heads.qk_dim,  heads.v_dim,
                k.data(),      v.data(),   scales.data(),      scales.data(), heads.v_in_k};
        std::mt19937 random(2);
        std::normal_distribution<float> normal;
        std::vector<float> row(heads.num_kv_heads * std::max(heads.qk_dim, heads.v_dim));
        for (int64_t slot = 0; slot < slots; ++slot) {
            for (float& value : row) value = normal(random);
            table.write_kv(&view, row.data(), heads.qk_dim, row.data(), heads.v_dim, &slot, 1, 0, heads.num_kv_heads);
        }
        const int64_t rows = static_cast<int64_t>(std::max(sequences, num_tokens)) * heads.num_heads;
        q.resize(rows * heads.qk_dim), out.resize(rows * heads.v_dim);
        for (float& value : q) value = normal(random);
        call.kv = view, call.q = q.data(), call.ld_q = heads.num_heads * heads.qk_dim, call.out = out.data();
        call.ld_out = heads.num_heads * heads.v_dim;
        call.num_heads = heads.num_heads, call.head_parts = 1, call.scale = 0.125f, call.causal = true;
        call.context_len = context_len, call.first_position = context_len - num_tokens;
        scratch.resize(attention_scratch_floats(call));
    }

    // Adds each call's time to `best` where it is less: calls are short, so that others on the machine miss some.
    void run(std::vector<double>& best) {
        size_t index = 0;
        for (int32_t s = 0; s < sequences; ++s) {
            call.block_table = blocks.data() + s * (context_len / block_size);
            call.first_token = num_tokens == 1 ? s : 0;
            for (int32_t head = 0; head < heads.num_kv_heads; ++head) {
                for (int32_t begin = 0; begin < num_tokens; begin += table.attend_tokens) {
                    const int32_t end = std::min(begin + table.attend_tokens, num_tokens);
                    const auto start = std::chrono::steady_clock::now();
                    table.attend(&call, begin, end, head, scratch.data());
                    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
                    if (index == best.size()) best.push_back(spent.count());
                    best[index] = std::min(best[index], spent.count());
                    ++index;
                }
            }
        }
    }

    void report(const char* what) {
        std::vector<double> times;
        const auto start = std::chrono::steady_clock::now();
        for (int repeat = 0; repeat < 400; ++repeat) {
            run(times);
            if (repeat > 5 && std::chrono::steady_clock::now() - start > std::chrono::milliseconds(600)) break;
        }
        const double best = std::accumulate(times.begin(), times.end(), 0.0);
        const double seen = num_tokens * (context_len - num_tokens + (num_tokens + 1) / 2.0) * sequences;
        const double bytes =
            static_cast<double>(sequences) * context_len * heads.width() * (type == KVType::int8 ? 1 : 2);
        std::printf("%-12s %s %-7s context %5d tokens %5d sequences %3d  %9.1f us  %6.1f GFLOPS  %6.1f GB/s\n",
                    table.name, name_of(type), what, context_len, num_tokens, sequences, best * 1e6,
                    seen * heads.num_heads * (heads.qk_dim + heads.v_dim) * 2 / best * 1e-9, bytes / best * 1e-9);
    }
};

}  // namespace

int main() {
    const ExecKernels& table = exec_kernels(choose_isa());
    for (KVType type : {KVType::bf16, KVType::f16, KVType::int8}) {
        for (int32_t length : {512, 2048}) Bench(table, grouped, type, 1, length, length).report("prefill");
        for (int32_t context : {128, 1536}) {
            for (int32_t sequences : {1, 8, 64}) Bench(table, grouped, type, sequences, context, 1).report("decode");
        }
        Bench(table, latent, type, 1, 512, 512).report("latent");
        for (int32_t context : {256, 1024, 4096}) Bench(table, latent, type, 1, context, 1).report("latent");
    }
}
