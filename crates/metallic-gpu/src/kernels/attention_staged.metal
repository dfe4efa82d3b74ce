// Attention of one sequence whose keys and values were laid side by side first, as a library of the maker's takes them: the way
// there, and what the library then does.

// Whether keys and values are laid out as halfs; else as floats.
constant uint HALFS [[function_constant(4)]];

// Keys, or values, in the order of their tokens: `[kv_heads, keys, dim]`. What no token of the step sees is 0. A thread for each
// element.
kernel void attention_stage(
    constant StageParams& p [[buffer(0)]], device const uchar* cache [[buffer(1)]], device const uint2* rows [[buffer(2)]],
    device const uint* blocks [[buffer(3)]], device uchar* out [[buffer(4)]], uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.dim || at.y >= p.kv_heads * p.keys) return;
    const uint head = at.y / p.keys, key = at.y % p.keys;
    const uint begin = window_begin(rows[0].y, p.window), end = rows[p.tokens - 1].y;
    float x = 0.0f;
    if (key >= begin && key < end) {
        const uint block = blocks[rows[0].x + key / BLOCK_TOKENS];
        device const uchar* row =
            cache + kv_block_start(block, head, p.kv_heads, p.dim) + key % BLOCK_TOKENS * kv_row_bytes(p.dim);
        x = kv_load1(row, at.x);
    }
    const ulong to = ulong(at.y) * p.dim + at.x;
    if (HALFS != 0) ((device half*)out)[to] = half(x);
    else ((device float*)out)[to] = x;
}

inline float staged(device const uchar* from, ulong at) {
    return HALFS != 0 ? float(((device const half*)from)[at]) : ((device const float*)from)[at];
}

// One simdgroup per head and token, a running softmax over 32 keys at a time: a lane has one key for the scores and every 32nd
// dimension for the values.
[[kernel, max_total_threads_per_threadgroup(32)]] void attention_staged(
    constant StagedParams& p [[buffer(0)]], device const float* q [[buffer(1)]], device const uchar* keys [[buffer(2)]],
    device const uchar* values [[buffer(3)]], device const uint2* rows [[buffer(4)]], device const float* sinks [[buffer(5)]],
    device float* out [[buffer(6)]], threadgroup float* sums [[threadgroup(0)]],
    uint2 at [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]
) {
    const uint head = at.x, token = at.y;
    const ulong first = ulong(head / (p.heads / p.kv_heads)) * p.keys;
    device const float* query = q + (ulong(token) * p.heads + head) * HEAD_DIM;
    threadgroup float* weights = sums + p.value_dim;
    for (uint i = lane; i < p.value_dim; i += SIMD) sums[i] = 0.0f;
    const uint end = rows[token].y, begin = window_begin(end, p.window);
    float top = LOWEST, total = 0.0f;
    for (uint base = begin; base < end; base += SIMD) {
        const bool seen = base + lane < end;
        float score = LOWEST;
        if (seen) {
            float sum = 0.0f;
            for (uint i = 0; i < HEAD_DIM; i++) sum = fma(staged(keys, (first + base + lane) * HEAD_DIM + i), query[i], sum);
            score = capped(sum * p.scale, p.softcap);
        }
        const float high = max(top, simd_max(score));
        const float fade = precise::exp(top - high);
        const float weight = seen ? precise::exp(score - high) : 0.0f;
        top = high;
        total = total * fade + weight;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        weights[lane] = weight;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const uint count = min(SIMD, end - base);
        for (uint i = lane; i < p.value_dim; i += SIMD) {
            float sum = sums[i] * fade;
            for (uint j = 0; j < count; j++) sum = fma(weights[j], staged(values, (first + base + j) * p.value_dim + i), sum);
            sums[i] = sum;
        }
    }
    total = simd_sum(total);
    const float high = SINKS ? max(top, sinks[head]) : top;
    const float fade = precise::exp(top - high);
    const float unit = inverse_or_zero(total * fade + (SINKS ? precise::exp(sinks[head] - high) : 0.0f)) * fade;
    for (uint i = lane; i < p.value_dim; i += SIMD) out[(ulong(token) * p.heads + head) * p.value_dim + i] = sums[i] * unit;
}
