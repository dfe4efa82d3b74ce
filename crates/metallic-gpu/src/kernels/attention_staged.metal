// Attention of one sequence whose keys and values were laid side by side first, as a library of the maker's takes them: the way
// there, and what the library then does.

// Whether keys and values are laid out as halfs; else as floats.
constant uint HALFS [[function_constant(4)]];
// The same of the matrix that the result is multiplied with.
constant uint WEIGHT_HALFS [[function_constant(5)]];
// What is added to its products.
constant uint WITH_BIAS [[function_constant(6)]];
constant uint WITH_RESIDUAL [[function_constant(7)]];

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

// What a token's head sees, into `sums`, by a simdgroup: a running softmax over 32 keys at a time, of which a lane has one for the
// scores and every 32nd dimension for the values. `sums` is followed by room for 32 weights.
inline void attend_staged(
    constant StagedParams& p, uint2 at, device const float* q, device const uchar* keys, device const uchar* values,
    device const uint2* rows, device const float* sinks, threadgroup float* sums, uint lane
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
    for (uint i = lane; i < p.value_dim; i += SIMD) sums[i] *= unit;
}

// One simdgroup per head and token.
[[kernel, max_total_threads_per_threadgroup(32)]] void attention_staged(
    constant StagedParams& p [[buffer(0)]], device const float* q [[buffer(1)]], device const uchar* keys [[buffer(2)]],
    device const uchar* values [[buffer(3)]], device const uint2* rows [[buffer(4)]], device const float* sinks [[buffer(5)]],
    device float* out [[buffer(6)]], threadgroup float* sums [[threadgroup(0)]],
    uint2 at [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]
) {
    attend_staged(p, at, q, keys, values, rows, sinks, sums, lane);
    const ulong to = (ulong(at.y) * p.heads + at.x) * p.value_dim;
    for (uint i = lane; i < p.value_dim; i += SIMD) out[to + i] = sums[i];
}

// The same, and its result by a matrix `[rows, heads * value_dim]`: `out [tokens, rows]`. One simdgroup per token, which adds what
// each head has to say to every row of the matrix, a head at a time.
[[kernel, max_total_threads_per_threadgroup(32)]] void attention_projected(
    constant StagedParams& p [[buffer(0)]], device const float* q [[buffer(1)]], device const uchar* keys [[buffer(2)]],
    device const uchar* values [[buffer(3)]], device const uint2* rows [[buffer(4)]], device const float* sinks [[buffer(5)]],
    device const uchar* weights [[buffer(6)]], device float* out [[buffer(7)]], threadgroup float* sums [[threadgroup(0)]],
    uint token [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]
) {
    for (uint head = 0; head < p.heads; head++) {
        attend_staged(p, uint2(head, token), q, keys, values, rows, sinks, sums, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint row = lane; row < p.rows; row += SIMD) {
            const ulong first = (ulong(row) * p.heads + head) * p.value_dim, to = ulong(token) * p.rows + row;
            float sum = head == 0 ? 0.0f : out[to];
            for (uint i = 0; i < p.value_dim; i++) {
                const float weight = WEIGHT_HALFS != 0 ? float(((device const half*)weights)[first + i])
                                                       : ((device const float*)weights)[first + i];
                sum = fma(weight, sums[i], sum);
            }
            out[to] = sum;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// `products [tokens, rows]`, a vector that is added to each of them, and a tensor of their shape. A thread for each element.
kernel void attention_finish(
    constant FinishParams& p [[buffer(0)]], device const float* products [[buffer(1)]], device const float* bias [[buffer(2)]],
    device const float* residual [[buffer(3)]], device float* out [[buffer(4)]], uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.rows || at.y >= p.tokens) return;
    const ulong to = ulong(at.y) * p.rows + at.x;
    float v = products[to];
    if (WITH_BIAS != 0) v += bias[at.x];
    if (WITH_RESIDUAL != 0) v += residual[to];
    out[to] = v;
}
