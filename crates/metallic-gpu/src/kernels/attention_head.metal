// Attention of few query tokens over short rows of a cache of halfs, where there are cores enough for every query head: a threadgroup
// serves one token and one of them, its simdgroups take cache blocks in turn. All that a simdgroup needs of a block is under way at
// once: what takes time here is the way to the memory, not how much there is of it.
//
// A lane has eight dimensions, and as many lanes as a head needs have a key: with 128 dimensions 16 lanes a key, two keys a load, and 16
// loads a block. The scores of a block come out one to a lane.

constant uint EIGHTHS = HEAD_DIM / 8;
constant constexpr uint MOST_LOADS = 16;

METAL_FUNC float dot8(uint4 halfs, float4 a, float4 b) {
    const float4 near = float4(as_type<half4>(halfs.xy)), far = float4(as_type<half4>(halfs.zw));
    const float4 sums = fma(far, b, near * a);
    return (sums.x + sums.y) + (sums.z + sums.w);
}

[[kernel, max_total_threads_per_threadgroup(256)]] void attention_head(
    constant AttentionParams& p [[buffer(0)]], device const float* q [[buffer(1)]],
    device const uchar* keys [[buffer(2)]], device const uchar* values [[buffer(3)]],
    device const uint2* rows [[buffer(4)]], device const uint* blocks [[buffer(5)]],
    device const float* sinks [[buffer(6)]], device float* out [[buffer(7)]],
    threadgroup float* shared [[threadgroup(0)]], uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    // at.x: query head; at.y: token.
    const uint head = at.x, kv_head = head / (p.heads / p.kv_heads);
    const uint2 row = rows[at.y];
    const uint end = row.y, begin = window_begin(end, p.window);
    const uint first = begin / BLOCK_TOKENS, last = (end + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    const uint eighth = lane % EIGHTHS, own = lane / EIGHTHS, together = SIMD / EIGHTHS;
    uint block = first + simd < last ? blocks[row.x + first + simd] : 0;
    wait_for_earlier();

    device const float4* query = (device const float4*)(q + (ulong(at.y) * p.heads + head) * HEAD_DIM) + 2 * eighth;
    float4 a = query[0], b = query[1];
    float top = LOWEST, total = 0.0f;
    float4 sums[2] = {float4(0.0f), float4(0.0f)};
    ROLLED for (uint index = first + simd; index < last; index += simds) {
        const ulong start = kv_block_start(block, kv_head, p.kv_heads) + lane * 16;
        const uint base = index * BLOCK_TOKENS, seen = min(BLOCK_TOKENS, end - base);
        uint4 k[MOST_LOADS], v[MOST_LOADS];
        // What nobody wrote is no number.
        UNROLL for (uint i = 0; i < MOST_LOADS; i++) {
            if (i >= EIGHTHS) continue;
            k[i] = i * together + own < seen ? *(device const uint4*)(keys + start + i * 512) : uint4(0);
        }
        UNROLL for (uint i = 0; i < MOST_LOADS; i++) {
            if (i >= EIGHTHS) continue;
            const uint key = i * together + own;
            v[i] = key < seen && base + key >= begin ? *(device const uint4*)(values + start + i * 512) : uint4(0);
        }
        if (index + simds < last) block = blocks[row.x + index + simds];
        float scores[MOST_LOADS];
        UNROLL for (uint i = 0; i < MOST_LOADS; i++) scores[i] = i < EIGHTHS ? dot8(k[i], a, b) : 0.0f;
        // Each step halves the loads that a lane goes on with, and the lanes that have parts of them: in the end a lane has the load
        // of its own number.
        UNROLL for (uint half_way = MOST_LOADS / 2; half_way > 0; half_way /= 2) {
            if (half_way >= EIGHTHS) continue;
            const bool upper = (eighth & half_way) != 0;
            UNROLL for (uint i = 0; i < MOST_LOADS / 2; i++) {
                if (i >= half_way) continue;
                const float keep = upper ? scores[i + half_way] : scores[i], give = upper ? scores[i] : scores[i + half_way];
                scores[i] = keep + simd_shuffle_xor(give, ushort(half_way));
            }
        }
        const uint key = base + eighth * together + own;
        const bool live = key >= begin && key < end;
        const float score = live ? capped(scores[0] * p.scale, p.softcap) : LOWEST;
        const float high = max(top, simd_max(score));
        const float fade = precise::exp(top - high);
        const float weight = live ? precise::exp(score - high) : 0.0f;
        top = high;
        total = total * fade + weight;
        sums[0] *= fade;
        sums[1] *= fade;
        UNROLL for (uint i = 0; i < MOST_LOADS; i++) {
            if (i >= EIGHTHS) continue;
            const float w = simd_shuffle(weight, ushort(own * EIGHTHS + i));
            sums[0] = fma(float4(w), float4(as_type<half4>(v[i].xy)), sums[0]);
            sums[1] = fma(float4(w), float4(as_type<half4>(v[i].zw)), sums[1]);
        }
    }
    total = simd_sum(total);
    UNROLL for (uint step = MOST_LOADS; step >= 8; step /= 2) {
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
    float high = SINKS ? sinks[head] : LOWEST, sum = 0.0f;
    ROLLED for (uint s = 0; s < simds; s++) high = max(high, softmaxes[s].x);
    if (SINKS) sum = precise::exp(sinks[head] - high);
    ROLLED for (uint s = 0; s < simds; s++) sum += softmaxes[s].y * precise::exp(softmaxes[s].x - high);
    const float unit = inverse_or_zero(sum);
    for (uint i = tid; i < HEAD_DIM; i += simds * SIMD) {
        float y = 0.0f;
        ROLLED for (uint s = 0; s < simds; s++)
            y += ((threadgroup const float*)parts)[s * HEAD_DIM + i] * precise::exp(softmaxes[s].x - high);
        out[(ulong(at.y) * p.heads + head) * HEAD_DIM + i] = y * unit;
    }
}
