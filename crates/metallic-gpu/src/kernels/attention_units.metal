// Flash attention for many query tokens on matrix units, over a cache of halfs. A threadgroup takes a tile of 32 tokens of one
// sequence and up to four query heads of one key/value head: each of its eight simdgroups has 16 tokens of one head. Keys and
// values of a cache block go through threadgroup memory, the values turned so that those of one dimension lie side by side.
//
// Which key a column of scores belongs to is for us to say: the four columns that a lane has of two neighbouring products are
// four neighbouring keys, which is how it takes the values. The dimensions of a head are shared out alike.

constant constexpr uint UNIT_SIMDS = 8;
constant constexpr uint UNIT_HEADS = 4;
constant constexpr uint MOST_DIMS = 128;
// Halfs from a key to the next, and from a dimension of the values to the next: no two of them on the same banks.
constant constexpr uint KEY_PITCH = MOST_DIMS + 32;
constant constexpr uint VALUE_PITCH = BLOCK_TOKENS + 8;

[[kernel, max_total_threads_per_threadgroup(256)]] void attention_units(
    constant UnitAttentionParams& p [[buffer(0)]], device const float* q [[buffer(1)]],
    device const uchar* keys [[buffer(2)]], device const uchar* values [[buffer(3)]],
    device const uint4* tiles [[buffer(4)]], device const uint* blocks [[buffer(5)]],
    device const float* sinks [[buffer(6)]], device float* out [[buffer(7)]],
    uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    constexpr uint DIMS = MOST_DIMS / 16;
    threadgroup uint4 key_memory[BLOCK_TOKENS * KEY_PITCH / 8];
    threadgroup uint2 value_memory[MOST_DIMS * VALUE_PITCH / 4];
    threadgroup half* turned = (threadgroup half*)value_memory;
    const uint per_kv = p.heads / p.kv_heads, parts = (per_kv + UNIT_HEADS - 1) / UNIT_HEADS;
    const uint kv_head = at.x / parts, own = at.x % parts * UNIT_HEADS + simd / 2;
    const uint head = kv_head * per_kv + min(own, per_kv - 1);
    const uint4 tile = tiles[at.y];
    const uint count = tile.y, visible = tile.w;
    const uint g = lane / 4, t = lane % 4;
    // This lane's rows of queries; one that is not there sees nothing.
    const uint2 rows = uint2(simd % 2 * 16 + g, simd % 2 * 16 + g + 8);
    const bool2 there = bool2(own < per_kv && rows.x < count, own < per_kv && rows.y < count);

    // Queries as halfs, each row scaled by a power of two so that its greatest is below 512.
    uint4 queries[DIMS];
    float2 scales;
    UNROLL for (uint r = 0; r < 2; r++) {
        device const float* row = q + (ulong(tile.x + min(rows[r], count - 1)) * p.heads + head) * HEAD_DIM;
        float top = 0.0f;
        UNROLL for (uint c = 0; c < MOST_DIMS / 32; c++) {
            if (c * 32 >= HEAD_DIM) continue;
            device const float4* from = (device const float4*)(row + c * 32 + t * 8);
            const float4 size = max(fabs(from[0]), fabs(from[1]));
            top = max(top, max(max(size.x, size.y), max(size.z, size.w)));
        }
        top = max(top, simd_shuffle_xor(top, 1));
        top = max(top, simd_shuffle_xor(top, 2));
        const uint exponent = clamp(as_type<uint>(top) >> 23, 9u, 253u);
        const float factor = as_type<float>((262 - exponent) << 23);
        scales[r] = as_type<float>((exponent - 8) << 23) * p.scale;
        UNROLL for (uint c = 0; c < MOST_DIMS / 32; c++) {
            if (c * 32 >= HEAD_DIM) continue;
            device const float4* from = (device const float4*)(row + c * 32 + t * 8);
            UNROLL for (uint h = 0; h < 2; h++) {
                const float4 v = from[h] * factor;
                queries[2 * c + h][r] = two_halfs(v.xy);
                queries[2 * c + h][2 + r] = two_halfs(v.zw);
            }
        }
    }

    float4 sums[MOST_DIMS / 8];
    UNROLL for (uint n = 0; n < MOST_DIMS / 8; n++) sums[n] = float4(0.0f);
    float2 top = float2(LOWEST), total = float2(0.0f);
    const uint2 ends = uint2(there.x ? visible + rows.x : 0, there.y ? visible + rows.y : 0);
    const uint2 begins = uint2(window_begin(ends.x, p.window), window_begin(ends.y, p.window));
    const uint tile_end = visible + count - 1;
    const uint simd_end = visible + min(count, simd % 2 * 16 + 16) - 1;
    ROLLED for (uint b = window_begin(visible, p.window) / BLOCK_TOKENS; b * BLOCK_TOKENS < tile_end; b++) {
        const uint base = b * BLOCK_TOKENS;
        const ulong start = kv_block_start(blocks[tile.z + b], kv_head, p.kv_heads);
        const uint seen = min(BLOCK_TOKENS, tile_end - base);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < BLOCK_TOKENS * HEAD_DIM / 8; i += UNIT_SIMDS * SIMD) {
            const uint key = i % BLOCK_TOKENS, octet = i / BLOCK_TOKENS;
            const ulong from = start + key * kv_row_bytes() + octet * 16;
            // What nobody wrote is no number.
            const uint4 k = key < seen ? *(device const uint4*)(keys + from) : uint4(0);
            const uint4 v = key < seen ? *(device const uint4*)(values + from) : uint4(0);
            key_memory[key * (KEY_PITCH / 8) + octet] = k;
            UNROLL for (uint j = 0; j < 4; j++) {
                const half2 two = as_type<half2>(v[j]);
                turned[(octet * 8 + 2 * j) * VALUE_PITCH + key] = two.x;
                turned[(octet * 8 + 2 * j + 1) * VALUE_PITCH + key] = two.y;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (base >= simd_end) continue;

        // Scores: product j has in column n the key 16 (j / 2) + 4 (n / 2) + 2 (j % 2) + n % 2.
        float4 scores[4];
        UNROLL for (uint j = 0; j < 4; j++) {
            scores[j] = float4(0.0f);
            const uint key = 16 * (j / 2) + 4 * (g / 2) + 2 * (j % 2) + g % 2;
            UNROLL for (uint c = 0; c < MOST_DIMS / 32; c++) {
                if (c * 32 >= HEAD_DIM) continue;
                const uint4 k = key_memory[key * (KEY_PITCH / 8) + c * 4 + t];
                scores[j] = unit_product<half>(queries[2 * c], k.xy, scores[j], lane);
                scores[j] = unit_product<half>(queries[2 * c + 1], k.zw, scores[j], lane);
            }
        }
        float2 high = top;
        UNROLL for (uint j = 0; j < 4; j++) {
            UNROLL for (uint i = 0; i < 4; i++) {
                const uint index = base + 16 * (j / 2) + 4 * t + 2 * (j % 2) + i % 2;
                const bool live = index >= begins[i / 2] && index < ends[i / 2];
                scores[j][i] = live ? capped(scores[j][i] * scales[i / 2], p.softcap) : LOWEST;
                high[i / 2] = max(high[i / 2], scores[j][i]);
            }
        }
        high = max(high, simd_shuffle_xor(high, 1));
        high = max(high, simd_shuffle_xor(high, 2));
        const float2 fade = float2(precise::exp(top.x - high.x), precise::exp(top.y - high.y));
        top = high;
        total *= fade;
        UNROLL for (uint n = 0; n < MOST_DIMS / 8; n++) {
            if (n * 8 < HEAD_DIM) sums[n] *= float4(fade.x, fade.x, fade.y, fade.y);
        }
        uint2 weights[4];
        UNROLL for (uint j = 0; j < 4; j++) {
            float4 w;
            UNROLL for (uint i = 0; i < 4; i++) {
                // Where a row has seen nothing yet, nothing it does not see counts either.
                w[i] = scores[j][i] > LOWEST ? precise::exp(scores[j][i] - high[i / 2]) : 0.0f;
            }
            total += float2(w.x + w.y, w.z + w.w);
            weights[j] = uint2(two_halfs(w.xy), two_halfs(w.zw));
        }
        UNROLL for (uint i = 0; i < 2; i++) {
            const uint4 a = uint4(weights[2 * i], weights[2 * i + 1]);
            UNROLL for (uint n = 0; n < MOST_DIMS / 8; n++) {
                if (n * 8 >= HEAD_DIM) continue;
                const uint2 v = value_memory[((n * 8 + g) * VALUE_PITCH + 16 * i + 4 * t) / 4];
                sums[n] = unit_product<half>(a, v, sums[n], lane);
            }
        }
    }
    total += simd_shuffle_xor(total, 1);
    total += simd_shuffle_xor(total, 2);
    UNROLL for (uint r = 0; r < 2; r++) {
        float unit = 1.0f;
        if (SINKS) {
            const float high = max(top[r], sinks[head]);
            unit = precise::exp(top[r] - high);
            total[r] = total[r] * unit + precise::exp(sinks[head] - high);
        }
        unit *= inverse_or_zero(total[r]);
        if (!there[r]) continue;
        device float* to = out + (ulong(tile.x + rows[r]) * p.heads + head) * HEAD_DIM;
        UNROLL for (uint n = 0; n < MOST_DIMS / 8; n++) {
            if (n * 8 >= HEAD_DIM) continue;
            *(device float2*)(to + n * 8 + t * 2) = float2(sums[n][2 * r], sums[n][2 * r + 1]) * unit;
        }
    }
}
