// Root-mean-square and layer normalisation. The sum of a row has `width` lanes in each of four parts, added in a fixed
// order: it depends on the row's width alone.
#pragma once

namespace headway {
namespace {

// A row's terms added up; term(sum, x) adds those of a vector.
template <typename Term>
HEADWAY_INLINE float sum_row(const float* x, int32_t n, Term term) {
    Floats sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    int32_t i = 0;
    for (; i + 4 * width <= n; i += 4 * width) {
        for (int part = 0; part < 4; ++part) sums[part] = term(sums[part], load(x + i + part * width));
    }
    for (; i + width <= n; i += width) sums[0] = term(sums[0], load(x + i));
    Floats total = add(add(sums[0], sums[2]), add(sums[1], sums[3]));
    if (i < n) {
        const Floats rest = term(splat(0.0f), load_some(x + i, n - i));
        total = add(total, select(lanes_between(0, 0, n - i), rest, splat(0.0f)));
    }
    return sum_lanes(total);
}

template <typename Visit>
HEADWAY_INLINE void for_each_part(int32_t n, Visit visit) {
    int32_t i = 0;
    for (; i + width <= n; i += width) visit(i, width);
    if (i < n) visit(i, n - i);
}

HEADWAY_INLINE Floats load_part(const float* x, int count) { return count == width ? load(x) : load_some(x, count); }
HEADWAY_INLINE void store_part(float* x, Floats value, int count) {
    count == width ? store(x, value) : store_some(x, value, count);
}

HEADWAY_INLINE float inverse_root(float x) {
    float lanes[width];
    store(lanes, div(splat(1.0f), root(splat(x))));
    return lanes[0];
}

HEADWAY_INLINE void write_normalised(const float* x, float* out, int32_t n, float mean, float factor,
                                     const float* weight, const float* bias, bool one_plus) {
    const Floats shift = splat(one_plus ? 1.0f : 0.0f);
    for_each_part(n, [&](int32_t i, int count) {
        const Floats normal = mul(sub(load_part(x + i, count), splat(mean)), splat(factor));
        const Floats scaled = mul(normal, add(load_part(weight + i, count), shift));
        store_part(out + i, bias == nullptr ? scaled : add(scaled, load_part(bias + i, count)), count);
    });
}

void rms_norm(const float* x, int64_t ld, float* out, int64_t ld_out, int32_t rows, int32_t width_of_row, int32_t head,
              const float* weight, float eps, bool one_plus) {
    for (int32_t row = 0; row < rows; ++row, x += ld, out += ld_out) {
        for (int32_t start = 0; start < width_of_row; start += head) {
            const float squares = sum_row(x + start, head, [](Floats sum, Floats v) { return fma(v, v, sum); });
            const float factor = inverse_root(squares / static_cast<float>(head) + eps);
            write_normalised(x + start, out + start, head, 0.0f, factor, weight, nullptr, one_plus);
        }
    }
}

void layer_norm(const float* x, int64_t ld, float* out, int64_t ld_out, int32_t rows, int32_t width_of_row,
                int32_t head, const float* weight, const float* bias, float eps, bool one_plus) {
    const float count = static_cast<float>(head);
    for (int32_t row = 0; row < rows; ++row, x += ld, out += ld_out) {
        for (int32_t start = 0; start < width_of_row; start += head) {
            const float mean = sum_row(x + start, head, [](Floats sum, Floats v) { return add(sum, v); }) / count;
            const float squares = sum_row(x + start, head, [mean](Floats sum, Floats v) {
                const Floats distance = sub(v, splat(mean));
                return fma(distance, distance, sum);
            });
            const float factor = inverse_root(squares / count + eps);
            write_normalised(x + start, out + start, head, mean, factor, weight, bias, one_plus);
        }
    }
}

}  // namespace
}  // namespace headway
