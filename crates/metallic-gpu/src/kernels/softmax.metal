// Softmax over the last axis. A row up to a threadgroup's reach stays in registers; a longer one is read twice, with the
// largest value and the sum kept up together in the first pass.

// exp(-inf - -inf) is 0 here: where nothing was seen there is nothing to scale.
inline float shrink(float from, float to) {
    return from < -FLT_MAX ? 0.0f : precise::exp(from - to);
}

inline float largest(float4 v) {
    return max(max(v.x, v.y), max(v.z, v.w));
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void softmax(
    constant SoftmaxParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device T* out [[buffer(2)]], ROW_THREADS
) {
    FIND_ROW;
    x += start;
    out += start;
    const uint first = at.tid * 4;
    const uint stride = at.threads * 4;
    float4 held = load_ragged(x, first, p.cols, -INFINITY);
    float top = largest(held);
    float sum = 0.0f;
    if (stride < p.cols) {
        float4 sums = 0.0f;
        for (uint i = first + stride; i < p.cols; i += stride) {
            const float4 v = load_ragged(x, i, p.cols, -INFINITY);
            const float most = largest(v);
            if (most > top) {
                sums *= shrink(top, most);
                top = most;
            }
            for (uint k = 0; k < 4; k++) sums[k] += shrink(v[k], top);
        }
        sum = across(sums);
    }
    const float all = group_max(top, scratch, at.lane, at.simd, at.simds);
    if (all < -FLT_MAX) {
        for (uint i = first; i < p.cols; i += stride) store_ragged(out, i, p.cols, float4(0.0f));
        return;
    }
    for (uint k = 0; k < 4; k++) held[k] = shrink(held[k], all);
    sum = group_sum(sum * shrink(top, all) + across(held), scratch, at.lane, at.simd, at.simds);
    const float part = precise::divide(1.0f, sum);
    store_ragged(out, first, p.cols, held * part);
    for (uint i = first + stride; i < p.cols; i += stride) {
        float4 v = load_ragged(x, i, p.cols);
        for (uint k = 0; k < 4; k++) v[k] = shrink(v[k], all);
        store_ragged(out, i, p.cols, v * part);
    }
}

EACH_FLOAT("softmax", softmax)
