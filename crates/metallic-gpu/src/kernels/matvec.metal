// Up to three matrices times the vectors of tokens. A row of threadgroups has up to T tokens.

template <uint T>
kernel void matvec(
    constant ProjectParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device const uchar* w0 [[buffer(3)]], device const uchar* w1 [[buffer(4)]], device const uchar* w2 [[buffer(5)]],
    device const float* bias0 [[buffer(6)]], device const float* bias1 [[buffer(7)]],
    device const float* bias2 [[buffer(8)]], device const float* residual [[buffer(9)]], device float* out [[buffer(10)]],
    threadgroup float4* shared [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]
) {
    const uint token = group.y * T;
    Vectors v = {x + ulong(token) * p.cols, norm, min(uint(T), p.tokens - token), WITH_NORM != 0};
    const Matrices m = {w0, w1, w2, bias0, bias1, bias2};
    const uint width = WITH_GATE != 0 ? p.rows0 : p.rows0 + p.rows1 + p.rows2;
    const uint room = parts_of_simd<T>(p) + (WITH_GATE != 0 ? p.blocks * ROWS * T : 0);
    threadgroup float* parts = (threadgroup float*)shared + simd * room;
    Tile tile = tile_of(p, group.x * simds + simd, p.blocks * ROWS, WITH_GATE != 0 ? 1 : 3);
    const uint row = tile.places.x, count = tile.places.y;
    if (count == 0) return;
    const InOrder order = {rows_of(p, tile.part)};
    // What the gate lets through, [count, T], behind the parts.
    threadgroup float* gates = parts + parts_of_simd<T>(p);
    if (WITH_GATE != 0) {
        tile_dots<T>(p, v, m, order, tile, lane, parts);
        for (uint i = lane; i < count * T; i += SIMD) {
            float y = gathered(parts + i * PITCH) * norm_scale<T>(p, parts, i % T);
            if (WITH_BIAS != 0) y += m.bias0[row + i / T];
            gates[i] = activate(GATE, y);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        v.squares = false;
        tile.part = 1;
    }
    tile_dots<T>(p, v, m, order, tile, lane, parts);
    device const float* bias = m.bias_of(tile.part);
    for (uint i = lane; i < count * T; i += SIMD) {
        const uint r = i / T, t = i % T;
        if (t >= v.tokens) continue;
        float y = gathered(parts + i * PITCH) * norm_scale<T>(p, parts, t);
        if (WITH_BIAS != 0) y += bias[row + r];
        if (WITH_GATE != 0) y *= gates[i];
        const ulong to = ulong(token + t) * width + tile.before + row + r;
        if (WITH_RESIDUAL != 0) y += residual[to];
        out[to] = y;
    }
}

KERNEL("matvec_1", matvec<1>)
KERNEL("matvec_2", matvec<2>)
KERNEL("matvec_4", matvec<4>)
KERNEL("matvec_8", matvec<8>)
