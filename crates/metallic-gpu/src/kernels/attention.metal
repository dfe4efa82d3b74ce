// Flash attention for few query tokens: one pass over keys and values with a running softmax. A threadgroup serves one token
// and the query heads of one key/value head, so that each key and value is read once. Its simdgroups take cache blocks in
// turn; a lane has one key of a block for the scores and a few dimensions of a head for the values.

// The largest of each number over a simdgroup; every lane gets it.
template <uint H>
inline void simd_max_each(thread float* x) {
    UNROLL for (uint h = 0; h < H; h += 4) {
        const float4 top = simd_max(float4(
            x[h], h + 1 < H ? x[h + 1] : LOWEST, h + 2 < H ? x[h + 2] : LOWEST, h + 3 < H ? x[h + 3] : LOWEST));
        UNROLL for (uint i = 0; i < 4; i++)
            if (h + i < H) x[h + i] = top[i];
    }
}

// The sum of each number over a simdgroup; every lane gets it.
template <uint H>
inline void simd_sum_each(thread float* x) {
    UNROLL for (uint h = 0; h < H; h += 4) {
        const float4 sum = simd_sum(float4(
            x[h], h + 1 < H ? x[h + 1] : 0.0f, h + 2 < H ? x[h + 2] : 0.0f, h + 3 < H ? x[h + 3] : 0.0f));
        UNROLL for (uint i = 0; i < 4; i++)
            if (h + i < H) x[h + i] = sum[i];
    }
}

// Loads of keys and values that are under way at a time: a simdgroup has few of them.
constant constexpr uint AT_ONCE = 4;

// Scores of one key with the queries of `H` heads, which lie one after another in `q`.
template <uint H, bool WIDE>
inline void key_scores(device const uchar* key, threadgroup const float* q, thread float* scores) {
    if (WIDE) {
        threadgroup const float4* q4 = (threadgroup const float4*)q;
        float4 sums[H];
        UNROLL for (uint h = 0; h < H; h++) sums[h] = float4(0.0f);
        ROLLED for (uint first = 0; first < HEAD_DIM; first += 8 * AT_ONCE) {
            float4 a[AT_ONCE], b[AT_ONCE];
            UNROLL for (uint u = 0; u < AT_ONCE; u++)
                if (first + 8 * u < HEAD_DIM) kv_load8(key, first + 8 * u, a[u], b[u]);
            UNROLL for (uint u = 0; u < AT_ONCE; u++) {
                if (first + 8 * u >= HEAD_DIM) continue;
                UNROLL for (uint h = 0; h < H; h++) {
                    const uint at = (h * HEAD_DIM + first) / 4 + 2 * u;
                    sums[h] = fma(b[u], q4[at + 1], fma(a[u], q4[at], sums[h]));
                }
            }
        }
        UNROLL for (uint h = 0; h < H; h++) scores[h] = (sums[h].x + sums[h].y) + (sums[h].z + sums[h].w);
    } else {
        UNROLL for (uint h = 0; h < H; h++) scores[h] = 0.0f;
        for (uint i = 0; i < HEAD_DIM; i++) {
            const float k = kv_load1(key, i);
            UNROLL for (uint h = 0; h < H; h++) scores[h] = fma(k, q[h * HEAD_DIM + i], scores[h]);
        }
    }
}

// How the lanes of a simdgroup share the dimensions of a value. WIDE: a lane has four neighbours, and where a head is short
// several groups of lanes take keys in turn; a long head gives a lane four more. Otherwise every 32nd dimension.
template <bool WIDE>
struct Lanes {
    uint first, group, groups;
    Lanes(uint lane) {
        const uint quads = HEAD_DIM / 4;
        groups = WIDE && quads < SIMD ? SIMD / quads : 1;
        group = WIDE && quads < SIMD ? lane / quads : 0;
        first = WIDE ? 4 * (quads < SIMD ? lane % quads : lane) : lane;
    }
};

// Adds `weights[h][key] * value[key]` of the keys `from .. to` of a block.
template <uint H, bool WIDE>
inline void add_values(
    device const uchar* values, threadgroup const float* weights, uint2 range, Lanes<WIDE> lanes, thread float4* sums
) {
    if (lanes.group >= lanes.groups) return;
    const uint bytes = kv_row_bytes();
    if (WIDE) {
        ROLLED for (uint first = range.x + lanes.group; first < range.y; first += AT_ONCE * lanes.groups) {
            UNROLL for (uint part = 0; part < 2; part++) {
                const uint dim = lanes.first + 128 * part;
                if (dim >= HEAD_DIM) continue;
                float4 v[AT_ONCE];
                UNROLL for (uint u = 0; u < AT_ONCE; u++) {
                    const uint k = first + u * lanes.groups;
                    v[u] = k < range.y ? kv_load4(values + k * bytes, dim) : float4(0.0f);
                }
                UNROLL for (uint u = 0; u < AT_ONCE; u++) {
                    const uint k = min(first + u * lanes.groups, SIMD - 1);
                    UNROLL for (uint h = 0; h < H; h++)
                        sums[2 * h + part] = fma(float4(weights[h * SIMD + k]), v[u], sums[2 * h + part]);
                }
            }
        }
    } else {
        for (uint k = range.x + lanes.group; k < range.y; k += lanes.groups) {
            device const uchar* value = values + k * bytes;
            UNROLL for (uint j = 0; j < 8; j++) {
                if (32 * j + lanes.first >= HEAD_DIM) continue;
                const float v = kv_load1(value, 32 * j + lanes.first);
                UNROLL for (uint h = 0; h < H; h++)
                    sums[2 * h + j / 4][j % 4] = fma(weights[h * SIMD + k], v, sums[2 * h + j / 4][j % 4]);
            }
        }
    }
}

template <uint H, bool WIDE>
[[kernel, max_total_threads_per_threadgroup(256)]] void attend(
    constant AttentionParams& p [[buffer(0)]], device const float* q [[buffer(1)]],
    device const uchar* keys [[buffer(2)]], device const uchar* values [[buffer(3)]],
    device const uint2* rows [[buffer(4)]], device const uint* blocks [[buffer(5)]],
    device const float* sinks [[buffer(6)]], device float* out [[buffer(7)]], device float2* stats [[buffer(8)]],
    threadgroup float* shared [[threadgroup(0)]], uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    // at.x: a key/value head and a part of its query heads; at.y: token; at.z: split.
    const uint per_kv = p.heads / p.kv_heads;
    const uint parts = (per_kv + p.part - 1) / p.part;
    const uint kv_head = at.x / parts, part = at.x % parts;
    const uint head = kv_head * per_kv + part * p.part;
    const uint count = min(p.part, per_kv - part * p.part);
    const uint threads = simds * SIMD;

    // Floats of threadgroup memory: largest score and sum of each simdgroup and head, its weight in the end; then queries
    // and two turns of softmax weights, and in their place at last the sums of the values.
    threadgroup float* tops = shared;
    threadgroup float* totals = tops + simds * H;
    threadgroup float* shares = totals + simds * H;
    threadgroup float* queries = shared + (3 * simds * H + 3) / 4 * 4;
    threadgroup float* weights = queries + H * HEAD_DIM + 2 * simd * H * SIMD;

    device const float* own = q + (ulong(at.y) * p.heads + head) * HEAD_DIM;
    for (uint i = tid; i < H * HEAD_DIM; i += threads) queries[i] = i < count * HEAD_DIM ? own[i] * p.scale : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    const uint2 row = rows[at.y];
    const uint end = row.y, begin = window_begin(end, p.window);
    const uint first = begin / BLOCK_TOKENS + at.z * p.span;
    const uint last = min((end + BLOCK_TOKENS - 1) / BLOCK_TOKENS, first + p.span);
    const Lanes<WIDE> lanes(lane);
    float top[H], total[H];
    float4 sums[2 * H];
    UNROLL for (uint h = 0; h < H; h++) {
        top[h] = LOWEST;
        total[h] = 0.0f;
        sums[2 * h] = sums[2 * h + 1] = float4(0.0f);
    }
    uint turn = 0;
    for (uint b = first + simd; b < last; b += simds) {
        const ulong start = kv_block_start(blocks[row.x + b], kv_head, p.kv_heads);
        const uint index = b * BLOCK_TOKENS + lane;
        const bool seen = index >= begin && index < end;
        float scores[H], tall[H];
        UNROLL for (uint h = 0; h < H; h++) scores[h] = LOWEST;
        if (seen) {
            key_scores<H, WIDE>(keys + start + lane * kv_row_bytes(), queries, scores);
            UNROLL for (uint h = 0; h < H; h++) scores[h] = capped(scores[h], p.softcap);
        }
        UNROLL for (uint h = 0; h < H; h++) tall[h] = scores[h];
        simd_max_each<H>(tall);
        threadgroup float* own_weights = weights + turn * H * SIMD;
        UNROLL for (uint h = 0; h < H; h++) {
            const float high = max(top[h], tall[h]);
            const float fade = precise::exp(top[h] - high);
            const float weight = seen ? precise::exp(scores[h] - high) : 0.0f;
            top[h] = high;
            total[h] = total[h] * fade + weight;
            sums[2 * h] *= fade;
            sums[2 * h + 1] *= fade;
            own_weights[h * SIMD + lane] = weight;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const uint base = b * BLOCK_TOKENS;
        const uint2 range(begin > base ? begin - base : 0, min(BLOCK_TOKENS, end - base));
        add_values<H, WIDE>(values + start, own_weights, range, lanes, sums);
        // The other half is free: everyone has passed the barrier since it was read.
        turn ^= 1;
    }
    simd_sum_each<H>(total);
    if (lane == 0) {
        UNROLL for (uint h = 0; h < H; h++) {
            tops[simd * H + h] = top[h];
            totals[simd * H + h] = total[h];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const bool whole = p.splits == 1;
    if (tid < simds * H && tid % H < count) {
        const uint h = tid % H;
        float high = LOWEST;
        for (uint s = 0; s < simds; s++) high = max(high, tops[s * H + h]);
        if (whole && SINKS) high = max(high, sinks[head + h]);
        float sum = whole && SINKS ? precise::exp(sinks[head + h] - high) : 0.0f;
        for (uint s = 0; s < simds; s++) sum += totals[s * H + h] * precise::exp(tops[s * H + h] - high);
        shares[tid] = precise::exp(tops[tid] - high) * (whole ? inverse_or_zero(sum) : 1.0f);
        if (!whole && tid < H) stats[(ulong(at.y) * p.heads + head + h) * p.splits + at.z] = float2(high, sum);
    }
    // The sums of `p.round` heads at a time, so many as there is room for.
    threadgroup float* work = queries;
    const uint copies = simds * lanes.groups;
    for (uint h0 = 0; h0 < count; h0 += p.round) {
        const uint now = min(p.round, count - h0);
        if (h0 > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
        if (lanes.group < lanes.groups) {
            threadgroup float* mine = work + (simd * lanes.groups + lanes.group) * now * HEAD_DIM;
            UNROLL for (uint h = 0; h < H; h++) {
                if (h < h0 || h >= h0 + now) continue;
                threadgroup float* to = mine + (h - h0) * HEAD_DIM;
                UNROLL for (uint j = 0; j < 8; j++) {
                    const uint i = lanes.first + (WIDE ? j / 4 * 128 + j % 4 : j * 32);
                    if (i < HEAD_DIM) to[i] = sums[2 * h + j / 4][j % 4];
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < now * HEAD_DIM; i += threads) {
            const uint h = h0 + i / HEAD_DIM;
            float sum = 0.0f;
            for (uint c = 0; c < copies; c++) sum += work[c * now * HEAD_DIM + i] * shares[c / lanes.groups * H + h];
            const ulong to = whole ? ulong(at.y) * p.heads + head + h
                                   : (ulong(at.y) * p.heads + head + h) * p.splits + at.z;
            out[to * HEAD_DIM + i % HEAD_DIM] = sum;
        }
    }
}

KERNEL("attention_decode_1", attend<1, true>)
KERNEL("attention_decode_2", attend<2, true>)
KERNEL("attention_decode_3", attend<3, true>)
KERNEL("attention_decode_4", attend<4, true>)
KERNEL("attention_decode_6", attend<6, true>)
KERNEL("attention_decode_8", attend<8, true>)
KERNEL("attention_decode_odd_1", attend<1, false>)
KERNEL("attention_decode_odd_4", attend<4, false>)
