// Brings the splits of a row of attention together: one threadgroup per head and token. Its rows of threads have a few splits each, which they read at
// a time; every simdgroup has the softmaxes of all of them.

// Threads that bring splits together.
constant constexpr uint MOST_MERGING = 512;

kernel void attention_merge(
    constant MergeParams& p [[buffer(0)]], device const float* sums [[buffer(1)]],
    device const float2* stats [[buffer(2)]], device const float* sinks [[buffer(3)]], device float* out [[buffer(4)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 place [[thread_position_in_threadgroup]],
    uint2 size [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    constexpr uint TOGETHER = 8;
    threadgroup float meet[MOST_MERGING];
    const ulong row = ulong(at.y) * p.heads + at.x;
    sums += row * p.splits * HEAD_DIM;
    stats += row * p.splits;
    wait_for_earlier();
    // What the first splits have comes while their softmaxes do.
    const uint own = place.y * TOGETHER;
    float parts[TOGETHER];
    UNROLL for (uint k = 0; k < TOGETHER; k++)
        parts[k] = own + k < p.splits ? sums[(own + k) * HEAD_DIM + min(place.x, HEAD_DIM - 1)] : 0.0f;
    float high = LOWEST, total = 0.0f;
    for (uint s = lane; s < p.splits; s += SIMD) high = max(high, stats[s].x);
    high = simd_max(high);
    if (SINKS) high = max(high, sinks[at.x]);
    for (uint s = lane; s < p.splits; s += SIMD) total += stats[s].y * precise::exp(stats[s].x - high);
    total = simd_sum(total);
    if (SINKS) total += precise::exp(sinks[at.x] - high);
    const float unit = inverse_or_zero(total);
    // Every lane comes along, also past the last dimension.
    for (uint first = 0; first < HEAD_DIM; first += size.x) {
        const uint i = first + place.x, dim = min(i, HEAD_DIM - 1);
        float sum = 0.0f;
        for (uint base = own; base < p.splits; base += TOGETHER * size.y) {
            const uint split = base + lane % TOGETHER;
            const float share = split < p.splits ? precise::exp(stats[split].x - high) : 0.0f;
            if (first > 0 || base > own) {
                UNROLL for (uint k = 0; k < TOGETHER; k++)
                    parts[k] = base + k < p.splits ? sums[(base + k) * HEAD_DIM + dim] : 0.0f;
            }
            UNROLL for (uint k = 0; k < TOGETHER; k++) sum += parts[k] * simd_shuffle(share, ushort(k));
        }
        meet[place.y * size.x + place.x] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (place.y == 0 && i < HEAD_DIM) {
            for (uint y = 1; y < size.y; y++) sum += meet[y * size.x + place.x];
            out[row * HEAD_DIM + i] = sum * unit;
        }
        // What was added up is read before it is written over.
        if (first + size.x < HEAD_DIM) threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
