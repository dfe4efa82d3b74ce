// Norms over the last axis: sums in f32. A thread keeps its first four elements, so that rows up to a threadgroup's reach
// are read once.

// 1: weights and biases are of the rows' type, 0: they are f32.
constant uint OWN_VECTORS [[function_constant(0)]];
// 1: a layer norm adds biases.
constant uint BIASED [[function_constant(1)]];

constant constexpr float TWO_80 = 1.2089258196146292e24f; // 2⁸⁰

template <typename T>
struct Vector {
    device const uchar* bytes;
    ulong first;

    float4 four(uint i, uint cols) const {
        if (OWN_VECTORS) return load_ragged((device const T*)bytes + first, i, cols);
        return load_ragged((device const float*)bytes + first, i, cols);
    }
};

// Of a row times `unit`.
struct Moments {
    // The mean is their sum: one number would round away what the other holds. 0 for an RMS norm.
    float mean, rest;
    // Of the squares about the mean.
    float average, sum;
};

template <bool LAYER, typename T>
Moments moments(device const T* x, float4 held, float unit, uint cols, threadgroup float* scratch, Lanes at) {
    const uint first = at.tid * 4;
    const uint stride = at.threads * 4;
    float mean = 0.0f;
    if (LAYER) {
        float4 sums = held * unit;
        for (uint i = first + stride; i < cols; i += stride) sums += load_ragged(x, i, cols) * unit;
        mean = row_sum(across(sums), scratch, at) / float(cols);
    }
    float4 squares = 0.0f;
    float4 rests = 0.0f;
    float4 v = held;
    for (uint i = first; i < cols;) {
        float4 d = v * unit;
        if (LAYER) {
            d = select(float4(0.0f), d - mean, i + uint4(0, 1, 2, 3) < uint4(cols));
            rests += d;
        }
        squares = fma(d, d, squares);
        i += stride;
        if (i < cols) v = load_ragged(x, i, cols);
    }
    if (!LAYER) {
        const float sum = row_sum(across(squares), scratch, at);
        return {0.0f, 0.0f, sum / float(cols), sum};
    }
    const float2 sums = row_sums(float2(across(squares), across(rests)), scratch, at);
    // The mean was rounded: what is left of the differences corrects it, and the squares with it.
    const float rest = sums.y / float(cols);
    return {mean, rest, max(sums.x / float(cols) - rest * rest, 0.0f), sums.x};
}

template <typename T, bool LAYER>
void norm_row(
    constant NormParams& p, device const T* x, Vector<T> w, Vector<T> b, device T* out, threadgroup float* scratch,
    Lanes at
) {
    const uint first = at.tid * 4;
    const uint stride = at.threads * 4;
    const float4 held = load_ragged(x, first, p.cols);
    float unit = 1.0f;
    Moments m = moments<LAYER>(x, held, unit, p.cols, scratch, at);
    // Squares of huge values overflow; those of tiny ones vanish, which matters where epsilon is as small.
    const bool tiny = m.sum < 1e-25f && p.eps * float(p.cols) < 1e-25f;
    if (tiny || !(m.sum < 1e37f)) {
        unit = tiny ? TWO_80 : 1.0f / TWO_80;
        m = moments<LAYER>(x, held, unit, p.cols, scratch, at);
    }
    const float scale = precise::rsqrt(max(m.average + p.eps * unit * unit, 1e-36f));
    float4 v = held;
    for (uint i = first; i < p.cols;) {
        float4 y = ((v * unit - m.mean) - m.rest) * scale * w.four(i, p.cols);
        if (LAYER && BIASED) y += b.four(i, p.cols);
        store_ragged(out, i, p.cols, y);
        i += stride;
        if (i < p.cols) v = load_ragged(x, i, p.cols);
    }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void rms_norm(
    constant NormParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device const uchar* w [[buffer(2)]],
    device T* out [[buffer(3)]], ROW_THREADS
) {
    FIND_ROW;
    const Vector<T> weights = {w, ulong(row % p.parts) * p.cols};
    norm_row<T, false>(p, x + start, weights, weights, out + start, scratch, at);
}
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void layer_norm(
    constant NormParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device const uchar* w [[buffer(2)]],
    device const uchar* b [[buffer(3)]], device T* out [[buffer(4)]], ROW_THREADS
) {
    FIND_ROW;
    const Vector<T> weights = {w, 0}, biases = {b, 0};
    norm_row<T, true>(p, x + start, weights, biases, out + start, scratch, at);
}

EACH_FLOAT("rms_norm", rms_norm)
EACH_FLOAT("layer_norm", layer_norm)
