// What a sequence keeps in a slot of its own: the last rows of a convolution, the matrices of linear attention. A sequence is
// `(first token, tokens, slot, 1 where it has no past)`.

// 1: what is written to a matrix is what it lacks.
constant uint DELTA [[function_constant(0)]];
// 1: columns of a matrix are in threadgroup memory while their sequence goes on.
constant uint HELD [[function_constant(1)]];
// 1: heads that share a query and a key lie apart.
constant uint TILED [[function_constant(2)]];

// Row `i` of those a sequence has kept, the oldest first, and of its tokens after them.
inline float row_at(device const float* state, device const float* x, uint i, uint past, uint cols, bool fresh) {
    if (i >= past) return x[ulong(i - past) * cols];
    return fresh ? 0.0f : state[ulong(i) * cols];
}

// A thread has a column of a sequence: nobody else reads or writes what is kept of it.
kernel void short_conv(
    constant ConvParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* w [[buffer(2)]],
    device const uint4* sequences [[buffer(3)]], device float* state [[buffer(4)]], device float* out [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]
) {
    const uint col = at.x;
    if (col >= p.cols || at.y >= p.sequences) return;
    const uint4 sequence = sequences[at.y];
    const uint tokens = sequence.y, past = p.width - 1;
    const bool fresh = sequence.w != 0;
    x += ulong(sequence.x) * p.cols + col;
    out += ulong(sequence.x) * p.cols + col;
    w += ulong(col) * p.width;
    state += ulong(sequence.z) * past * p.cols + col;
    for (uint t = 0; t < tokens; t++) {
        float sum = 0.0f;
        for (uint j = 0; j < p.width; j++)
            sum = fma(w[j], row_at(state, x, t + j, past, p.cols, fresh), sum);
        out[ulong(t) * p.cols] = sum;
    }
    // From the oldest on: a row is read before it is written.
    for (uint j = 0; j < past; j++)
        state[ulong(j) * p.cols] = row_at(state, x, tokens + j, past, p.cols, fresh);
}

struct Tokens {
    device const float* q;
    device const float* k;
    device const float* v;
    device const float* decay;
    device const float* beta;
    device float* out;
};

// All tokens of a sequence over one head's matrix, one column a lane: `s` is the lane's, its elements `pitch` apart. Lanes past
// the last column help with queries and keys.
template <typename State>
void recur(
    constant RecurrenceParams& p, Tokens in, uint2 range, uint head, uint col, State s, uint pitch,
    threadgroup float* keys, uint lane
) {
    threadgroup float* queries = keys + p.key_dim;
    for (uint token = range.x; token < range.x + range.y; token++) {
        const ulong at = ulong(token) * p.heads + head;
        const uint shared = TILED ? head % p.key_heads : head / (p.heads / p.key_heads);
        const ulong key = (ulong(token) * p.key_heads + shared) * p.key_dim;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = lane; i < p.key_dim; i += SIMD) {
            keys[i] = in.k[key + i];
            queries[i] = in.q[key + i];
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (col >= p.value_dim) continue;
        const float decay = in.decay[at];
        float lacks = in.v[at * p.value_dim + col];
        if (DELTA) {
            float has = 0.0f;
            for (uint i = 0; i < p.key_dim; i++) has = fma(decay * s[i * pitch], keys[i], has);
            lacks -= has;
        }
        const float u = in.beta[at] * lacks;
        float y = 0.0f;
        for (uint i = 0; i < p.key_dim; i++) {
            const float next = fma(keys[i], u, decay * s[i * pitch]);
            s[i * pitch] = next;
            y = fma(next, queries[i], y);
        }
        in.out[at * p.value_dim + col] = y;
    }
}

// A simdgroup, which is a threadgroup, has 32 columns of one head's matrix of one sequence.
kernel void recurrence(
    constant RecurrenceParams& p [[buffer(0)]], device const float* q [[buffer(1)]], device const float* k [[buffer(2)]],
    device const float* v [[buffer(3)]], device const float* decay [[buffer(4)]], device const float* beta [[buffer(5)]],
    device const uint4* sequences [[buffer(6)]], device float* state [[buffer(7)]], device float* out [[buffer(8)]],
    threadgroup float* shared [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]
) {
    const uint col = group.x * SIMD + lane, head = group.y;
    const uint4 sequence = sequences[group.z];
    const bool fresh = sequence.w != 0, has_column = col < p.value_dim;
    state += (ulong(sequence.z) * p.heads + head) * p.key_dim * p.value_dim + col;
    const Tokens in = {q, k, v, decay, beta, out};
    threadgroup float* columns = shared + 2 * p.key_dim + lane;
    for (uint i = 0; i < p.key_dim && has_column; i++) {
        if (HELD) columns[i * SIMD] = fresh ? 0.0f : state[i * p.value_dim];
        else if (fresh) state[i * p.value_dim] = 0.0f;
    }
    if (!HELD) {
        recur(p, in, sequence.xy, head, col, state, p.value_dim, shared, lane);
        return;
    }
    recur(p, in, sequence.xy, head, col, columns, SIMD, shared, lane);
    for (uint i = 0; i < p.key_dim && has_column; i++) state[i * p.value_dim] = columns[i * SIMD];
}
