// What makes a row's numbers fit halfs.

// Squares are of x times this power of two.
constant constexpr float SMALL = 9.313225746154785e-10f;

// A power of two that brings the greatest number of a row, times its norm's where there is one, below 512; and what undoes it,
// times what normalises the row. Every thread of a threadgroup gets both.
inline float2 row_scales(
    device const float* own, device const float* norm, bool normed, uint cols, float eps, threadgroup float* scratch, uint tid,
    uint threads, uint lane, uint simd, uint simds
) {
    float square = 0.0f, top = 0.0f;
    for (uint i = tid * 4; i < cols; i += threads * 4) {
        float4 v = *(device const float4*)(own + i);
        if (normed) {
            const float4 small = v * SMALL;
            square += across(small * small);
            v *= *(device const float4*)(norm + i);
        }
        const float4 size = fabs(v);
        top = max(max(max(size.x, size.y), max(size.z, size.w)), top);
    }
    float scale = 1.0f;
    if (normed) {
        square = group_sum(square, scratch, lane, simd, simds);
        scale = SMALL * precise::rsqrt(square / float(cols) + eps * (SMALL * SMALL));
    }
    top = group_max(top, scratch, lane, simd, simds);
    const uint exponent = clamp(as_type<uint>(top) >> 23, 9u, 253u);
    return float2(as_type<float>((262 - exponent) << 23), as_type<float>((exponent - 8) << 23) * scale);
}
