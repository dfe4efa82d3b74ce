// The vectors of many tokens for matrix units: normalised where asked for, as halfs, in the order in which lanes take them. Eight
// tokens make a tile; a tile has blocks of 32 columns, in which lane 4 n + t has eight columns of token n: see `cells.metal`.
// Numbers are scaled as in `half_scale.metal`, and `scales` has what undoes it.

constant uint WITH_NORM [[function_constant(0)]];

kernel void cell_columns(
    constant ColumnParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device uint2* columns [[buffer(3)]], device float* sums [[buffer(4)]], device float* scales [[buffer(5)]],
    uint token [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    threadgroup float scratch[32];
    const bool live = token < p.tokens;
    device const float* own = x + ulong(min(token, p.tokens - 1)) * p.cols;
    wait_for_earlier();
    const float2 found = row_scales(own, norm, WITH_NORM != 0, p.cols, p.eps, scratch, tid, threads, lane, simd, simds);
    if (tid == 0) scales[token] = live ? found.y : 0.0f;
    const uint blocks = (p.cols + 63) / 64 * 2;
    // Whole simdgroups come along, also past the end: eight lanes share a block.
    for (uint i = tid * 4; i < (blocks + 3) / 4 * 128; i += threads * 4) {
        float4 v = float4(0.0f);
        if (live && i < p.cols) {
            v = *(device const float4*)(own + i);
            if (WITH_NORM != 0) v *= *(device const float4*)(norm + i);
        }
        const float4 scaled = v * found.x;
        const uint2 h = uint2(two_halfs(scaled.xy), two_halfs(scaled.zw));
        const uint block = i / 32, quad = i % 32 / 4;
        const ulong at = (ulong(token / 8) * blocks + block) * 64 + (token % 8 * 4 + quad % 4) * 2 + quad / 4;
        if (block < blocks) columns[at] = h;
        float sum = across(float4(as_type<half4>(h)));
        sum += simd_shuffle_xor(sum, 1);
        sum += simd_shuffle_xor(sum, 2);
        sum += simd_shuffle_xor(sum, 4);
        if (block < blocks && quad == 0) sums[(ulong(token / 8) * blocks + block) * 8 + token % 8] = sum;
    }
}

// The same as numbers of two bytes, two halves of a token one after the other, four tokens and then four more: a cell has 16 bytes of
// each lane of either. `blocks` has of each cell and token what its two blocks are worth; `scales` what normalises a token.
kernel void cell_bytes(
    constant ColumnParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device uint2* columns [[buffer(3)]], device Block* blocks [[buffer(4)]], device float* scales [[buffer(5)]],
    uint token [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    // One threadgroup has a row, so several loads are under way at a time.
    constexpr uint AT_ONCE = 2;
    threadgroup float scratch[32];
    const bool live = token < p.tokens;
    device const float* own = x + ulong(min(token, p.tokens - 1)) * p.cols;
    const uint cells = (p.cols + 63) / 64, place = token % 8;
    columns += ulong(token / 8) * cells * 128 + (place / 4 * 32 + place % 4 * 8) * 2;
    blocks += ulong(token / 8) * cells * 16 + place * 2;
    float square = 0.0f;
    // A thread has eight columns of a block, sixteen apart. Whole simdgroups come along, also past the end: four lanes share a block.
    const uint items = (cells * 8 + SIMD - 1) / SIMD * SIMD;
    bool fresh = true;
    for (uint first = tid; first < items || fresh; first += AT_ONCE * threads) {
        // The norm's weights were there before the vectors are.
        float4 v[2 * AT_ONCE], w[2 * AT_ONCE];
        UNROLL for (uint u = 0; u < 2 * AT_ONCE; u++) {
            const uint item = first + u / 2 * threads, i = item / 4 * 32 + u % 2 * 16 + item % 4 * 4;
            w[u] = live && i < p.cols && WITH_NORM != 0 ? *(device const float4*)(norm + i) : float4(1.0f);
        }
        if (fresh) wait_for_earlier();
        fresh = false;
        UNROLL for (uint u = 0; u < 2 * AT_ONCE; u++) {
            const uint item = first + u / 2 * threads, i = item / 4 * 32 + u % 2 * 16 + item % 4 * 4;
            v[u] = live && i < p.cols ? *(device const float4*)(own + i) : float4(0.0f);
        }
        UNROLL for (uint u = 0; u < AT_ONCE; u++) {
            const uint item = first + u * threads, block = item / 4, cell = block / 2;
            float4 near = v[2 * u], far = v[2 * u + 1];
            if (WITH_NORM != 0) {
                const float4 small = near * SMALL, smaller = far * SMALL;
                square += across(small * small + smaller * smaller);
                near *= w[2 * u];
                far *= w[2 * u + 1];
            }
            if (item >= items) continue;
            const TwoBytes made = two_bytes(near, far);
            if (cell >= cells) continue;
            const uint to = cell * 128 + item % 4 * 2 + block % 2;
            columns[to] = made.high;
            columns[to + 8] = made.low;
            if (item % 4 == 0) blocks[cell * 16 + block % 2] = made.block;
        }
    }
    float scale = 1.0f;
    if (WITH_NORM != 0) {
        square = group_sum(square, scratch, lane, simd, simds);
        scale = SMALL * precise::rsqrt(square / float(p.cols) + p.eps * (SMALL * SMALL));
    }
    if (tid == 0) scales[token] = live ? scale : 0.0f;
}
