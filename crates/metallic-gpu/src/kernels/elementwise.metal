// Functions of one or two numbers, element by element.

constant uint FUNCTION [[function_constant(0)]];

inline float map1(float x, float value) {
    switch (FUNCTION) {
        case F_ADD: return x + value;
        case F_SUB: return x - value;
        case F_SUB_FROM: return value - x;
        case F_MUL: return x * value;
        case F_DIV: return precise::divide(x, value);
        case F_DIV_INTO: return precise::divide(value, x);
        case F_MIN: return min(x, value);
        case F_MAX: return max(x, value);
        case F_SOFTCAP: return value * precise::tanh(precise::divide(x, value));
        default: return activate(FUNCTION, x);
    }
}

inline float map2(float a, float b) {
    switch (FUNCTION) {
        case F_ADD: return a + b;
        case F_SUB: return a - b;
        case F_MUL: return a * b;
        case F_DIV: return precise::divide(a, b);
        case F_MIN: return min(a, b);
        case F_MAX: return max(a, b);
        default: return activate(FUNCTION, a) * b;
    }
}

// One thread for four neighbouring elements; the last one takes what is left.

template <typename T>
kernel void map_four(
    constant MapParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device T* out [[buffer(2)]],
    uint tid [[thread_position_in_grid]]
) {
    const uint i = tid * 4;
    if (tid < p.n / 4) {
        const float4 v = load4(x + i);
        float4 y;
        for (uint k = 0; k < 4; k++) y[k] = map1(v[k], p.value);
        store4(out + i, y);
    } else if (tid == p.n / 4) {
        for (uint k = i; k < p.n; k++) out[k] = T(map1(float(x[k]), p.value));
    }
}

// Element i meets element i % period of b.
template <typename T>
kernel void zip_four(
    constant ZipParams& p [[buffer(0)]], device const T* a [[buffer(1)]], device const T* b [[buffer(2)]],
    device T* out [[buffer(3)]], uint tid [[thread_position_in_grid]]
) {
    const uint i = tid * 4;
    const uint j = p.period == p.n ? i : i % p.period;
    if (tid < p.n / 4 && p.period - j >= 4) {
        const float4 v = load4(a + i);
        const float4 w = load4(b + j);
        float4 y;
        for (uint k = 0; k < 4; k++) y[k] = map2(v[k], w[k]);
        store4(out + i, y);
    } else if (tid <= p.n / 4) {
        const uint count = min(p.n - i, 4u);
        for (uint k = 0; k < count; k++) out[i + k] = T(map2(float(a[i + k]), float(b[(j + k) % p.period])));
    }
}

EACH_FLOAT("map", map_four)
EACH_FLOAT("zip", zip_four)
