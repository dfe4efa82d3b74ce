// Attention in three steps: every score, a softmax over each row of them, the weighted sum of the values. Row `(head, token)`
// of the scores has `stride` places; the first is that of the first token of the cache block its window begins in.

inline uint2 seen_range(uint visible, uint window) {
    return uint2(window_begin(visible, window), visible);
}

inline ulong score_row(constant PlainParams& p, uint head, uint token) {
    return (ulong(head) * p.tokens + token) * p.stride;
}

// `q · k`: a simdgroup per cache block, token and key/value head; a lane per key.
kernel void attention_plain_scores(
    constant PlainParams& p [[buffer(0)]], device const float* q [[buffer(1)]], device const uchar* keys [[buffer(2)]],
    device const uint2* rows [[buffer(3)]], device const uint* blocks [[buffer(4)]], device float* scores [[buffer(5)]],
    uint3 at [[threadgroup_position_in_grid]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    const uint kv_head = at.x, token = at.y;
    const uint2 row = rows[token];
    const uint first = seen_range(row.y, p.window).x / BLOCK_TOKENS;
    const uint b = first + at.z * simds + simd;
    const uint index = b * BLOCK_TOKENS + lane;
    if (index >= row.y) return;
    device const uchar* key =
        keys + kv_block_start(blocks[row.x + b], kv_head, p.kv_heads) + lane * kv_row_bytes();
    const uint per_kv = p.heads / p.kv_heads;
    for (uint head = kv_head * per_kv; head < (kv_head + 1) * per_kv; head++) {
        device const float* own = q + (ulong(token) * p.heads + head) * HEAD_DIM;
        float sum = 0.0f;
        if (HEAD_DIM % 8 == 0) {
            float4 sums = float4(0.0f);
            for (uint i = 0; i < HEAD_DIM; i += 8) {
                float4 low, high;
                kv_load8(key, i, low, high);
                sums = fma(low, float4(own[i], own[i + 1], own[i + 2], own[i + 3]), sums);
                sums = fma(high, float4(own[i + 4], own[i + 5], own[i + 6], own[i + 7]), sums);
            }
            sum = (sums.x + sums.y) + (sums.z + sums.w);
        } else {
            for (uint i = 0; i < HEAD_DIM; i++) sum = fma(kv_load1(key, i), own[i], sum);
        }
        scores[score_row(p, head, token) + index - first * BLOCK_TOKENS] = sum;
    }
}

// Scale, cap, mask and softmax of each row in place: one threadgroup per row.
kernel void attention_plain_softmax(
    constant PlainParams& p [[buffer(0)]], device const uint2* rows [[buffer(1)]], device const float* sinks [[buffer(2)]],
    device float* scores [[buffer(3)]], uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    threadgroup float scratch[32];
    const uint head = at.x, token = at.y, threads = simds * SIMD;
    const uint2 range = seen_range(rows[token].y, p.window);
    const uint base = range.x / BLOCK_TOKENS * BLOCK_TOKENS;
    scores += score_row(p, head, token);
    float high = SINKS ? sinks[head] : LOWEST;
    for (uint i = range.x + tid; i < range.y; i += threads) {
        const float score = capped(scores[i - base] * p.scale, p.softcap);
        scores[i - base] = score;
        high = max(high, score);
    }
    high = group_max(high, scratch, lane, simd, simds);
    float sum = 0.0f;
    for (uint i = range.x + tid; i < range.y; i += threads) {
        const float weight = precise::exp(scores[i - base] - high);
        scores[i - base] = weight;
        sum += weight;
    }
    sum = group_sum(sum, scratch, lane, simd, simds);
    if (SINKS) sum += precise::exp(sinks[head] - high);
    const float unit = inverse_or_zero(sum);
    for (uint i = range.x + tid; i < range.y; i += threads) scores[i - base] *= unit;
}

// The weighted sum: one threadgroup per row, a thread per dimension.
kernel void attention_plain_values(
    constant PlainParams& p [[buffer(0)]], device const float* weights [[buffer(1)]],
    device const uchar* values [[buffer(2)]], device const uint2* rows [[buffer(3)]],
    device const uint* blocks [[buffer(4)]], device float* out [[buffer(5)]],
    uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]
) {
    const uint head = at.x, token = at.y;
    const uint kv_head = head / (p.heads / p.kv_heads), bytes = kv_row_bytes(p.value_dim);
    const uint2 row = rows[token];
    const uint2 range = seen_range(row.y, p.window);
    const uint first = range.x / BLOCK_TOKENS;
    weights += score_row(p, head, token);
    out += (ulong(token) * p.heads + head) * p.value_dim;
    for (uint i = tid; i < p.value_dim; i += threads.x) {
        float sum = 0.0f;
        for (uint b = first; b * BLOCK_TOKENS < range.y; b++) {
            const uint base = b * BLOCK_TOKENS;
            device const uchar* block = values + kv_block_start(blocks[row.x + b], kv_head, p.kv_heads, p.value_dim);
            const uint from = range.x > base ? range.x - base : 0, to = min(BLOCK_TOKENS, range.y - base);
            for (uint k = from; k < to; k++)
                sum = fma(weights[base + k - first * BLOCK_TOKENS], kv_load1(block + k * bytes, i), sum);
        }
        out[i] = sum;
    }
}
