// Rotary position embedding, alone and on the way into the cache. One lane per element: it reads its partner too, so no
// element waits for another, whatever part of a head is rotated.

// Normalise the heads of queries and keys before they are rotated.
constant uint NORM [[function_constant(3)]];

template <typename T>
kernel void rope(
    constant RopeParams& p [[buffer(0)]], device const T* x [[buffer(1)]],
    device const uint* positions [[buffer(2)]], device const float* freqs [[buffer(3)]],
    device T* out [[buffer(4)]], uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.cols) return;
    const uint token = at.y, head = at.x / HEAD_DIM, i = at.x % HEAD_DIM;
    x += ulong(token) * p.cols + head * HEAD_DIM;
    out += ulong(token) * p.cols + at.x;
    if (i >= 2 * p.pairs) {
        *out = x[i];
        return;
    }
    const uint2 pair = pair_of(i, p.pairs);
    const float2 cs = turn(positions[token], freqs[INTERLEAVED ? i / 2 : pair.x]);
    *out = T(rotated(float(x[pair.x]), float(x[pair.y]), i, pair, cs, p.magnitude));
}

EACH_FLOAT("rope", rope)

inline void store_row(device uchar* row, device const float* x, uint dim, uint lane) {
    for (uint j = 0; j * 32 < dim; j++) {
        const uint i = j * 32 + lane;
        kv_store(row, j, lane, i < dim ? x[i] : 0.0f, dim);
    }
}

// Stores keys `[tokens, kv_heads * HEAD_DIM]` and values `[tokens, kv_heads * value_dim]`: a simdgroup per token and head, keys
// and values apart.
kernel void kv_write(
    constant KvWriteParams& p [[buffer(0)]], device const float* k [[buffer(1)]], device const float* v [[buffer(2)]],
    device const uint2* rows [[buffer(3)]], device const uint* blocks [[buffer(4)]], device uchar* keys [[buffer(5)]],
    device uchar* values [[buffer(6)]], uint group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
    const uint heads = 2 * p.kv_heads;
    const uint id = group * simds + simd;
    if (id >= p.tokens * heads) return;
    const uint token = id / heads, head = id % heads;
    const bool is_key = head < p.kv_heads;
    const uint kv_head = is_key ? head : head - p.kv_heads;
    const uint dim = is_key ? HEAD_DIM : p.value_dim;
    device const float* x = (is_key ? k : v) + (ulong(token) * p.kv_heads + kv_head) * dim;
    device uchar* row = (is_key ? keys : values) + kv_row(rows, blocks, token, kv_head, p.kv_heads, dim);
    store_row(row, x, dim, lane);
}

// The two factors of 1 / sqrt(mean(x²) + eps) of a head, to be applied one after the other; every lane gets them. The first
// is 2⁻⁸⁰ where squares might overflow: a product of both is no normal number there, and GPUs make it 0.
inline float2 head_norm(device const float* x, float eps, uint lane) {
    float top = 0.0f;
    for (uint i = lane; i < HEAD_DIM; i += SIMD) top = max(top, fabs(x[i]));
    top = simd_max(top);
    const float unit = top > 1e15f ? 8.271806125530277e-25f : 1.0f;
    float sum = 0.0f;
    for (uint i = lane; i < HEAD_DIM; i += SIMD) {
        const float v = x[i] * unit;
        sum += v * v;
    }
    return float2(unit, precise::rsqrt(simd_sum(sum) / float(HEAD_DIM) + eps * unit * unit));
}

// Rotates queries and keys of `q | k | v` rows and stores keys and values: a simdgroup per token and head.
kernel void rope_kv_write(
    constant RopeKvParams& p [[buffer(0)]], device const float* qkv [[buffer(1)]],
    device const uint* positions [[buffer(2)]], device const float* freqs [[buffer(3)]],
    device const float* q_norm [[buffer(4)]], device const float* k_norm [[buffer(5)]],
    device const uint2* rows [[buffer(6)]], device const uint* blocks [[buffer(7)]], device float* out [[buffer(8)]],
    device uchar* keys [[buffer(9)]], device uchar* values [[buffer(10)]], uint group [[threadgroup_position_in_grid]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]
) {
    const uint heads = p.heads + 2 * p.kv_heads;
    const uint id = group * simds + simd;
    if (id >= p.tokens * heads) return;
    const uint token = id / heads, head = id % heads;
    device const float* x = qkv + (ulong(token) * heads + head) * HEAD_DIM;
    const bool is_query = head < p.heads;
    if (head >= p.heads + p.kv_heads) {
        device uchar* row = values + kv_row(rows, blocks, token, head - p.heads - p.kv_heads, p.kv_heads);
        store_row(row, x, HEAD_DIM, lane);
        return;
    }
    const float2 unit = NORM ? head_norm(x, p.eps, lane) : float2(1.0f);
    device const float* w = is_query ? q_norm : k_norm;
    const uint position = positions[token];
    device uchar* row = keys;
    if (is_query) out += (ulong(token) * p.heads + head) * HEAD_DIM;
    else row += kv_row(rows, blocks, token, head - p.heads, p.kv_heads);
    for (uint j = 0; j * 32 < HEAD_DIM; j++) {
        const uint i = j * 32 + lane;
        float y = 0.0f;
        if (i < 2 * p.pairs) {
            const uint2 pair = pair_of(i, p.pairs);
            const float2 cs = turn(position, freqs[INTERLEAVED ? i / 2 : pair.x]);
            float a = x[pair.x], b = x[pair.y];
            if (NORM) {
                a = a * unit.x * (unit.y * w[pair.x]);
                b = b * unit.x * (unit.y * w[pair.y]);
            }
            y = rotated(a, b, i, pair, cs, p.magnitude);
        } else if (i < HEAD_DIM) {
            y = NORM ? x[i] * unit.x * unit.y * w[i] : x[i];
        }
        if (!is_query) kv_store(row, j, lane, y);
        else if (i < HEAD_DIM) out[i] = y;
    }
}
