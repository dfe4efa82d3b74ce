// What makes a row's numbers fit halfs.

// Squares are of x times this power of two.
constant constexpr float SMALL = 9.313225746154785e-10f;

// A power of two that brings the greatest number of a row, times its norm's where there is one, below 512; and what undoes it,
// times what normalises the row. Every thread of a threadgroup gets both.
inline float2 row_scales(
    device const float* own, device const float* norm, bool normed, uint cols, float eps, threadgroup float* scratch, uint tid,
    uint threads, uint lane, uint simd, uint simds
) {
    // Few threadgroups have long rows: several loads are under way at a time.
    constexpr uint AT_ONCE = 4;
    float square = 0.0f, top = 0.0f;
    for (uint first = tid * 4; first < cols; first += AT_ONCE * threads * 4) {
        float4 v[AT_ONCE], w[AT_ONCE];
        UNROLL for (uint u = 0; u < AT_ONCE; u++) {
            const uint i = first + u * threads * 4;
            v[u] = i < cols ? *(device const float4*)(own + i) : float4(0.0f);
            w[u] = normed && i < cols ? *(device const float4*)(norm + i) : float4(1.0f);
        }
        UNROLL for (uint u = 0; u < AT_ONCE; u++) {
            const float4 small = v[u] * SMALL, size = fabs(v[u] * w[u]);
            if (normed) square += across(small * small);
            top = max(max(max(size.x, size.y), max(size.z, size.w)), top);
        }
    }
    float scale = 1.0f;
    if (normed) {
        square = group_sum(square, scratch, lane, simd, simds);
        scale = SMALL * precise::rsqrt(square / float(cols) + eps * (SMALL * SMALL));
    }
    const HalfScale half_by = half_scale(group_max(top, scratch, lane, simd, simds));
    return float2(half_by.by, half_by.back * scale);
}
