// Rotary positions, in place.
#pragma once

namespace headway {
namespace {

// Columns p and p + pairs.
HEADWAY_INLINE void turn_halves(float* x, const float* cosines, const float* sines, int32_t pairs) {
    for_each_part(pairs, [&](int32_t p, int count) {
        const Floats a = load_part(x + p, count), b = load_part(x + pairs + p, count);
        const Floats cosine = load_part(cosines + p, count), sine = load_part(sines + p, count);
        store_part(x + p, fnma(b, sine, mul(a, cosine)), count);
        store_part(x + pairs + p, fma(a, sine, mul(b, cosine)), count);
    });
}

// Columns 2p and 2p + 1, taken apart so that the arithmetic is the same.
HEADWAY_INLINE void turn_neighbours(float* x, const float* cosines, const float* sines, int32_t pairs) {
    for_each_part(pairs, [&](int32_t p, int count) {
        float parts[2 * width];
        for (int i = 0; i < count; ++i) parts[i] = x[2 * (p + i)], parts[width + i] = x[2 * (p + i) + 1];
        const Floats a = load_part(parts, count), b = load_part(parts + width, count);
        const Floats cosine = load_part(cosines + p, count), sine = load_part(sines + p, count);
        store_part(parts, fnma(b, sine, mul(a, cosine)), count);
        store_part(parts + width, fma(a, sine, mul(b, cosine)), count);
        for (int i = 0; i < count; ++i) x[2 * (p + i)] = parts[i], x[2 * (p + i) + 1] = parts[width + i];
    });
}

void rope(float* x, int64_t ld, const int32_t* positions, int32_t rows, int32_t num_heads, int32_t head_dim,
          const RopeTable* table) {
    const int32_t pairs = table->pairs;
    for (int32_t row = 0; row < rows; ++row, x += ld) {
        const float* cosines = table->cosines + static_cast<int64_t>(positions[row]) * pairs;
        const float* sines = table->sines + static_cast<int64_t>(positions[row]) * pairs;
        for (int32_t head = 0; head < num_heads; ++head) {
            float* columns = x + static_cast<int64_t>(head) * head_dim;
            if (table->interleaved) {
                turn_neighbours(columns, cosines, sines, pairs);
            } else {
                turn_halves(columns, cosines, sines, pairs);
            }
        }
    }
}

}  // namespace
}  // namespace headway
