// The way into attention: queries, keys and values of up to T tokens, rotated where they are made. Queries are returned, keys
// and values go to the cache. Its elements stand alone: the scale of a block of Q8_0 takes more rows than a simdgroup has.

// Elements of a head that are rotated together come one after the other. A head has an even number.
struct ByPairs {
    uint pairs;
    uint end;

    uint row(uint slot) const {
        slot = min(slot, end - 1);
        if (INTERLEAVED != 0) return slot;
        const uint i = slot % HEAD_DIM;
        return i < 2 * pairs ? slot - i + i / 2 + (i % 2) * pairs : slot;
    }
};

template <uint T>
kernel void qkv(
    constant ProjectParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device const uchar* w0 [[buffer(3)]], device const uchar* w1 [[buffer(4)]], device const uchar* w2 [[buffer(5)]],
    device const float* bias0 [[buffer(6)]], device const float* bias1 [[buffer(7)]],
    device const float* bias2 [[buffer(8)]], device const uint* positions [[buffer(9)]],
    device const float* freqs [[buffer(10)]], device const uint2* rows [[buffer(11)]],
    device const uint* blocks [[buffer(12)]], device float* out [[buffer(13)]], device uchar* keys [[buffer(14)]],
    device uchar* values [[buffer(15)]], threadgroup float4* shared [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    const uint token = group.y * T;
    const Vectors v = {x + ulong(token) * p.cols, norm, min(uint(T), p.tokens - token), WITH_NORM != 0};
    const Matrices m = {w0, w1, w2, bias0, bias1, bias2};
    threadgroup float* parts = (threadgroup float*)shared + simd * parts_of_simd<T>(p);
    const Tile tile = tile_of(p, group.x * simds + simd, p.blocks * ROWS, 3);
    if (tile.places.y == 0) return;
    const ByPairs order = {p.pairs, rows_of(p, tile.part)};
    tile_dots<T>(p, v, m, order, tile, lane, parts);
    device const float* bias = m.bias_of(tile.part);
    for (uint i = lane; i < tile.places.y / 2 * T; i += SIMD) {
        const uint r = i / T * 2, t = i % T;
        if (t >= v.tokens) continue;
        const uint slot = tile.places.x + r, a = order.row(slot), b = order.row(slot + 1);
        const float scale = norm_scale<T>(p, parts, t);
        float one = gathered(parts + (r * T + t) * PITCH) * scale;
        float two = gathered(parts + ((r + 1) * T + t) * PITCH) * scale;
        if (WITH_BIAS != 0) {
            one += bias[a];
            two += bias[b];
        }
        const uint pair = slot % HEAD_DIM / 2;
        if (tile.part < 2 && pair < p.pairs) {
            const float2 cs = turn(positions[token + t], freqs[pair]);
            const float turned = rotated(one, two, 0, uint2(0, 1), cs, p.magnitude);
            two = rotated(one, two, 1, uint2(0, 1), cs, p.magnitude);
            one = turned;
        }
        if (tile.part == 0) {
            device float* queries = out + ulong(token + t) * p.rows0;
            queries[a] = one;
            queries[b] = two;
        } else {
            const uint kv_heads = p.rows1 / HEAD_DIM;
            device uchar* cache = tile.part == 1 ? keys : values;
            device uchar* row = cache + kv_row(rows, blocks, token + t, slot / HEAD_DIM, kv_heads);
            kv_put(row, a % HEAD_DIM, one);
            kv_put(row, b % HEAD_DIM, two);
        }
    }
}

KERNEL("qkv_1", qkv<1>)
KERNEL("qkv_2", qkv<2>)
KERNEL("qkv_4", qkv<4>)
KERNEL("qkv_8", qkv<8>)
