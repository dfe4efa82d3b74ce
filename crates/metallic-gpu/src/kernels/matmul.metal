// Up to three matrices of weights times the rows of many tokens; weights are decoded run by run.

// Rows `token ..` of x into a run; past the last token its row stands in, past the last column zeros.
inline void load_x(
    threadgroup float* run, device const float* x, constant ProjectParams& p, uint token, uint col, uint tid
) {
    for (uint i = tid; i < TILE * DEPTH / 4; i += TILE_THREADS) {
        const uint r = i / (DEPTH / 4), c = i % (DEPTH / 4) * 4;
        if (token + r >= ((p.tokens + 7) & ~7u)) break;
        device const float* from = x + ulong(min(token + r, p.tokens - 1)) * p.cols + col + c;
        float4 v = float4(0.0f);
        if (col + c + 4 <= p.cols) {
            v = float4(*(device const packed_float4*)from);
        } else {
            for (uint j = 0; col + c + j < p.cols; j++) v[j] = from[j];
        }
        *(threadgroup float4*)(run + r * RUN_PITCH + c) = v;
    }
}

template <typename W>
void products(
    thread Quarter& q, constant ProjectParams& p, device const float* x, device const uchar* w, uint3 at,
    threadgroup float* runs, uint tid
) {
    const uint token = at.x, row = at.y, rows = at.z;
    threadgroup float* weights = runs + TILE * RUN_PITCH;
    for (uint col = 0; col < p.cols; col += DEPTH) {
        load_x(runs, x, p, token, col, tid);
        for (uint i = tid; i < TILE * DEPTH / 8; i += TILE_THREADS) {
            const uint r = i / (DEPTH / 8), c = i % (DEPTH / 8) * 8;
            if (row + r >= ((rows + 7) & ~7u)) break;
            device const uchar* from = w + ulong(min(row + r, rows - 1)) * row_bytes<W>(p.cols);
            const Eight v = decode8<W>(from, col + c, p.cols);
            threadgroup float4* to = (threadgroup float4*)(weights + r * RUN_PITCH + c);
            to[0] = v.lo;
            to[1] = v.hi;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply(q, runs);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

[[max_total_threads_per_threadgroup(128)]]
kernel void matmul_project(
    constant ProjectParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const uchar* w0 [[buffer(2)]],
    device const uchar* w1 [[buffer(3)]], device const uchar* w2 [[buffer(4)]], device const float* bias0 [[buffer(5)]],
    device const float* bias1 [[buffer(6)]], device const float* bias2 [[buffer(7)]],
    device const float* residual [[buffer(8)]], device const float* gate [[buffer(9)]], device float* out [[buffer(10)]],
    uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float4 memory[TILE_FLOATS / 4];
    threadgroup float* runs = (threadgroup float*)memory;
    const Matrices m = {w0, w1, w2, bias0, bias1, bias2};
    const Tile tile = tile_of(p, group.x, TILE, 3);
    device const uchar* w = m.weight_of(tile.part);
    const uint rows = rows_of(p, tile.part), row = tile.places.x, token = group.y * TILE;
    Quarter q;
    begin(q, simd, uint2(p.tokens - token, rows - row));
#define PRODUCTS(W) products<W>(q, p, x, w, uint3(token, row, rows), runs, tid)
    FOR_WEIGHT_TYPE(m.type_of(tile.part), PRODUCTS)
#undef PRODUCTS
    finish(q, runs);
    const uint n = row + q.from.y + lane, width = p.rows0 + p.rows1 + p.rows2;
    if (n >= rows) return;
    const uint last = min(p.tokens, token + q.from.x + 32);
    for (uint t = token + q.from.x; t < last; t++) {
        float y = runs[(t - token) * TILE + q.from.y + lane];
        const ulong to = ulong(t) * width + tile.before + n;
        if (WITH_BIAS != 0) y += m.bias_of(tile.part)[n];
        if (WITH_GATE != 0) y *= activate(GATE, gate[to]);
        if (WITH_RESIDUAL != 0) y += residual[to];
        out[to] = y;
    }
}
