// The best of each row: one threadgroup per row. Everything that decides is made of integers, of fma and of single sums,
// differences and products, so that every device chooses the same. `metallic_core::sample` is the definition.

// What a row without a choice gives, and words of a record.
constant constexpr uint NO_CANDIDATE = 4294967295u;
constant constexpr uint RECORD_WORDS = 16u;
// Tokens of a part of a row, of which each has a threadgroup where rows are long.
constant constexpr uint CHOICE_PART = 4096u;

// The key of -inf: nothing that is possible has a smaller one.
constant constexpr uint IMPOSSIBLE = 0x007fffff;

// NaN is -inf, inf the largest number, and what is smaller than 2^-100 is 0.
inline float number(float x) {
    const uint bits = as_type<uint>(x);
    const uint size = bits & 0x7fffffffu;
    if (size < 0x0d800000u) return 0.0f;
    if (size > 0x7f800000u) return -INFINITY;
    return bits == 0x7f800000u ? FLT_MAX : x;
}

// Bits in the order of the numbers, and back.
inline uint key_of(float x) {
    const uint bits = as_type<uint>(number(x));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

inline float number_of(uint key) {
    return as_type<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The best of each simdgroup: keys and indices.
struct Bests {
    threadgroup uint* keys;
    threadgroup uint* ids;
};

// The largest key of a row and the lowest index that has it.
inline uint2 best_of_row(uint2 best, Bests bests, Lanes at) {
    uint key = simd_max(best.x);
    uint id = simd_min(best.x == key ? best.y : 0xffffffffu);
    if (at.simds == 1) return uint2(key, id);
    if (at.lane == 0) {
        bests.keys[at.simd] = key;
        bests.ids[at.simd] = id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint theirs = at.lane < at.simds ? bests.keys[at.lane] : 0u;
    const uint where = at.lane < at.simds ? bests.ids[at.lane] : 0xffffffffu;
    key = simd_max(theirs);
    id = simd_min(theirs == key ? where : 0xffffffffu);
    threadgroup_barrier(mem_flags::mem_threadgroup);
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

// `p` of `2^-f = p0 - f (p1 - f (p2 - ..))` times 2^31, highest power first.
constant constexpr uint EXP_SERIES[7] = {245557u, 2770966u, 20607270u, 119182990u, 515881527u, 1488522222u, 2147483648u};

// 2^31 e^d for d <= 0.
inline uint weight(float d) {
    const uint depth = uint(min(d * -12102203.0f, 268435440.0f));
    uint p = EXP_SERIES[0];
    UNROLL for (uint i = 1; i < 7; i++) p = EXP_SERIES[i] - mulhi(p, depth << 9);
    return p >> (depth >> 23);
}

// ceil(total * share / 2^32)
inline ulong part(ulong total, uint share) {
    const ulong low = (total & 0xffffffffu) * share;
    return (total >> 32) * share + (low >> 32) + ((low & 0xffffffffu) != 0 ? 1 : 0);
}

// What an element weighs, by its key: 1, or its probability.
struct Ones {
    uint of(uint) const {
        return 1u;
    }
};

struct Weights {
    float max;

    uint of(uint key) const {
        return weight(number_of(key) - max);
    }
};

// The weight of each bin of a pass, in two halves, and what was found: a bin, how much of it is wanted (low, high half),
// whether that is all of it.
struct Bins {
    threadgroup atomic_uint* low;
    threadgroup atomic_uint* high;
    threadgroup uint* chosen;

    ulong at(uint bin) const {
        const ulong upper = atomic_load_explicit(&high[bin], memory_order_relaxed);
        return upper << 32 | atomic_load_explicit(&low[bin], memory_order_relaxed);
    }

    void add(uint bin, uint weight) const {
        const uint before = atomic_fetch_add_explicit(&low[bin], weight, memory_order_relaxed);
        if (before > ~weight) atomic_fetch_add_explicit(&high[bin], 1u, memory_order_relaxed);
    }
};

// The sum over this lane and those before it.
inline ulong sum_up_to(ulong x, uint lane) {
    for (ushort step = 1; step < SIMD; step *= 2) {
        const ulong low = simd_shuffle_up(uint(x), step);
        const ulong high = simd_shuffle_up(uint(x >> 32), step);
        if (lane >= step) x += high << 32 | low;
    }
    return x;
}

inline bool at_least(uint key, uint i, uint2 pair) {
    return key > pair.x || (key == pair.x && ~i >= pair.y);
}

// How much a beginning has to weigh: so much, or, where there is a share, so much of the whole.
struct Enough {
    ulong weight;
    uint share;
};

// The last pair (key, ~index) of the shortest beginning, in falling order, that weighs enough, among pairs that are at
// least `border`: 8 bits at a time. All pairs differ, so that equals are cut at the lowest indices.
template <typename S, typename W>
uint2 cut_row(S row, uint n, W weights, Enough enough, uint2 border, Bins bins, Lanes at) {
    uint2 pair = 0;
    for (uint pass = 0; pass < 8; pass++) {
        const uint shift = 24 - pass % 4 * 8;
        const bool by_id = pass >= 4;
        // Bits that earlier passes have settled.
        const uint settled = pass % 4 == 0 ? 0u : 0xffffff00u << shift;
        for (uint i = at.tid; i < 256; i += at.threads) {
            atomic_store_explicit(&bins.low[i], 0u, memory_order_relaxed);
            atomic_store_explicit(&bins.high[i], 0u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = at.tid; i < n; i += at.threads) {
            const uint key = row.key(i);
            const uint word = by_id ? ~i : key;
            const bool open = (word & settled) == ((by_id ? pair.y : pair.x) & settled) && (!by_id || key == pair.x);
            if (!open || !at_least(key, i, border)) continue;
            const uint weight = weights.of(key);
            if (weight > 0) bins.add(word >> shift & 255, weight);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (at.simd == 0) {
            // A lane has eight bins; the first lane has the largest.
            ulong sum = 0;
            for (uint j = 0; j < 8; j++) sum += bins.at(255 - at.lane * 8 - j);
            const ulong up_to = sum_up_to(sum, at.lane);
            if (pass == 0 && enough.share > 0) {
                const ulong low = simd_broadcast(uint(up_to), ushort(SIMD - 1));
                const ulong high = simd_broadcast(uint(up_to >> 32), ushort(SIMD - 1));
                enough.weight = part(high << 32 | low, enough.share);
            }
            ulong before = up_to - sum;
            if (before < enough.weight && enough.weight <= up_to) {
                for (uint j = 0; j < 8; j++) {
                    const uint bin = 255 - at.lane * 8 - j;
                    const ulong here = bins.at(bin);
                    if (enough.weight <= before + here) {
                        const ulong wanted = enough.weight - before;
                        bins.chosen[0] = bin;
                        bins.chosen[1] = uint(wanted);
                        bins.chosen[2] = uint(wanted >> 32);
                        // All that are equal belong to them: no index has to decide.
                        bins.chosen[3] = pass == 3 && wanted + weights.of(pair.x | bin) > here ? 1 : 0;
                        break;
                    }
                    before += here;
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // Nobody writes there again before two barriers of the next pass.
        const uint bits = bins.chosen[0] << shift;
        enough.weight = ulong(bins.chosen[2]) << 32 | bins.chosen[1];
        if (by_id) pair.y |= bits;
        else pair.x |= bits;
        if (bins.chosen[3]) break;
    }
    return pair;
}

// The largest number of a row with the lowest index that has it.
template <typename T>
uint2 first_of_row(device const T* x, uint n, Bests bests, Lanes at) {
    // One threadgroup has a row, so several loads are under way at a time.
    constexpr uint AT_ONCE = 4;
    uint2 best = uint2(0u, 0xffffffffu);
    for (uint first = at.tid * 4; first < n; first += AT_ONCE * at.threads * 4) {
        float4 v[AT_ONCE];
        UNROLL for (uint u = 0; u < AT_ONCE; u++) {
            const uint i = first + u * at.threads * 4;
            v[u] = i < n ? load_ragged(x, i, n) : float4(0.0f);
        }
        UNROLL for (uint u = 0; u < AT_ONCE; u++) {
            const uint i = first + u * at.threads * 4;
            UNROLL for (uint j = 0; j < 4; j++) {
                const uint key = key_of(v[u][j]);
                if (i + j < n && key > best.x) best = uint2(key, i + j);
            }
        }
    }
    return best_of_row(best, bests, at);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void argmax(
    constant ChooseParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device uint* out [[buffer(2)]], ROW_THREADS
) {
    threadgroup uint keys[32], ids[32];
    const Lanes at = {tid, threads, lane, simd, simds};
    wait_for_earlier();
    const uint2 best = first_of_row<T>(x + ulong(group) * p.n, p.n, {keys, ids}, at);
    if (tid == 0) out[group] = best.y;
}

// The k best are picked in any order; then each finds its place by counting those before it.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void top_k(
    constant TopKParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device uint* picked [[buffer(2)]],
    device uint* indices [[buffer(3)]], ROW_THREADS
) {
    threadgroup atomic_uint low[256], high[256], next[1];
    threadgroup uint chosen[4];
    const Lanes at = {tid, threads, lane, simd, simds};
    const Bins bins = {low, high, chosen};
    const Numbers<T> numbers = {x + ulong(group) * p.n};
    picked += ulong(group) * p.k * 2;
    indices += ulong(group) * p.k;
    const Enough enough = {p.k, 0u};
    wait_for_earlier();
    const uint2 pair = p.k < p.n ? cut_row(numbers, p.n, Ones(), enough, uint2(0u), bins, at) : uint2(0u);
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
        indices[place] = id;
    }
}

// Philox4x32-10.
inline uint4 philox(uint4 c, uint2 key) {
    for (uint round = 0; round < 10; round++) {
        const uint x = c.x * 0xd2511f53u;
        const uint x_high = mulhi(c.x, 0xd2511f53u);
        const uint y = c.z * 0xcd9e8d57u;
        const uint y_high = mulhi(c.z, 0xcd9e8d57u);
        c = uint4(y_high ^ c.y ^ key.x, y, x_high ^ c.w ^ key.y, x);
        key += uint2(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}

// `p` of `ln(1 + r) = r - r^2/2 + r^3 p(r)`, lowest power first.
constant constexpr float LN_SERIES[8] = {0.3333332f, -0.24999988f, 0.2000378f, -0.1667014f, 0.1411831f, -0.1234619f, 0.1342575f, -0.12125581f};

// The natural logarithm of a normal number above 0, step by step as the core defines it.
inline float exact_ln(float x) {
    const uint bits = as_type<uint>(x);
    const int e = as_type<int>(bits - 0x3f2aaaabu) >> 23;
    const float r = as_type<float>(bits - (uint(e) << 23)) - 1.0f;
    float p = LN_SERIES[7];
    UNROLL for (uint i = 7; i > 0; i--) p = fma(p, r, LN_SERIES[i - 1]);
    return fma(float(e), 0.6931472f, fma(r * r, fma(r, p, -0.5f), r));
}

// No noise is less, or more.
constant constexpr float LEAST_NOISE = -3.0f;
constant constexpr float MOST_NOISE = 16.75f;

inline float gumbel(uint bits) {
    const float uniform = (float(bits >> 9) + 0.5f) * (1.0f / 8388608.0f);
    return -exact_ln(-exact_ln(uniform));
}

// Between the smallest and the largest number; 0 where it is nearly.
inline float bounded(float x) {
    return max(number(x), -FLT_MAX);
}

// The count of a token that gets the penalty of repetition alone.
constant constexpr uint REPEATED = 0xffffffffu;

// What penalties do to the number of a token that came before.
inline float penalised(float x, uint count, float2 factors, float presence, float frequency) {
    if (count == REPEATED) return bounded(x * (x > 0.0f ? factors.y : factors.x));
    x = bounded(fma(x, x > 0.0f ? factors.y : factors.x, -presence));
    return bounded(fma(-float(count), frequency, x));
}

// Biases and penalties of the tokens in `span`, in place. Each token is edited once.
inline void edit_row(device float* x, uint2 span, device const uint* edits, ChoiceRecord c, Lanes at) {
    for (uint e = at.tid; e < c.edits; e += at.threads) {
        const uint id = edits[3 * e];
        const uint count = edits[3 * e + 1];
        const float bias = as_type<float>(edits[3 * e + 2]);
        if (id < span.x || id >= span.y) continue;
        float v = number(x[id]);
        if (v > -INFINITY && bias > -INFINITY) {
            v = bounded(v + bias);
            if (count > 0) v = penalised(v, count, float2(c.repetition, c.inverse_repetition), c.presence, c.frequency);
        } else {
            v = -INFINITY;
        }
        x[id] = v;
    }
    threadgroup_barrier(mem_flags::mem_device);
}

// The largest score of those that are at least `border`.
inline uint2 draw_row(
    device const float* x, uint n, ChoiceRecord c, float max, uint2 border, Bests bests, Lanes at
) {
    uint2 best = uint2(0u, 0xffffffffu);
    float bar = LEAST_NOISE;
    for (uint i = at.tid * 4; i < n; i += at.threads * 4) {
        const float4 v = load_ragged(x, i, n);
        bool fits[4];
        bool any = false;
        UNROLL for (uint j = 0; j < 4; j++) {
            const bool in_reach = fma(number(v[j]) - max, c.inverse_temperature, MOST_NOISE) >= bar;
            fits[j] = i + j < n && in_reach && at_least(key_of(v[j]), i + j, border);
            any = any || fits[j];
        }
        if (!any) continue;
        const uint4 bits = philox(uint4(i / 4, 0u, c.draw_low, c.draw_high), uint2(c.seed_low, c.seed_high));
        UNROLL for (uint j = 0; j < 4; j++) {
            if (!fits[j]) continue;
            const float score = fma(number(v[j]) - max, c.inverse_temperature, gumbel(bits[j]));
            const uint key = key_of(score);
            if (key > best.x) best = uint2(key, i + j);
            bar = score > bar ? score : bar;
        }
    }
    return best_of_row(best, bests, at);
}

inline ChoiceRecord record_of(device const uint* choices, uint row) {
    return *(device const ChoiceRecord*)(choices + ulong(row) * RECORD_WORDS);
}

// The largest number of the tokens in `span` once they are edited, and the lowest of them that has it.
inline uint2 first_edited(
    device float* x, uint2 span, device const uint* choices, ChoiceRecord c, Bests bests, Lanes at
) {
    if (c.edits > 0) edit_row(x, span, choices + c.edits_at, c, at);
    const uint2 best = first_of_row<float>(x + span.x, span.y - span.x, bests, at);
    return uint2(best.x, best.y + span.x);
}

// The first of what the parts of a row have found.
inline uint2 first_of_parts(device const uint2* found, uint parts, Bests bests, Lanes at) {
    uint2 best = uint2(0u, 0xffffffffu);
    for (uint i = at.tid; i < parts; i += at.threads) {
        if (found[i].x > best.x) best = found[i];
    }
    return best_of_row(best, bests, at);
}

// The token of a row whose largest number this is; its tokens are edited.
inline uint choose_row(device const float* x, uint n, ChoiceRecord c, uint2 first, Bests bests, Bins bins, Lanes at) {
    if (first.x <= IMPOSSIBLE) return NO_CANDIDATE;
    if (c.inverse_temperature == 0.0f) return first.y;
    const float max = number_of(first.x);
    const Numbers<float> numbers = {x};
    uint2 border = 0u;
    if (c.top_k > 0 && c.top_k < n) {
        const Enough enough = {c.top_k, 0u};
        border = cut_row(numbers, n, Ones(), enough, border, bins, at);
    }
    if (c.top_p > 0) {
        const Weights weights = {max};
        const Enough enough = {0ul, c.top_p};
        border = cut_row(numbers, n, weights, enough, border, bins, at);
    }
    const uint least = key_of(max + c.ln_min_p);
    if (least > border.x) border = uint2(least, 0u);
    return draw_row(x, n, c, max, border, bests, at).y;
}

EACH_FLOAT("argmax", argmax)
EACH_FLOAT("top_k", top_k)

// Every stage of choosing but the one of typical tokens. The logits of edited tokens are written over. A row is as it came, or has gone
// through `choose_parts`.
[[kernel, max_total_threads_per_threadgroup(1024)]] void choose(
    constant ChooseParams& p [[buffer(0)]], device float* x [[buffer(1)]], device const uint* choices [[buffer(2)]],
    device const uint2* found [[buffer(3)]], device uint* out [[buffer(4)]], ROW_THREADS
) {
    threadgroup uint keys[32], ids[32], chosen[4];
    threadgroup atomic_uint low[256], high[256];
    const Lanes at = {tid, threads, lane, simd, simds};
    const Bests bests = {keys, ids};
    const Bins bins = {low, high, chosen};
    wait_for_earlier();
    const ChoiceRecord c = record_of(choices, group);
    x += ulong(group) * p.n;
    const uint2 first = p.parts > 0 ? first_of_parts(found + ulong(group) * p.parts, p.parts, bests, at)
                                    : first_edited(x, uint2(0u, p.n), choices, c, bests, at);
    const uint id = choose_row(x, p.n, c, first, bests, bins, at);
    if (tid == 0) out[group] = id;
}

// What begins it where one threadgroup would take too long for a row: each edits the tokens of a part, and finds the first of them.
[[kernel, max_total_threads_per_threadgroup(1024)]] void choose_parts(
    constant ChooseParams& p [[buffer(0)]], device float* x [[buffer(1)]], device const uint* choices [[buffer(2)]],
    device uint2* found [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]
) {
    threadgroup uint keys[32], ids[32];
    const Lanes at = {tid, threads, lane, simd, simds};
    const Bests bests = {keys, ids};
    wait_for_earlier();
    const uint2 span = uint2(group.x * CHOICE_PART, min(p.n, (group.x + 1) * CHOICE_PART));
    const uint2 first = first_edited(x + ulong(group.y) * p.n, span, choices, record_of(choices, group.y), bests, at);
    if (tid == 0) found[ulong(group.y) * p.parts + group.x] = first;
}
