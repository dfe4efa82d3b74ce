// Attention of few query tokens over short rows of a cache of halfs, where there are cores enough for every query head: a threadgroup
// serves one token and one of them, its simdgroups take parts of cache blocks in turn. All that a simdgroup needs of a part is under way
// at once: what takes time here is the way to the memory, not how much there is of it.
//
// A lane has eight dimensions, and as many lanes as a head needs have a key: with 128 dimensions 16 lanes a key and two keys a load. A
// simdgroup takes a part of a block at a time, so that its code is short: it is read from memory too. Rows that were there before this
// step are asked for before the kernels before are done.

constant uint EIGHTHS = HEAD_DIM / 8;
constant constexpr uint LOADS = 4;
// Keys of a load, and of a part.
constant uint TOGETHER = SIMD / EIGHTHS;
constant uint PART = LOADS * TOGETHER;
// Lanes that have the same score in the end.
constant uint ALIKE = EIGHTHS / LOADS;

METAL_FUNC float dot8(uint4 halfs, float4 a, float4 b) {
    const float4 near = float4(as_type<half4>(halfs.xy)), far = float4(as_type<half4>(halfs.zw));
    const float4 sums = fma(far, b, near * a);
    return (sums.x + sums.y) + (sums.z + sums.w);
}

// Keys and values of a part of a block; zeros for those that do not count: what nobody wrote is no number.
struct Rows {
    device const uchar* keys;
    device const uchar* values;
    device const uint* blocks;
    uint head, heads;
    uint4 k[LOADS], v[LOADS];

    METAL_FUNC void clear() {
        UNROLL for (uint i = 0; i < LOADS; i++) k[i] = v[i] = uint4(0);
    }
    // Those that are in `span`.
    METAL_FUNC void load(uint part, uint2 span, uint lane) {
        const uint begin = part * PART;
        const ulong start = kv_block_start(blocks[begin / BLOCK_TOKENS], head, heads) + begin % BLOCK_TOKENS * (HEAD_DIM * 2) + lane * 16;
        UNROLL for (uint i = 0; i < LOADS; i++) {
            const uint key = begin + i * TOGETHER + lane / EIGHTHS;
            if (key < span.x || key >= span.y) continue;
            k[i] = *(device const uint4*)(keys + start + i * 512);
            v[i] = *(device const uint4*)(values + start + i * 512);
        }
    }
};

[[kernel, max_total_threads_per_threadgroup(512)]] void attention_head(
    constant AttentionParams& p [[buffer(0)]], device const float* q [[buffer(1)]],
    device const uchar* keys [[buffer(2)]], device const uchar* values [[buffer(3)]],
    device const uint2* rows [[buffer(4)]], device const uint* blocks [[buffer(5)]],
    device const float* sinks [[buffer(6)]], device float* out [[buffer(7)]],
    threadgroup float* shared [[threadgroup(0)]], uint2 at [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
    // at.x: query head; at.y: token.
    const uint head = at.x, kv_head = head / (p.heads / p.kv_heads);
    const uint2 row = rows[at.y];
    const uint end = row.y, begin = window_begin(end, p.window);
    const uint first = begin / PART + simd, last = (end + PART - 1) / PART;
    const uint eighth = lane % EIGHTHS, own = lane / EIGHTHS;
    // What this step writes is among the last rows, as many as it has tokens.
    const uint sure = end - min(end, groups.y);
    Rows now = {keys, values, blocks + row.x, kv_head, p.kv_heads, {}, {}};
    now.clear();
    if (first < last) now.load(first, uint2(begin, sure), lane);
    wait_for_earlier();

    device const float4* query = (device const float4*)(q + (ulong(at.y) * p.heads + head) * HEAD_DIM) + 2 * eighth;
    const float4 a = query[0], b = query[1];
    if (first < last && (first + 1) * PART > sure) now.load(first, uint2(max(begin, sure), end), lane);
    float top = LOWEST, total = 0.0f;
    float4 sums[2] = {float4(0.0f), float4(0.0f)};
    ROLLED for (uint part = first; part < last; part += simds) {
        float scores[LOADS];
        UNROLL for (uint i = 0; i < LOADS; i++) scores[i] = dot8(now.k[i], a, b);
        // Each step halves the loads that a lane goes on with, and the lanes that have parts of them; those that are left have all of it.
        UNROLL for (uint half_way = LOADS / 2; half_way > 0; half_way /= 2) {
            const bool upper = (eighth & half_way * ALIKE) != 0;
            UNROLL for (uint i = 0; i < LOADS / 2; i++) {
                if (i >= half_way) continue;
                const float keep = upper ? scores[i + half_way] : scores[i], give = upper ? scores[i] : scores[i + half_way];
                scores[i] = keep + simd_shuffle_xor(give, ushort(half_way * ALIKE));
            }
        }
        UNROLL for (uint step = 2; step > 0; step /= 2) {
            if (step < ALIKE) scores[0] += simd_shuffle_xor(scores[0], ushort(step));
        }
        const uint key = part * PART + eighth / ALIKE * TOGETHER + own;
        const bool live = key >= begin && key < end;
        const float score = live ? capped(scores[0] * p.scale, p.softcap) : LOWEST;
        const float high = max(top, simd_max(score));
        const float fade = precise::exp(top - high);
        const float weight = live ? precise::exp(score - high) : 0.0f;
        top = high;
        total = total * fade + (eighth % ALIKE == 0 ? weight : 0.0f);
        sums[0] *= fade;
        sums[1] *= fade;
        UNROLL for (uint i = 0; i < LOADS; i++) {
            const float w = simd_shuffle(weight, ushort(own * EIGHTHS + i * ALIKE));
            sums[0] = fma(float4(w), float4(as_type<half4>(now.v[i].xy)), sums[0]);
            sums[1] = fma(float4(w), float4(as_type<half4>(now.v[i].zw)), sums[1]);
        }
        now.clear();
        if (part + simds < last) now.load(part + simds, uint2(begin, end), lane);
    }
    total = simd_sum(total);
    UNROLL for (uint step = 16; step >= 8; step /= 2) {
        if (step < EIGHTHS) continue;
        UNROLL for (uint i = 0; i < 2; i++) sums[i] += simd_shuffle_xor(sums[i], ushort(step));
    }

    // The simdgroups' greatest scores and sums, then what each has of the values.
    threadgroup float2* softmaxes = (threadgroup float2*)shared;
    threadgroup float4* parts = (threadgroup float4*)(shared + (2 * simds + 3) / 4 * 4);
    if (lane == 0) softmaxes[simd] = float2(top, total);
    if (own == 0) {
        parts[(simd * EIGHTHS + eighth) * 2] = sums[0];
        parts[(simd * EIGHTHS + eighth) * 2 + 1] = sums[1];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // A lane has a simdgroup's: there are no more of them.
    const float2 softmax = lane < simds ? softmaxes[lane] : float2(LOWEST, 0.0f);
    float high = simd_max(softmax.x);
    if (SINKS) high = max(high, sinks[head]);
    const float share = precise::exp(softmax.x - high);
    float sum = simd_sum(softmax.y * share);
    if (SINKS) sum += precise::exp(sinks[head] - high);
    const float unit = inverse_or_zero(sum);
    // Whole simdgroups come along: lanes have the shares.
    for (uint i = tid; i < HEAD_DIM; i += simds * SIMD) {
        float y = 0.0f;
        _Pragma("clang loop unroll_count(4)")
        for (uint s = 0; s < simds; s++) y += ((threadgroup const float*)parts)[s * HEAD_DIM + i] * simd_shuffle(share, ushort(s));
        out[(ulong(at.y) * p.heads + head) * HEAD_DIM + i] = y * unit;
    }
}
