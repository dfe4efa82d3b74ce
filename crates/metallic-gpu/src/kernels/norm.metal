// Norms over the last axis: one threadgroup per row, sums in f32.

// The largest magnitude is divided out first: squares of huge values would overflow.
template <typename T>
void rms_norm_row(
    constant RmsNormParams& p, device const T* x, device const float* w, device T* out,
    threadgroup float* scratch, uint row, uint tid, uint threads, uint lane, uint simd, uint simds
) {
    x += row * p.cols;
    out += row * p.cols;
    float top = 0.0f;
    for (uint i = tid; i < p.cols; i += threads) top = max(top, fabs(float(x[i])));
    top = group_max(top, scratch, lane, simd, simds);
    const float unit = top > 1e15f ? 1.0f / top : 1.0f;
    float sum = 0.0f;
    for (uint i = tid; i < p.cols; i += threads) {
        const float v = float(x[i]) * unit;
        sum += v * v;
    }
    sum = group_sum(sum, scratch, lane, simd, simds);
    const float scale = unit * precise::rsqrt(sum / float(p.cols) + p.eps * unit * unit);
    for (uint i = tid; i < p.cols; i += threads) out[i] = T(float(x[i]) * scale * w[i]);
}

#define RMS_NORM(T, NAME)                                                                                        \
    kernel void rms_norm_##NAME(                                                                                 \
        constant RmsNormParams& p [[buffer(0)]], device const T* x [[buffer(1)]],                                \
        device const float* w [[buffer(2)]], device T* out [[buffer(3)]],                                        \
        uint row [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],                     \
        uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],                       \
        uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]                  \
    ) {                                                                                                          \
        threadgroup float scratch[32];                                                                           \
        rms_norm_row<T>(p, x, w, out, scratch, row, tid, threads, lane, simd, simds);                            \
    }

RMS_NORM(float, f32)
RMS_NORM(half, f16)
RMS_NORM(bfloat, bf16)
