// Attention over keys and values that are given: one threadgroup per head and query, a running softmax over its keys. A lane
// has one key for the scores and every 32nd dimension for the values.

// Queries are the last of the sequence and see nothing past themselves.
constant uint CAUSAL [[function_constant(1)]];

template <typename T>
[[kernel, max_total_threads_per_threadgroup(256)]] void sdpa(
    constant SdpaParams& p [[buffer(0)]], device const T* q [[buffer(1)]], device const T* k [[buffer(2)]],
    device const T* v [[buffer(3)]], device const float* sinks [[buffer(4)]], device T* out [[buffer(5)]],
    threadgroup float* shared [[threadgroup(0)]], uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    const uint head = at.x, kv_head = head / p.per_kv, threads = simds * SIMD;
    q += (ulong(head) * p.queries + at.y) * p.dim;
    k += ulong(kv_head) * p.keys * p.dim;
    v += ulong(kv_head) * p.keys * p.dim;
    out += (ulong(head) * p.queries + at.y) * p.dim;
    // Floats: the query, the sums of each simdgroup, its softmax weights, its largest score and total.
    threadgroup float* query = shared;
    threadgroup float* sums = query + p.dim;
    threadgroup float* weights = sums + simds * p.dim + simd * SIMD;
    threadgroup float* tops = sums + simds * (p.dim + SIMD);
    threadgroup float* totals = tops + simds;
    for (uint i = tid; i < p.dim; i += threads) query[i] = float(q[i]) * p.scale;
    threadgroup float* own = sums + simd * p.dim;
    for (uint i = lane; i < p.dim; i += SIMD) own[i] = 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Query i of m stands at i + n - m, before the first key where there are fewer keys.
    uint end = p.keys;
    if (CAUSAL) end = at.y + 1 + p.keys > p.queries ? min(p.keys, at.y + 1 + p.keys - p.queries) : 0;
    const uint begin = CAUSAL ? window_begin(end, p.window) : 0;
    float top = LOWEST, total = 0.0f;
    for (uint base = begin + simd * SIMD; base < end; base += threads) {
        const bool seen = base + lane < end;
        float score = LOWEST;
        if (seen) {
            device const T* key = k + ulong(base + lane) * p.dim;
            float4 parts = float4(0.0f);
            uint i = 0;
            for (; i + 4 <= p.dim; i += 4) {
                const float4 x = float4(float(key[i]), float(key[i + 1]), float(key[i + 2]), float(key[i + 3]));
                parts = fma(x, float4(query[i], query[i + 1], query[i + 2], query[i + 3]), parts);
            }
            for (; i < p.dim; i++) parts.x = fma(float(key[i]), query[i], parts.x);
            score = capped((parts.x + parts.y) + (parts.z + parts.w), p.softcap);
        }
        const float high = max(top, simd_max(score));
        const float fade = precise::exp(top - high);
        const float weight = seen ? precise::exp(score - high) : 0.0f;
        top = high;
        total = total * fade + weight;
        weights[lane] = weight;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const uint count = min(SIMD, end - base);
        for (uint i = lane; i < p.dim; i += SIMD) {
            device const T* value = v + ulong(base) * p.dim + i;
            float sum = own[i] * fade;
            for (uint j = 0; j < count; j++) sum = fma(weights[j], float(value[ulong(j) * p.dim]), sum);
            own[i] = sum;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    total = simd_sum(total);
    if (lane == 0) {
        tops[simd] = top;
        totals[simd] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float high = SINKS ? sinks[head] : LOWEST;
    for (uint s = 0; s < simds; s++) high = max(high, tops[s]);
    float sum = SINKS ? precise::exp(sinks[head] - high) : 0.0f;
    for (uint s = 0; s < simds; s++) sum += totals[s] * precise::exp(tops[s] - high);
    const float unit = inverse_or_zero(sum);
    for (uint i = tid; i < p.dim; i += threads) {
        float x = 0.0f;
        for (uint s = 0; s < simds; s++) x += sums[s * p.dim + i] * precise::exp(tops[s] - high);
        out[i] = T(x * unit);
    }
}

EACH_FLOAT("sdpa", sdpa)
