// Functions of one or two numbers over strided tensors; a stride of 0 repeats an element.

#define STRIDED(T, NAME)                                                                                         \
    kernel void map_strided_##NAME(                                                                              \
        constant MapStridedParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device T* out [[buffer(2)]],\
        uint tid [[thread_position_in_grid]]                                                                     \
    ) {                                                                                                          \
        const Walk at = walk(uint4(p.n0, p.n1, p.n2, p.n3), tid);                                                \
        if (at.count == 0) return;                                                                               \
        x += place(at, uint4(p.x0, p.x1, p.x2, p.x3));                                                           \
        out += place(at, uint4(p.y0, p.y1, p.y2, p.y3));                                                         \
        float4 v = load_strided(x, p.x3, at.count);                                                              \
        for (uint k = 0; k < 4; k++) v[k] = map1(v[k], p.value);                                                 \
        store_strided(out, p.y3, at.count, v);                                                                   \
    }                                                                                                            \
    kernel void zip_strided_##NAME(                                                                              \
        constant ZipStridedParams& p [[buffer(0)]], device const T* a [[buffer(1)]],                             \
        device const T* b [[buffer(2)]], device T* out [[buffer(3)]], uint tid [[thread_position_in_grid]]       \
    ) {                                                                                                          \
        const Walk at = walk(uint4(p.n0, p.n1, p.n2, p.n3), tid);                                                \
        if (at.count == 0) return;                                                                               \
        a += place(at, uint4(p.a0, p.a1, p.a2, p.a3));                                                           \
        b += place(at, uint4(p.b0, p.b1, p.b2, p.b3));                                                           \
        out += place(at, uint4(p.y0, p.y1, p.y2, p.y3));                                                         \
        const float4 v = load_strided(a, p.a3, at.count);                                                        \
        const float4 w = load_strided(b, p.b3, at.count);                                                        \
        float4 y;                                                                                                \
        for (uint k = 0; k < 4; k++) y[k] = map2(v[k], w[k]);                                                    \
        store_strided(out, p.y3, at.count, y);                                                                   \
    }

STRIDED(float, f32)
STRIDED(half, f16)
STRIDED(bfloat, bf16)
