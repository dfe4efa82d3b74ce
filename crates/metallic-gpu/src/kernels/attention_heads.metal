// Attention of few query tokens on matrix units, over a cache of halfs. A threadgroup serves one token and up to eight query heads
// of one key/value head, which are rows of a product; its simdgroups take cache blocks in turn. A number is two halfs, which
// are two rows: nothing is rounded that the cache has not rounded, and keys and values are read once.
//
// A simdgroup copies the keys and the values of a block to threadgroup memory before it needs them: all of them are under way at once,
// before the kernels before are done but for what those write, and the next block's keys while it is at the values. Which key a column of scores belongs to, and which dimension one of the sums,
// is for us to say: a lane takes 16 bytes of a key or of a value at a time.

constant constexpr uint MOST_DIMS = 128;
constant constexpr uint ROOM = 8;

// Two numbers as halfs, and what is left of them.
METAL_FUNC uint2 most_and_rest(float2 x) {
    const uint most = two_halfs(x);
    return uint2(most, two_halfs(x - float2(as_type<half2>(most))));
}

// 16 bytes each that a key has, and where they lie: so that lanes that read at a time do not meet on the same banks, where a key has
// whole lines.
constant uint EIGHTHS = HEAD_DIM / 8;
METAL_FUNC uint key_place(uint key, uint eighth) {
    return key * EIGHTHS + (EIGHTHS % 8 == 0 ? eighth ^ (key % 2 * 4) : eighth);
}
METAL_FUNC uint value_place(uint key, uint eighth) {
    return key * EIGHTHS + (EIGHTHS % 8 == 0 ? eighth ^ (key / 4 % 4 * 2) : eighth);
}

// Those keys or values of a block on their way that are in `span`, zeros for those that do not count: what nobody wrote is no number.
template <bool KEYS>
METAL_FUNC void copy_block(threadgroup uint4* to, device const uchar* from, uint2 span, uint2 counts, uint lane) {
    // Not at full length: a kernel's code is read from memory too.
    _Pragma("clang loop unroll_count(4)")
    for (uint j = 0; j < EIGHTHS; j++) {
        const uint i = j * SIMD + lane, key = i / EIGHTHS, eighth = i % EIGHTHS;
        if (key < span.x || key >= span.y) continue;
        const bool live = key >= counts.x && key < counts.y;
        copy_ahead(to + (KEYS ? key_place(key, eighth) : value_place(key, eighth)), (device const uint4*)from + (live ? i : 0), live);
    }
}

[[kernel, max_total_threads_per_threadgroup(256)]] void attention_heads(
    constant AttentionParams& p [[buffer(0)]], device const float* q [[buffer(1)]],
    device const uchar* keys [[buffer(2)]], device const uchar* values [[buffer(3)]],
    device const uint2* rows [[buffer(4)]], device const uint* blocks [[buffer(5)]],
    device const float* sinks [[buffer(6)]], device float* out [[buffer(7)]], device float2* stats [[buffer(8)]],
    threadgroup uint4* shared [[threadgroup(0)]], uint3 at [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    // at.x: a key/value head and a part of its query heads; at.y: token; at.z: split.
    const uint per_kv = p.heads / p.kv_heads, parts = (per_kv + p.part - 1) / p.part;
    const uint kv_head = at.x / parts, part = at.x % parts;
    const uint head = kv_head * per_kv + part * p.part, count = min(p.part, per_kv - part * p.part);
    const uint g = lane / 4, t = lane % 4;
    const uint2 row = rows[at.y];
    const uint end = row.y, begin = window_begin(end, p.window);
    const uint first = begin / BLOCK_TOKENS + at.z * p.span;
    const uint last = min((end + BLOCK_TOKENS - 1) / BLOCK_TOKENS, first + p.span);
    // The keys of a block, then its values.
    threadgroup uint4* near = shared + simd * 2 * BLOCK_TOKENS * EIGHTHS;
    threadgroup uint4* beside = near + BLOCK_TOKENS * EIGHTHS;
    uint block = first + simd < last ? blocks[row.x + first + simd] : 0;
    // What this step writes is among a row's last tokens, as many as the step has; those before are there already, `old` of the block.
    const uint from = (first + simd) * BLOCK_TOKENS, sure = end - min(end, groups.y), old = min(sure - min(sure, from), BLOCK_TOKENS);
    const uint2 seen = uint2(max(begin, from) - from, end - from);
    const bool some = first + simd < last;
    const ulong place = kv_block_start(block, kv_head, p.kv_heads);
    if (some) {
        copy_block<true>(near, keys + place, uint2(0, old), uint2(0, seen.y), lane);
        copy_block<false>(beside, values + place, uint2(0, old), seen, lane);
    }
    wait_for_earlier();
    const bool fresh = some && old < BLOCK_TOKENS;
    if (fresh) copy_block<true>(near, keys + place, uint2(old, BLOCK_TOKENS), uint2(0, seen.y), lane);
    copies_go();
    if (fresh) copy_block<false>(beside, values + place, uint2(old, BLOCK_TOKENS), seen, lane);
    copies_go();

    // The queries of head g, scaled by a power of two so that the greatest is below 512; of one that is not there, the last one's.
    uint4 queries[MOST_DIMS / 16];
    float scale;
    {
        device const float* own = q + (ulong(at.y) * p.heads + head + min(g, count - 1)) * HEAD_DIM + t * 8;
        float4 v[MOST_DIMS / 16];
        float top = 0.0f;
        UNROLL for (uint i = 0; i < MOST_DIMS / 16; i++) {
            v[i] = i * 16 < HEAD_DIM ? *(device const float4*)(own + i / 2 * 32 + i % 2 * 4) : float4(0.0f);
            const float4 size = fabs(v[i]);
            top = max(top, max(max(size.x, size.y), max(size.z, size.w)));
        }
        top = max(top, simd_shuffle_xor(top, 1));
        top = max(top, simd_shuffle_xor(top, 2));
        const uint exponent = clamp(as_type<uint>(top) >> 23, 9u, 253u);
        const float factor = as_type<float>((262 - exponent) << 23);
        scale = as_type<float>((exponent - 8) << 23) * p.scale;
        UNROLL for (uint i = 0; i < MOST_DIMS / 16; i++)
            queries[i] = uint4(most_and_rest(v[i].xy * factor), most_and_rest(v[i].zw * factor));
    }

    float4 sums[MOST_DIMS / 8];
    UNROLL for (uint n = 0; n < MOST_DIMS / 8; n++) sums[n] = float4(0.0f);
    float top = LOWEST, total = 0.0f;
    ROLLED for (uint b = first + simd; b < last; b += simds) {
        const uint base = b * BLOCK_TOKENS;
        const bool more = b + simds < last;
        if (more) block = blocks[row.x + b + simds];
        const ulong start = kv_block_start(block, kv_head, p.kv_heads);
        // Of the next block: a window ends before it begins.
        const uint count = end - min(end, base + simds * BLOCK_TOKENS);
        all_copies_but<1>();
        simdgroup_barrier(mem_flags::mem_threadgroup);
        // Product j has in column n the key 16 (j / 2) + 4 (n / 2) + 2 (j % 2) + n % 2.
        // The four of them go side by side: each waits for its own part before.
        float4 both[4] = {float4(0.0f), float4(0.0f), float4(0.0f), float4(0.0f)};
        UNROLL for (uint c = 0; c < MOST_DIMS / 32; c++) {
            if (c * 32 >= HEAD_DIM) continue;
            uint4 own[4];
            UNROLL for (uint j = 0; j < 4; j++) own[j] = near[key_place(16 * (j / 2) + 4 * (g / 2) + 2 * (j % 2) + g % 2, 4 * c + t)];
            UNROLL for (uint j = 0; j < 4; j++) both[j] = unit_product<half>(queries[2 * c], own[j].xy, both[j], lane);
            UNROLL for (uint j = 0; j < 4; j++) both[j] = unit_product<half>(queries[2 * c + 1], own[j].zw, both[j], lane);
        }
        float2 scores[4];
        float high = top;
        UNROLL for (uint j = 0; j < 4; j++) {
            UNROLL for (uint i = 0; i < 2; i++) {
                const uint index = base + 16 * (j / 2) + 4 * t + 2 * (j % 2) + i;
                const bool live = index >= begin && index < end;
                scores[j][i] = live ? capped((both[j][i] + both[j][2 + i]) * scale, p.softcap) : LOWEST;
                high = max(high, scores[j][i]);
            }
        }
        // Everyone has read the keys.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (more) copy_block<true>(near, keys + start, uint2(0, BLOCK_TOKENS), uint2(0, count), lane);
        copies_go();
        high = max(high, simd_shuffle_xor(high, 1));
        high = max(high, simd_shuffle_xor(high, 2));
        if (b > first + simd) {
            const float fade = precise::exp(top - high);
            total *= fade;
            UNROLL for (uint n = 0; n < MOST_DIMS / 8; n++) sums[n] *= fade;
        }
        top = high;
        uint2 weights[4];
        UNROLL for (uint j = 0; j < 4; j++) {
            float2 w;
            // Where a row has seen nothing yet, nothing it does not see counts either; what is no number stays none.
            UNROLL for (uint i = 0; i < 2; i++) w[i] = scores[j][i] == LOWEST ? 0.0f : precise::exp(scores[j][i] - high);
            total += w.x + w.y;
            weights[j] = most_and_rest(w);
        }
        all_copies_but<1>();
        simdgroup_barrier(mem_flags::mem_threadgroup);
        // Sums n = 8 c + d have in column i the dimension 64 c + 8 i + d.
        UNROLL for (uint c = 0; c < MOST_DIMS / 64; c++) {
            if (c * 64 >= HEAD_DIM) continue;
            uint4 own[2][4];
            UNROLL for (uint i = 0; i < 2; i++) {
                UNROLL for (uint k = 0; k < 4; k++) {
                    const uint eighth = 8 * c + g;
                    own[i][k] = eighth < EIGHTHS ? beside[value_place(16 * i + 4 * t + k, eighth)] : uint4(0);
                }
            }
            UNROLL for (uint i = 0; i < 2; i++) {
                const uint4 a = uint4(weights[2 * i], weights[2 * i + 1]);
                UNROLL for (uint d = 0; d < 8; d++) {
                    uint2 pairs;
                    UNROLL for (uint k = 0; k < 2; k++) {
                        const uint x = own[i][2 * k][d / 2], y = own[i][2 * k + 1][d / 2];
                        pairs[k] = d % 2 == 0 ? (x & 0xffffu) | y << 16 : x >> 16 | (y & 0xffff0000u);
                    }
                    sums[8 * c + d] = unit_product<half>(a, pairs, sums[8 * c + d], lane);
                }
            }
        }
        // And the values.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        if (more) copy_block<false>(beside, values + start, uint2(0, BLOCK_TOKENS), uint2(0, count), lane);
        copies_go();
    }
    total += simd_shuffle_xor(total, 1);
    total += simd_shuffle_xor(total, 2);

    // The simdgroups' greatest scores and sums, behind the blocks; what each has of the values, where its block was: a row for each of a
    // lane's sums, no two of a lane's neighbours on the same banks.
    constexpr uint ROW = SIMD + 1;
    const uint apart = 2 * BLOCK_TOKENS * EIGHTHS * 4;
    threadgroup float* parts_of_sums = (threadgroup float*)shared;
    threadgroup float* tops = parts_of_sums + simds * apart;
    threadgroup float* totals = tops + simds * ROOM;
    if (t == 0) {
        tops[simd * ROOM + g] = top;
        totals[simd * ROOM + g] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const bool whole = p.splits == 1;
    // Four lanes have a head, and every fourth simdgroup each.
    float high = LOWEST, sum = 0.0f;
    for (uint s = t; s < simds; s += 4) high = max(high, tops[s * ROOM + g]);
    if (whole && SINKS) high = max(high, sinks[head + min(g, count - 1)]);
    high = max(high, simd_shuffle_xor(high, 1));
    high = max(high, simd_shuffle_xor(high, 2));
    for (uint s = t; s < simds; s += 4) sum += totals[s * ROOM + g] * precise::exp(tops[s * ROOM + g] - high);
    if (whole && SINKS && t == 0) sum += precise::exp(sinks[head + min(g, count - 1)] - high);
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    const float share = precise::exp(top - high) * (whole ? inverse_or_zero(sum) : 1.0f);
    threadgroup float* mine = parts_of_sums + simd * apart + lane;
    UNROLL for (uint n = 0; n < MOST_DIMS / 8; n++) {
        if (n / 8 * 64 >= HEAD_DIM) continue;
        mine[2 * n * ROW] = (sums[n].x + sums[n].z) * share;
        mine[(2 * n + 1) * ROW] = (sums[n].y + sums[n].w) * share;
    }
    if (!whole && simd == 0 && t == 0 && g < count)
        stats[(ulong(at.y) * p.heads + head + g) * p.splits + at.z] = float2(high, sum);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < count * HEAD_DIM; i += simds * SIMD) {
        const uint h = i / HEAD_DIM, dim = i % HEAD_DIM;
        // Lane 4 h + dim % 64 / 16 has it, see above.
        const uint row = 2 * (dim / 64 * 8 + dim % 8) + dim % 16 / 8;
        threadgroup const float* part = parts_of_sums + row * ROW + 4 * h + dim % 64 / 16;
        float y = 0.0f;
        for (uint s = 0; s < simds; s++) y += part[s * apart];
        const ulong to = ulong(at.y) * p.heads + head + h;
        out[(whole ? to : to * p.splits + at.z) * HEAD_DIM + dim] = y;
    }
}
