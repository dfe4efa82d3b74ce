// Copies between strided tensors, with a cast, and the copy that turns: where input and output are dense along different
// axes, tiles go through threadgroup memory, so that both sides are read and written in runs.

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

constant constexpr uint TILE = 32;

template <typename From, typename To>
kernel void copy_four(
    constant CopyParams& p [[buffer(0)]], device const From* x [[buffer(1)]], device To* out [[buffer(2)]],
    uint tid [[thread_position_in_grid]]
) {
    const Walk at = walk(uint4(p.n0, p.n1, p.n2, p.n3), tid);
    if (at.count == 0) return;
    x += place(at, uint4(p.x0, p.x1, p.x2, p.x3));
    out += place(at, uint4(p.y0, p.y1, p.y2, p.y3));
    store_strided(out, p.y3, at.count, load_strided(x, p.x3, at.count));
}

// Halves and bfloats meet in a float; integers stay what they are.
template <typename To, typename From>
inline To cast_to(From v) {
    return To(float(v));
}
template <>
inline uint cast_to<uint, uint>(uint v) {
    return v;
}

// Axes 2 and 3 are turned: the input is dense along axis 2, the output along axis 3. A threadgroup has a tile, 8 rows of
// threads; axes 0 and 1 are the grid's third.
template <typename From, typename To>
[[kernel, max_total_threads_per_threadgroup(256)]] void turn_tile(
    constant CopyParams& p [[buffer(0)]], device const From* x [[buffer(1)]], device To* out [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]], uint3 at [[thread_position_in_threadgroup]]
) {
    threadgroup From tile[TILE * (TILE + 1)];
    const uint a = group.z / p.n1;
    const uint b = group.z % p.n1;
    x += ulong(a) * p.x0 + ulong(b) * p.x1;
    out += ulong(a) * p.y0 + ulong(b) * p.y1;
    const uint row = group.y * TILE; // along axis 2
    const uint col = group.x * TILE; // along axis 3
    // A row of the tile is one element longer than it has to be: columns then lie in different banks.
    for (uint j = at.y; j < TILE; j += 8) {
        if (row + at.x < p.n2 && col + j < p.n3) {
            tile[j * (TILE + 1) + at.x] = x[ulong(row + at.x) * p.x2 + ulong(col + j) * p.x3];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = at.y; i < TILE; i += 8) {
        if (row + i < p.n2 && col + at.x < p.n3) {
            out[ulong(row + i) * p.y2 + ulong(col + at.x) * p.y3] = cast_to<To, From>(tile[at.x * (TILE + 1) + i]);
        }
    }
}

#define COPY(COPY_NAME, TURN_NAME, From, To) \
    KERNEL(COPY_NAME, copy_four<From, To>) KERNEL(TURN_NAME, turn_tile<From, To>)

COPY("copy_f32_f32", "turn_f32_f32", float, float)
COPY("copy_f32_f16", "turn_f32_f16", float, half)
COPY("copy_f32_bf16", "turn_f32_bf16", float, bfloat)
COPY("copy_f16_f32", "turn_f16_f32", half, float)
COPY("copy_f16_f16", "turn_f16_f16", half, half)
COPY("copy_f16_bf16", "turn_f16_bf16", half, bfloat)
COPY("copy_bf16_f32", "turn_bf16_f32", bfloat, float)
COPY("copy_bf16_f16", "turn_bf16_f16", bfloat, half)
COPY("copy_bf16_bf16", "turn_bf16_bf16", bfloat, bfloat)
KERNEL("turn_u32_u32", turn_tile<uint, uint>)

// Integers go bit by bit.
kernel void copy_u32_u32(
    constant CopyParams& p [[buffer(0)]], device const uint* x [[buffer(1)]], device uint* out [[buffer(2)]],
    uint tid [[thread_position_in_grid]]
) {
    const Walk at = walk(uint4(p.n0, p.n1, p.n2, p.n3), tid);
    x += place(at, uint4(p.x0, p.x1, p.x2, p.x3));
    out += place(at, uint4(p.y0, p.y1, p.y2, p.y3));
    for (uint k = 0; k < at.count; k++) out[ulong(k) * p.y3] = x[ulong(k) * p.x3];
}
