// The functions of one number. Their codes are printed from Rust.

// erfc(a) = exp(-a²) t P(t) with t = 2 / (2 + a); P interpolates at Chebyshev nodes over 0 ≤ a ≤ 14.5, within 1e-7.
inline float scaled_erfc(float a) {
    const float t = precise::divide(2.0f, 2.0f + a);
    float p = -0.060783751f;
    p = fma(p, t, 0.292529523f);
    p = fma(p, t, -0.502713203f);
    p = fma(p, t, 0.294594109f);
    p = fma(p, t, -0.0370843336f);
    p = fma(p, t, 0.206688032f);
    p = fma(p, t, 0.242205322f);
    p = fma(p, t, 0.282483101f);
    p = fma(p, t, 0.282081127f);
    return p * t;
}

// x / 2 (1 + erf(x / √2)) is x / 2 erfc(-x / √2) below zero and x - x / 2 erfc(x / √2) above: no digits cancel. Past 20 the
// rest is 0.
inline float gelu_erf(float x) {
    const float m = min(fabs(x), 20.0f);
    const float rest = 0.5f * scaled_erfc(m * 0.707106781f) * precise::exp(-0.5f * m * m);
    return x < 0.0f ? x * rest : x - m * rest;
}

// ln(1 + x) for 0 ≤ x ≤ 1: what rounding took from 1 + x is put back, so that small numbers keep their digits.
inline float log_of_one_plus(float x) {
    const float sum = 1.0f + x;
    return sum == 1.0f ? x : precise::log(sum) * precise::divide(x, sum - 1.0f);
}

inline float activate(uint f, float x) {
    switch (f) {
        case F_SILU: return precise::divide(x, 1.0f + precise::exp(-x));
        case F_GELU: return gelu_erf(x);
        case F_GELU_TANH: return 0.5f * x * (1.0f + precise::tanh(0.797884561f * fma(0.044715f * x * x, x, x)));
        case F_RELU: return max(x, 0.0f);
        case F_EXP: return precise::exp(x);
        // The exponential of a number that is not positive never overflows.
        case F_SOFTPLUS: return max(x, 0.0f) + log_of_one_plus(precise::exp(-fabs(x)));
        default: return precise::divide(1.0f, 1.0f + precise::exp(-x));
    }
}
