// Matrices chosen for each row, and what their results come to.

// A simdgroup has ROWS rows of the matrix of one choice, `group.y`, which counts the choices of all tokens.
kernel void expert_linear(
    constant ExpertParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const uchar* w [[buffer(2)]],
    device const uint* ids [[buffer(3)]], device float* out [[buffer(4)]], threadgroup float4* shared [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    const uint row = (group.x * simds + simd) * ROWS;
    if (row >= p.rows) return;
    const uint count = min(ROWS, p.rows - row), expert = ids[group.y];
    out += ulong(group.y) * p.rows + row;
    if (expert >= p.experts) {
        if (lane < count) out[lane] = NAN;
        return;
    }
    threadgroup float* parts = (threadgroup float*)shared + simd * ROWS * PITCH;
    const Vectors v = {x + ulong(group.y / p.sharing) * p.cols, x, 1, false};
    const InOrder order = {p.rows};
    device const uchar* matrix = w + ulong(expert) * p.rows * row_bytes(WEIGHT0, p.cols);
#define DOTS(W) dots<W, 1>(p.cols, v, matrix, order, row, lane, parts, parts)
    FOR_WEIGHT_TYPE(WEIGHT0, DOTS)
#undef DOTS
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < count) out[lane] = gathered(parts + lane * PITCH);
}

// Four neighbouring elements of a row's sum; `at.y` is the row.
template <typename T>
kernel void combine(
    constant CombineParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device const T* weights [[buffer(2)]],
    device T* out [[buffer(3)]], uint2 at [[thread_position_in_grid]]
) {
    const uint i = at.x * 4;
    if (i >= p.cols || at.y >= p.rows) return;
    x += ulong(at.y) * p.parts * p.cols;
    weights += ulong(at.y) * p.parts;
    float4 sum = float4(0.0f);
    for (uint part = 0; part < p.parts; part++)
        sum = fma(load_ragged(x + ulong(part) * p.cols, i, p.cols), float4(float(weights[part])), sum);
    store_ragged(out + ulong(at.y) * p.cols, i, p.cols, sum);
}

EACH_FLOAT("combine", combine)
