// Up to three matrices in cells times the vectors of tokens. A row of threadgroups has up to 4 N tokens; ONE: there is one.

template <uint N, bool ONE>
[[kernel, max_total_threads_per_threadgroup(512)]] void cell_matvec(
    constant ProjectParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device const uchar* w0 [[buffer(3)]], device const uchar* w1 [[buffer(4)]], device const uchar* w2 [[buffer(5)]],
    device const float* bias0 [[buffer(6)]], device const float* bias1 [[buffer(7)]],
    device const float* bias2 [[buffer(8)]], device const float* residual [[buffer(9)]], device float* out [[buffer(10)]],
    threadgroup uint4* shared [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]
) {
    const uint most = ONE ? 1 : 4 * N >> p.fine, token = ONE ? 0 : group.y * most;
    const Crew crew = {tid, lane, simd, simds, (threadgroup uchar*)shared};
    const Inputs in = inputs_of<ONE>(p, x, norm, token, most);
    const Products job = {p, {w0, w1, w2, bias0, bias1, bias2}, residual, out, token};
    Staged<N, ONE> vectors = {p, in, crew, NOWHERE};
    all_products(p, vectors, job, uint2(group.x, groups.x), crew);
}

// The same of one token, whose numbers simdgroups lay out for themselves.
[[kernel, max_total_threads_per_threadgroup(512)]] void cell_matvec_own(
    constant ProjectParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device const uchar* w0 [[buffer(3)]], device const uchar* w1 [[buffer(4)]], device const uchar* w2 [[buffer(5)]],
    device const float* bias0 [[buffer(6)]], device const float* bias1 [[buffer(7)]],
    device const float* bias2 [[buffer(8)]], device const float* residual [[buffer(9)]], device float* out [[buffer(10)]],
    threadgroup uint4* shared [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]
) {
    const Crew crew = {tid, lane, simd, simds, (threadgroup uchar*)shared};
    const Products job = {p, {w0, w1, w2, bias0, bias1, bias2}, residual, out, 0};
    Own vectors = own_of(p, x, norm, crew);
    all_products(p, vectors, job, uint2(group.x, groups.x), crew);
}

KERNEL("cell_matvec_1", cell_matvec<1, true>)
KERNEL("cell_matvec_4", cell_matvec<1, false>)
KERNEL("cell_matvec_8", cell_matvec<2, false>)
