// A plain product of two matrices, row by row: what the product of a library means, where there is one, and the product where
// there is none, for as many matrices as there are, one after another. out [m, n] = x [m, k] · w [n, k], each row of `out` `pitch` elements after the one before; with `adds`, what is there is
// added to.

template <typename T>
kernel void gemm(
    constant GemmParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device const T* w [[buffer(2)]],
    device float* out [[buffer(3)]], uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.n || at.y >= p.rows) return;
    device const T* row = x + ulong(at.y) * p.k;
    device const T* column = w + (ulong(at.y / p.m) * p.n + at.x) * p.k;
    const ulong to = ulong(at.y) * p.pitch + at.x;
    float sum = p.adds != 0 ? out[to] : 0.0f;
    for (uint i = 0; i < p.k; i++) sum = fma(float(row[i]), float(column[i]), sum);
    out[to] = sum;
}

KERNEL("gemm_f16", gemm<half>)
KERNEL("gemm_bf16", gemm<bfloat>)
KERNEL("gemm_f32", gemm<float>)
