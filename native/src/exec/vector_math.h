// Functions of vectors, over a simd_*.h included before: the same steps for every lane, whatever its place. NaN gives
// NaN. Errors are those with a fused fma; without one (plain on x86) they are up to twice as large.
#pragma once

#include "matrix.h"

namespace headway {
namespace {

HEADWAY_INLINE Floats absolute(Floats x) { return floats_of(bits_and(bits_of(x), splat_int(0x7fffffff))); }

// The magnitude of the first, the sign of the second.
HEADWAY_INLINE Floats with_sign(Floats magnitude, Floats sign) {
    return floats_of(bits_or(bits_of(absolute(magnitude)), bits_and(bits_of(sign), splat_int(-0x7fffffff - 1))));
}

// 2^x for x <= 0, within 2 ulp; at least 2^-126. Cephes' polynomial, in pairs (Estrin), which shortens the chain.
HEADWAY_INLINE Floats exp2_of_negative(Floats x) {
    x = larger(splat(-126.0f), x);
    const Floats n = nearest(x);
    const Floats f = sub(x, n);
    const Floats f2 = mul(f, f);
    const Floats high = fma(splat(1.535336188319500e-4f), f, splat(1.339887440266574e-3f));
    const Floats middle = fma(splat(9.618437357674640e-3f), f, splat(5.550332471162809e-2f));
    const Floats low = fma(splat(2.402264791363012e-1f), f, splat(6.931472028550421e-1f));
    const Floats y = fma(fma(fma(high, f2, middle), f2, low), f, splat(1.0f));
    return mul(y, power_of_two(n));
}

// e^x within 2 ulp: 0 and infinity where float32 has nothing between. ln 2 is taken off in two parts (Cody and Waite).
HEADWAY_INLINE Floats exponential(Floats x) {
    x = smaller(splat(89.0f), larger(splat(-104.0f), x));
    const Floats n = nearest(mul(x, splat(1.44269504088896341f)));
    const Floats f = fnma(n, splat(-2.12194440e-4f), fnma(n, splat(0.693359375f), x));
    Floats y = fma(splat(1.9875691500e-4f), f, splat(1.3981999507e-3f));
    y = fma(y, f, splat(8.3334519073e-3f));
    y = fma(y, f, splat(4.1665795894e-2f));
    y = fma(y, f, splat(1.6666665459e-1f));
    y = fma(y, f, splat(5.0000001201e-1f));
    y = add(fma(y, mul(f, f), f), splat(1.0f));
    const Floats half = nearest(mul(n, splat(0.5f)));  // 2^n alone may be no float32
    return mul(mul(y, power_of_two(half)), power_of_two(sub(n, half)));
}

HEADWAY_INLINE Floats sigmoid(Floats x) {
    return div(splat(1.0f), add(splat(1.0f), exponential(sub(splat(0.0f), x))));
}

// Within 3 ulp. Small ones by Cephes' odd polynomial: 1 - 2 / (e^2x + 1) would lose their digits.
HEADWAY_INLINE Floats hyperbolic_tangent(Floats x) {
    const Floats size = absolute(x);
    const Floats square = mul(x, x);
    Floats y = fma(splat(-5.70498872745e-3f), square, splat(2.06390887954e-2f));
    y = fma(y, square, splat(-5.37397155531e-2f));
    y = fma(y, square, splat(1.33314422036e-1f));
    y = fma(y, square, splat(-3.33332819422e-1f));
    const Floats small = fma(mul(y, square), x, x);
    const Floats twice = exponential(add(size, size));
    const Floats large = with_sign(sub(splat(1.0f), div(splat(2.0f), add(twice, splat(1.0f)))), x);
    return select(less(size, splat(0.625f)), small, large);
}

// Within 2 ulp: N. Juffa's two polynomials (forums.developer.nvidia.com, "erff with maximum error below 1 ulp").
HEADWAY_INLINE Floats error_function(Floats x) {
    const Floats t = smaller(splat(10.0f), absolute(x));
    const Floats s = mul(t, t);
    Floats r = fma(splat(-1.72853470e-5f), t, splat(3.83197126e-4f));
    const Floats u = fma(splat(-3.88396438e-3f), t, splat(2.42546219e-2f));
    r = fma(r, s, u);
    r = fma(r, t, splat(-1.06777877e-1f));
    r = fma(r, t, splat(-6.34846687e-1f));
    r = fma(r, t, splat(-1.28717512e-1f));
    r = fma(r, t, sub(splat(0.0f), t));
    const Floats large = sub(splat(1.0f), exponential(r));
    Floats y = fma(splat(-5.96761703e-4f), s, splat(4.99119423e-3f));
    y = fma(y, s, splat(-2.67681349e-2f));
    y = fma(y, s, splat(1.12819925e-1f));
    y = fma(y, s, splat(-3.76125336e-1f));
    y = fma(y, s, splat(1.28379166e-1f));
    const Floats small = fma(y, t, t);
    return with_sign(select(less(splat(0.927734375f), t), large, small), x);
}

HEADWAY_INLINE Floats silu(Floats x) { return div(x, add(splat(1.0f), exponential(sub(splat(0.0f), x)))); }

HEADWAY_INLINE Floats relu(Floats x) { return larger(splat(0.0f), x); }

HEADWAY_INLINE Floats gelu(Floats x) {
    const Floats half = mul(x, splat(0.5f));
    return fma(half, error_function(mul(x, splat(0.70710678118654752f))), half);
}

HEADWAY_INLINE Floats gelu_tanh(Floats x) {
    const Floats cubic = fma(mul(mul(x, x), x), splat(0.044715f), x);
    const Floats half = mul(x, splat(0.5f));
    return fma(half, hyperbolic_tangent(mul(cubic, splat(0.79788456080286536f))), half);
}

// The gate of a fused product and of the gate kernel: the same bits.
template <Gate kind>
HEADWAY_INLINE Floats apply_gate(Floats x) {
    if constexpr (kind == Gate::silu) return silu(x);
    if constexpr (kind == Gate::gelu) return gelu(x);
    if constexpr (kind == Gate::gelu_tanh) return gelu_tanh(x);
    if constexpr (kind == Gate::relu) return relu(x);
    return x;
}

// The nearest bfloat16 (ties to even) of each lane, in its low half; NaN stays NaN.
HEADWAY_INLINE Ints bfloat16_bits(Floats x) {
    const Ints bits = bits_of(x);
    const Ints odd = bits_and(shift_right<16>(bits), splat_int(1));
    const Floats rounded = floats_of(shift_right<16>(add_ints(bits, add_ints(odd, splat_int(0x7fff)))));
    return bits_of(select(is_nan(x), floats_of(splat_int(0x7fc0)), rounded));
}

}  // namespace
}  // namespace headway
