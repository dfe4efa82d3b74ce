// Products of float matrices of any strides: out [batch, m, n] = a [batch, m, k] times b [batch, k, n].

// `rows` rows of a matrix from `row` on into a run; the last row stands in past the end, zeros past the last column.
template <typename T>
void load_strided(
    threadgroup float* run, device const T* from, uint2 strides, uint2 sizes, uint2 at, uint tid
) {
    const bool along = strides.y <= strides.x;
    for (uint i = tid; i < TILE * DEPTH; i += TILE_THREADS) {
        // Neighbouring threads take neighbouring elements.
        const uint r = along ? i / DEPTH : i % TILE, c = along ? i % DEPTH : i / TILE;
        const uint row = min(at.x + r, sizes.x - 1), col = at.y + c;
        run[r * RUN_PITCH + c] = col < sizes.y ? float(from[ulong(row) * strides.x + ulong(col) * strides.y]) : 0.0f;
    }
}

template <typename T>
void matmul_strided(
    constant MatmulFloatParams& p, device const T* a, device const T* b, device T* out, threadgroup float* runs,
    uint3 group, uint tid, uint lane, uint simd
) {
    const uint m = group.y * TILE, n = group.x * TILE;
    a += ulong(group.z) * p.a_batch;
    b += ulong(group.z) * p.b_batch;
    out += ulong(group.z) * (ulong(p.m) * p.n);
    Quarter q;
    begin(q, simd, uint2(p.m - m, p.n - n));
    for (uint k = 0; k < p.k; k += DEPTH) {
        load_strided<T>(runs, a, uint2(p.a_row, p.a_col), uint2(p.m, p.k), uint2(m, k), tid);
        load_strided<T>(runs + TILE * RUN_PITCH, b, uint2(p.b_col, p.b_row), uint2(p.n, p.k), uint2(n, k), tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply(q, runs);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    finish(q, runs);
    const uint col = n + q.from.y + lane;
    if (col >= p.n) return;
    const uint last = min(p.m, m + q.from.x + 32);
    for (uint row = m + q.from.x; row < last; row++) {
        out[ulong(row) * p.n + col] = T(runs[(row - m) * TILE + q.from.y + lane]);
    }
}

#define MATMUL_FLOAT(T, NAME)                                                                                   \
    [[max_total_threads_per_threadgroup(128)]]                                                                  \
    kernel void matmul_##NAME(                                                                                  \
        constant MatmulFloatParams& p [[buffer(0)]], device const T* a [[buffer(1)]],                           \
        device const T* b [[buffer(2)]], device T* out [[buffer(3)]],                                           \
        uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],                 \
        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]                   \
    ) {                                                                                                         \
        threadgroup float4 memory[TILE_FLOATS / 4];                                                             \
        matmul_strided<T>(p, a, b, out, (threadgroup float*)memory, group, tid, lane, simd);                    \
    }

MATMUL_FLOAT(float, f32)
MATMUL_FLOAT(half, f16)
MATMUL_FLOAT(bfloat, bf16)
