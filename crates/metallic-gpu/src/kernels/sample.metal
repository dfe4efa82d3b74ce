// The best of each row: one threadgroup per row. Everything that decides is made of integers and of fma, so that every
// device chooses the same.

// 1: counts of earlier tokens are bound, and penalties apply.
constant uint COUNTED [[function_constant(0)]];
// 1: the best penalised logit wins; 0: noise is added first.
constant uint GREEDY [[function_constant(1)]];
// 1: only the `k` best may win.
constant uint CUT [[function_constant(2)]];

// Bits in the order of the numbers. -0 is 0; what is no number is -inf.
inline uint key_of(float x) {
    uint bits = as_type<uint>(x);
    if ((bits << 1) > 0xff000000u) bits = 0xff800000u;
    if ((bits << 1) == 0u) bits = 0u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The largest key of a row and the lowest index that has it.
inline uint2 best_of_row(uint2 best, threadgroup uint* keys, threadgroup uint* ids, Lanes at) {
    uint key = simd_max(best.x);
    uint id = simd_min(best.x == key ? best.y : 0xffffffffu);
    if (at.simds == 1) return uint2(key, id);
    if (at.lane == 0) {
        keys[at.simd] = key;
        ids[at.simd] = id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint theirs = at.lane < at.simds ? keys[at.lane] : 0u;
    const uint where = at.lane < at.simds ? ids[at.lane] : 0xffffffffu;
    key = simd_max(theirs);
    id = simd_min(theirs == key ? where : 0xffffffffu);
    return uint2(key, id);
}

// The numbers of a row as they are.
template <typename T>
struct Numbers {
    device const T* x;

    uint key(uint i) const {
        return key_of(float(x[i]));
    }
};

// Logits with their penalties.
template <typename T>
struct Logits {
    device const T* x;
    device const uint* counts;
    float repeat, inverse_repeat, presence, frequency;

    float at(uint i) const {
        float v = float(x[i]);
        const uint bits = as_type<uint>(v);
        if ((bits << 1) > 0xff000000u) v = -INFINITY;
        if (bits == 0x7f800000u) v = FLT_MAX;
        if (!COUNTED) return v;
        const uint count = counts[i];
        if (count == 0) return v;
        v = fma(v, v > 0.0f ? inverse_repeat : repeat, -presence);
        return fma(-float(count), frequency, v);
    }

    uint key(uint i) const {
        return key_of(at(i));
    }
};

// Which bin the k-th of a pass is in.
struct Bins {
    threadgroup atomic_uint* count;
    threadgroup uint* chosen; // bin, how many of it are wanted, how many it has
};

// The k-th largest of pairs (key, ~index), 8 bits at a time: at least as large is what belongs to the k best. All pairs
// differ, so that equals are cut at the lowest indices.
template <typename S>
uint2 kth_of_row(S row, uint n, uint k, Bins bins, Lanes at) {
    uint2 pair = 0;
    for (uint pass = 0; pass < 8; pass++) {
        const uint shift = 24 - pass % 4 * 8;
        const bool by_id = pass >= 4;
        // Bits that earlier passes have settled.
        const uint settled = pass % 4 == 0 ? 0u : 0xffffff00u << shift;
        for (uint i = at.tid; i < 256; i += at.threads) {
            atomic_store_explicit(&bins.count[i], 0u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = at.tid; i < n; i += at.threads) {
            const uint key = row.key(i);
            const uint word = by_id ? ~i : key;
            const bool open = (word & settled) == ((by_id ? pair.y : pair.x) & settled) && (!by_id || key == pair.x);
            if (open) atomic_fetch_add_explicit(&bins.count[word >> shift & 255], 1u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (at.simd == 0) {
            // A lane has eight bins; the first lane has the largest.
            uint sum = 0;
            for (uint j = 0; j < 8; j++) {
                sum += atomic_load_explicit(&bins.count[255 - at.lane * 8 - j], memory_order_relaxed);
            }
            uint before = simd_prefix_exclusive_sum(sum);
            if (before < k && k <= before + sum) {
                for (uint j = 0; j < 8; j++) {
                    const uint bin = 255 - at.lane * 8 - j;
                    const uint here = atomic_load_explicit(&bins.count[bin], memory_order_relaxed);
                    if (k <= before + here) {
                        bins.chosen[0] = bin;
                        bins.chosen[1] = k - before;
                        bins.chosen[2] = here;
                        break;
                    }
                    before += here;
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // Nobody writes there again before two barriers of the next pass.
        const uint bits = bins.chosen[0] << shift;
        k = bins.chosen[1];
        const uint here = bins.chosen[2];
        if (by_id) pair.y |= bits;
        else pair.x |= bits;
        // All that are equal belong to them: no index has to decide.
        if (pass == 3 && here == k) break;
    }
    return pair;
}

inline bool at_least(uint key, uint i, uint2 pair) {
    return key > pair.x || (key == pair.x && ~i >= pair.y);
}

template <typename T>
void argmax_row(
    constant ArgmaxParams& p, device const T* x, device uint* out, threadgroup uint* keys, threadgroup uint* ids,
    uint row, Lanes at
) {
    x += ulong(row) * p.n;
    uint2 best = uint2(0u, 0xffffffffu);
    for (uint i = at.tid * 4; i < p.n; i += at.threads * 4) {
        const float4 v = load_ragged(x, i, p.n);
        for (uint j = 0; j < 4; j++) {
            const uint key = key_of(v[j]);
            if (i + j < p.n && key > best.x) best = uint2(key, i + j);
        }
    }
    best = best_of_row(best, keys, ids, at);
    if (at.tid == 0) out[row] = best.y;
}

// The k best are picked in any order; then each finds its place by counting those before it.
template <typename T>
void top_k_row(
    constant TopKParams& p, device const T* x, device uint* picked, device T* values, device uint* indices,
    threadgroup atomic_uint* next, Bins bins, uint row, Lanes at
) {
    const Numbers<T> numbers = {x + ulong(row) * p.n};
    picked += ulong(row) * p.k * 2;
    values += ulong(row) * p.k;
    indices += ulong(row) * p.k;
    const uint2 pair = p.k < p.n ? kth_of_row(numbers, p.n, p.k, bins, at) : uint2(0);
    if (at.tid == 0) atomic_store_explicit(next, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = at.tid; i < p.n; i += at.threads) {
        const uint key = numbers.key(i);
        if (!at_least(key, i, pair)) continue;
        const uint place = atomic_fetch_add_explicit(next, 1u, memory_order_relaxed);
        picked[2 * ulong(place)] = key;
        picked[2 * ulong(place) + 1] = i;
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    for (uint j = at.tid; j < p.k; j += at.threads) {
        const uint key = picked[2 * ulong(j)];
        const uint id = picked[2 * ulong(j) + 1];
        uint place = 0;
        for (uint other = 0; other < p.k; other++) {
            const uint theirs = picked[2 * ulong(other)];
            place += theirs > key || (theirs == key && picked[2 * ulong(other) + 1] < id) ? 1 : 0;
        }
        values[place] = numbers.x[id];
        indices[place] = id;
    }
}

// Philox4x32-10: the first of its four words.
inline uint philox(uint4 c, uint2 key) {
    for (uint round = 0; round < 10; round++) {
        const uint x = c.x * 0xd2511f53u;
        const uint x_high = mulhi(c.x, 0xd2511f53u);
        const uint y = c.z * 0xcd9e8d57u;
        const uint y_high = mulhi(c.z, 0xcd9e8d57u);
        c = uint4(y_high ^ c.y ^ key.x, y, x_high ^ c.w ^ key.y, x);
        key += uint2(0x9e3779b9u, 0xbb67ae85u);
    }
    return c.x;
}

// The natural logarithm of a normal number above 0, step by step as the core defines it.
inline float exact_ln(float x) {
    const uint bits = as_type<uint>(x);
    const int e = as_type<int>(bits - 0x3f2aaaabu) >> 23;
    const float r = as_type<float>(bits - (uint(e) << 23)) - 1.0f;
    float p = -0.12125581f;
    p = fma(p, r, 0.1342575f);
    p = fma(p, r, -0.1234619f);
    p = fma(p, r, 0.1411831f);
    p = fma(p, r, -0.1667014f);
    p = fma(p, r, 0.2000378f);
    p = fma(p, r, -0.24999988f);
    p = fma(p, r, 0.3333332f);
    return fma(float(e), 0.6931472f, fma(r * r, fma(r, p, -0.5f), r));
}

inline float gumbel(uint bits) {
    const float uniform = (float(bits >> 9) + 0.5f) * (1.0f / 8388608.0f);
    return -exact_ln(-exact_ln(uniform));
}

template <typename T>
void sample_row(
    constant SampleParams& p, device const T* x, device const uint* counts, device uint* out,
    threadgroup uint* keys, threadgroup uint* ids, Bins bins, uint row, Lanes at
) {
    const ulong start = ulong(row) * p.n;
    const Logits<T> logits = {x + start, counts + start, p.repeat, p.inverse_repeat, p.presence, p.frequency};
    const uint2 pair = CUT ? kth_of_row(logits, p.n, p.k, bins, at) : uint2(0);
    uint2 best = uint2(0u, 0xffffffffu);
    for (uint i = at.tid; i < p.n; i += at.threads) {
        float v = logits.at(i);
        if (CUT && !at_least(key_of(v), i, pair)) continue;
        if (!GREEDY) {
            v = fma(v, p.inverse_temperature, gumbel(philox(uint4(i, row, p.draw, 0), uint2(p.seed_low, p.seed_high))));
        }
        const uint key = key_of(v);
        if (key > best.x) best = uint2(key, i);
    }
    best = best_of_row(best, keys, ids, at);
    if (at.tid == 0) out[row] = best.y;
}

#define WHERE                                                                                                    \
    uint row [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],                         \
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],                           \
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]

#define SAMPLE(T, NAME)                                                                                          \
    [[kernel, max_total_threads_per_threadgroup(1024)]] void argmax_##NAME(                                      \
        constant ArgmaxParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device uint* out [[buffer(2)]], \
        WHERE                                                                                                    \
    ) {                                                                                                          \
        threadgroup uint keys[32];                                                                               \
        threadgroup uint ids[32];                                                                                \
        const Lanes at = {tid, threads, lane, simd, simds};                                                      \
        argmax_row<T>(p, x, out, keys, ids, row, at);                                                            \
    }                                                                                                            \
    [[kernel, max_total_threads_per_threadgroup(1024)]] void top_k_##NAME(                                       \
        constant TopKParams& p [[buffer(0)]], device const T* x [[buffer(1)]],                                   \
        device uint* picked [[buffer(2)]], device T* values [[buffer(3)]], device uint* indices [[buffer(4)]],   \
        WHERE                                                                                                    \
    ) {                                                                                                          \
        threadgroup atomic_uint count[256];                                                                      \
        threadgroup uint chosen[3];                                                                              \
        threadgroup atomic_uint next[1];                                                                         \
        const Lanes at = {tid, threads, lane, simd, simds};                                                      \
        const Bins bins = {count, chosen};                                                                       \
        top_k_row<T>(p, x, picked, values, indices, next, bins, row, at);                                        \
    }                                                                                                            \
    [[kernel, max_total_threads_per_threadgroup(1024)]] void sample_##NAME(                                      \
        constant SampleParams& p [[buffer(0)]], device const T* x [[buffer(1)]],                                 \
        device const uint* counts [[buffer(2)]], device uint* out [[buffer(3)]], WHERE                           \
    ) {                                                                                                          \
        threadgroup uint keys[32];                                                                               \
        threadgroup uint ids[32];                                                                                \
        threadgroup atomic_uint count[256];                                                                      \
        threadgroup uint chosen[3];                                                                              \
        const Lanes at = {tid, threads, lane, simd, simds};                                                      \
        const Bins bins = {count, chosen};                                                                       \
        sample_row<T>(p, x, counts, out, keys, ids, bins, row, at);                                              \
    }

SAMPLE(float, f32)
SAMPLE(half, f16)
SAMPLE(bfloat, bf16)
