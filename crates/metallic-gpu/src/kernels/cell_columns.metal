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
        const half4 h = half4(v * found.x);
        const uint block = i / 32, quad = i % 32 / 4;
        const ulong at = (ulong(token / 8) * blocks + block) * 64 + (token % 8 * 4 + quad % 4) * 2 + quad / 4;
        if (block < blocks) columns[at] = as_type<uint2>(h);
        float sum = across(float4(h));
        sum += simd_shuffle_xor(sum, 1);
        sum += simd_shuffle_xor(sum, 2);
        sum += simd_shuffle_xor(sum, 4);
        if (block < blocks && quad == 0) sums[(ulong(token / 8) * blocks + block) * 8 + token % 8] = sum;
    }
}
