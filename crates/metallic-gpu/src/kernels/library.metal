// Around the product of a library: vectors and weights as halfs, bfloats or floats, row by row, and what is done with the products.

// 1: numbers become two bfloats each, the second what the first leaves; else a half.
constant uint BFLOATS [[function_constant(0)]];
// The weights' type.
constant uint CELL_TYPE [[function_constant(1)]];
constant uint WITH_NORM [[function_constant(2)]];
constant uint WITH_BIAS [[function_constant(3)]];
constant uint WITH_RESIDUAL [[function_constant(4)]];
constant uint WITH_GATE [[function_constant(5)]];
constant uint GATE [[function_constant(6)]];

// Vectors, normalised where asked for. As halfs, a token's numbers are scaled by a power of two so that the greatest is below 512.
// `scales` has what undoes it. Bfloats need no scale; their second halves lie after all the first.
kernel void library_rows(
    constant ColumnParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device uint2* rows [[buffer(3)]], device float* scales [[buffer(4)]],
    uint token [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    threadgroup float scratch[32];
    device const float* own = x + ulong(token) * p.cols;
    const float2 found = row_scales(own, norm, WITH_NORM != 0, p.cols, p.eps, scratch, tid, threads, lane, simd, simds);
    if (tid == 0) scales[token] = BFLOATS != 0 ? found.y * found.x : found.y;
    const ulong quads = p.cols / 4;
    device uint2* to = rows + token * quads;
    for (uint i = tid; i < quads; i += threads) {
        float4 v = ((device const float4*)own)[i];
        if (WITH_NORM != 0) v *= ((device const float4*)norm)[i];
        if (BFLOATS != 0) {
            const bfloat4 most = bfloat4(v);
            to[i] = as_type<uint2>(most);
            to[p.tokens * quads + i] = as_type<uint2>(bfloat4(v - float4(most)));
        } else {
            const float4 scaled = v * found.x;
            to[i] = uint2(two_halfs(scaled.xy), two_halfs(scaled.zw));
        }
    }
}

// The same, as floats, which may begin at any of them; a row is scaled by what normalises it after the product.
kernel void library_floats(
    constant ColumnParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device float* rows [[buffer(3)]], device float* scales [[buffer(4)]],
    uint token [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    threadgroup float scratch[32];
    device const float* own = x + ulong(token) * p.cols;
    float square = 0.0f;
    for (uint i = tid; i < p.cols; i += threads) {
        const float small = own[i] * SMALL;
        square += small * small;
        rows[ulong(token) * p.cols + i] = WITH_NORM != 0 ? own[i] * norm[i] : own[i];
    }
    square = group_sum(square, scratch, lane, simd, simds);
    const float scale = SMALL * precise::rsqrt(square / float(p.cols) + p.eps * (SMALL * SMALL));
    if (tid == 0) scales[token] = WITH_NORM != 0 ? scale : 1.0f;
}

// Levels as numbers.
METAL_FUNC uint2 scaled(uint2 levels, float scale, float offset) {
    const float4 numbers = fma(float4(halves(levels.x), halves(levels.y)), float4(scale), float4(-offset));
    return uint2(two_halfs(numbers.xy), two_halfs(numbers.zw));
}

// 16 rows and 64 columns of a matrix in cells, by a simdgroup; `cells.metal` says which lane has what.
kernel void library_cells(
    constant CellRowsParams& p [[buffer(0)]], device const uchar* w [[buffer(1)]], device uint2* out [[buffer(2)]],
    uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    const uint cells = (p.cols + CELL_COLS - 1) / CELL_COLS, cell = group.x * simds + simd;
    if (cell >= cells) return;
    const uint row = group.y * CELL_ROWS + lane / 4, col = cell * CELL_COLS + lane % 4 * 4;
#define UNPACK(KIND) { \
        typedef Cells##KIND W; \
        W a; \
        a.load(w + group.y * W::bytes(cells), cells, cell, lane); \
        UNROLL for (uint i = 0; i < 4; i++) { \
            const uint4 levels = a.levels(i); \
            const float2 scale = a.scale(i), offset = a.offset(i); \
            UNROLL for (uint h = 0; h < 2; h++) { \
                const uint2 pairs = h == 0 ? levels.xz : levels.yw; \
                const uint2 done = W::SCALED == 0 ? pairs : scaled(pairs, scale[h], offset[h]); \
                if (row + 8 * h < p.rows && col + 16 * i < p.cols) out[(ulong(row + 8 * h) * p.cols + col + 16 * i) / 4] = done; \
            } \
        } \
    }
    FOR_CELL_TYPE(CELL_TYPE, UNPACK)
#undef UNPACK
}

// Products of tokens with the rows of all matrices side by side, to what was asked for.
kernel void library_finish(
    constant ProjectParams& p [[buffer(0)]], device const float* products [[buffer(1)]], device const float* scales [[buffer(2)]],
    device const float* bias0 [[buffer(3)]], device const float* bias1 [[buffer(4)]], device const float* bias2 [[buffer(5)]],
    device const float* residual [[buffer(6)]], device float* out [[buffer(7)]], uint2 at [[thread_position_in_grid]]
) {
    const uint all = p.rows0 + p.rows1 + p.rows2, width = WITH_GATE != 0 ? p.rows0 : all;
    if (at.x >= width || at.y >= p.tokens) return;
    const float scale = scales[at.y];
    device const float* own = products + ulong(at.y) * all;
    const ulong to = ulong(at.y) * width + at.x;
    float v = own[at.x] * scale;
    if (WITH_BIAS != 0) {
        const uint second = at.x - p.rows0;
        v += at.x < p.rows0 ? bias0[at.x] : second < p.rows1 ? bias1[second] : bias2[second - p.rows1];
    }
    if (WITH_GATE != 0) {
        float gated = own[p.rows0 + at.x] * scale;
        if (WITH_BIAS != 0) gated += bias1[at.x];
        v = activate(GATE, v) * gated;
    }
    if (WITH_RESIDUAL != 0) v += residual[to];
    out[to] = v;
}
