// Elements of strided tensors, by the threads of a line. A thread has up to four neighbours along the innermost axis.

struct Walk {
    uint inner; // first of the neighbours
    uint count; // how many; 0 past the end
    uint3 outer;
};

inline Walk walk(uint4 shape, uint tid) {
    const uint quads = (shape.w + 3) / 4;
    const uint row = tid / quads;
    Walk at;
    at.inner = tid % quads * 4;
    at.outer.z = row % shape.z;
    at.outer.y = row / shape.z % shape.y;
    at.outer.x = row / shape.z / shape.y;
    at.count = at.outer.x < shape.x ? min(shape.w - at.inner, 4u) : 0;
    return at;
}

// Where the first of the neighbours lies.
inline ulong place(Walk at, uint4 strides) {
    return ulong(at.outer.x) * strides.x + ulong(at.outer.y) * strides.y + ulong(at.outer.z) * strides.z
        + ulong(at.inner) * strides.w;
}

template <typename T>
inline float4 load_strided(device const T* x, uint stride, uint count) {
    if (stride == 1 && count == 4) return load4(x);
    float4 v = 0.0f;
    for (uint k = 0; k < count; k++) v[k] = float(x[ulong(k) * stride]);
    return v;
}

template <typename T>
inline void store_strided(device T* x, uint stride, uint count, float4 v) {
    if (stride == 1 && count == 4) {
        store4(x, v);
        return;
    }
    for (uint k = 0; k < count; k++) x[ulong(k) * stride] = T(v[k]);
}
