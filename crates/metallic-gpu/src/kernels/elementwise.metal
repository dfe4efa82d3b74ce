// One thread for four neighbouring elements; the last one takes what is left.

template <typename T>
void map_four(constant MapParams& p, device const T* x, device T* out, uint tid) {
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
void zip_four(constant ZipParams& p, device const T* a, device const T* b, device T* out, uint tid) {
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

#define ELEMENTWISE(T, MAP, ZIP)                                                                                 \
    kernel void MAP(                                                                                             \
        constant MapParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device T* out [[buffer(2)]],       \
        uint tid [[thread_position_in_grid]]                                                                     \
    ) {                                                                                                          \
        map_four<T>(p, x, out, tid);                                                                             \
    }                                                                                                            \
    kernel void ZIP(                                                                                             \
        constant ZipParams& p [[buffer(0)]], device const T* a [[buffer(1)]], device const T* b [[buffer(2)]],   \
        device T* out [[buffer(3)]], uint tid [[thread_position_in_grid]]                                        \
    ) {                                                                                                          \
        zip_four<T>(p, a, b, out, tid);                                                                          \
    }

ELEMENTWISE(float, map_f32, zip_f32)
ELEMENTWISE(half, map_f16, zip_f16)
ELEMENTWISE(bfloat, map_bf16, zip_bf16)
