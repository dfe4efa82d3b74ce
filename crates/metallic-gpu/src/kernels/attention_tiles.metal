// Flash attention for many query tokens: a threadgroup takes a tile of 32 tokens of one sequence and one head. Each of its
// four simdgroups has 8 rows of queries and of the result in matrices of 8 × 8; keys and values come block by block, 64
// dimensions at a time, through threadgroup memory.

constant constexpr uint TILE_THREADS = 128;
// Dimensions of a head that are staged at a time: 8 matrices.
constant constexpr uint STAGED = 64;
// Floats from a staged row to the next, and from a row of scores to the next: no power of two, for the banks' sake.
constant constexpr uint STRIDE = STAGED + 4;
constant constexpr uint SCORES = BLOCK_TOKENS + 4;

// Dimensions `64 c ..` of the rows of a cache block; rows past `visible` are zeros, whatever lies there.
inline void stage_block(
    device const uchar* block, uint c, uint visible, threadgroup float* staged, uint tid
) {
    const uint eights = min(STAGED, HEAD_DIM - c * STAGED) / 8;
    const uint bytes = kv_row_bytes();
    for (uint i = tid; i < BLOCK_TOKENS * eights; i += TILE_THREADS) {
        const uint key = i / eights, col = i % eights * 8;
        float4 a = float4(0.0f), b = float4(0.0f);
        if (key < visible) kv_load8(block + key * bytes, c * STAGED + col, a, b);
        threadgroup float4* to = (threadgroup float4*)(staged + key * STRIDE + col);
        to[0] = a;
        to[1] = b;
    }
}

// M: matrices side by side that a head of HEAD_DIM ≤ 8 M takes.
template <uint M>
[[kernel, max_total_threads_per_threadgroup(128)]] void attend_tile(
    constant TileParams& p [[buffer(0)]], device const float* q [[buffer(1)]], device const uchar* keys [[buffer(2)]],
    device const uchar* values [[buffer(3)]], device const uint4* tiles [[buffer(4)]],
    device const uint* blocks [[buffer(5)]], device const float* sinks [[buffer(6)]], device float* out [[buffer(7)]],
    uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]
) {
    threadgroup float4 staged_rows[BLOCK_TOKENS * STRIDE / 4];
    threadgroup float all_scores[4 * 8 * SCORES], diagonals[4 * 64];
    threadgroup float* staged = (threadgroup float*)staged_rows;
    threadgroup float* scores = all_scores + simd * 8 * SCORES;
    threadgroup float* diagonal = diagonals + simd * 64;
    const uint head = at.x, kv_head = head / (p.heads / p.kv_heads);
    const uint4 tile = tiles[at.y];
    const uint count = tile.y, visible = tile.w;
    const uint matrices = HEAD_DIM / 8;
    diagonal[lane] = diagonal[lane + 32] = 0.0f;

    simdgroup_float8x8 queries[M], sums[M];
    UNROLL for (uint c = 0; c < M / 8; c++) {
        if (c * STAGED >= HEAD_DIM) continue;
        const uint cols = min(STAGED, HEAD_DIM - c * STAGED);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < 32 * cols; i += TILE_THREADS) {
            const uint row = i / cols, col = i % cols;
            const ulong from = (ulong(tile.x + row) * p.heads + head) * HEAD_DIM + c * STAGED + col;
            staged[row * STRIDE + col] = row < count ? q[from] * p.scale : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (uint i = 0; i < 8; i++) {
            if (8 * c + i >= matrices) continue;
            simdgroup_load(queries[8 * c + i], staged + simd * 8 * STRIDE + 8 * i, STRIDE);
            sums[8 * c + i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }

    // Four lanes share a row of scores, 8 keys each.
    const uint row = lane / 4, col = lane % 4 * 8;
    const uint query = simd * 8 + row;
    const uint row_end = query < count ? visible + query : 0;
    const uint row_begin = window_begin(row_end, p.window);
    // What any row of the simdgroup, and of the tile, may see.
    const uint some = min(8u, count - min(count, simd * 8));
    const uint simd_end = some > 0 ? visible + simd * 8 + some - 1 : 0;
    const uint simd_begin = window_begin(visible + simd * 8, p.window);
    const uint tile_end = visible + count - 1;
    float top = LOWEST, total = 0.0f;
    for (uint b = window_begin(visible, p.window) / BLOCK_TOKENS; b * BLOCK_TOKENS < tile_end; b++) {
        const uint base = b * BLOCK_TOKENS;
        const ulong start = kv_block_start(blocks[tile.z + b], kv_head, p.kv_heads);
        const bool live = base < simd_end && base + BLOCK_TOKENS > simd_begin;
        const uint eights = live ? (min(BLOCK_TOKENS, simd_end - base) + 7) / 8 : 0;
        simdgroup_float8x8 products[4];
        UNROLL for (uint k = 0; k < 4; k++) products[k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        UNROLL for (uint c = 0; c < M / 8; c++) {
            if (c * STAGED >= HEAD_DIM) continue;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage_block(keys + start, c, tile_end - base, staged, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL for (uint i = 0; i < 8; i++) {
                if (8 * c + i >= matrices) continue;
                UNROLL for (uint k = 0; k < 4; k++) {
                    if (k >= eights) continue;
                    simdgroup_float8x8 key;
                    simdgroup_load(key, staged + 8 * k * STRIDE + 8 * i, STRIDE, ulong2(0, 0), true);
                    simdgroup_multiply_accumulate(products[k], queries[8 * c + i], key, products[k]);
                }
            }
        }
        simdgroup_float8x8 weights[4];
        if (live) {
            UNROLL for (uint k = 0; k < 4; k++) simdgroup_store(products[k], scores + 8 * k, SCORES);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            float own[8];
            float high = top;
            UNROLL for (uint j = 0; j < 8; j++) {
                const uint index = base + col + j;
                const bool seen = index >= row_begin && index < row_end;
                own[j] = seen ? capped(scores[row * SCORES + col + j], p.softcap) : LOWEST;
                high = max(high, own[j]);
            }
            high = quad_max(high);
            const float fade = precise::exp(top - high);
            top = high;
            total *= fade;
            UNROLL for (uint j = 0; j < 8; j++) {
                const uint index = base + col + j;
                const float weight = index >= row_begin && index < row_end ? precise::exp(own[j] - high) : 0.0f;
                total += weight;
                scores[row * SCORES + col + j] = weight;
            }
            if (col == 0) diagonal[row * 9] = fade;
            simdgroup_barrier(mem_flags::mem_threadgroup);
            simdgroup_float8x8 fades;
            simdgroup_load(fades, diagonal, 8);
            UNROLL for (uint i = 0; i < M; i++) {
                if (i >= matrices) continue;
                simdgroup_float8x8 faded;
                simdgroup_multiply(faded, fades, sums[i]);
                sums[i] = faded;
            }
            UNROLL for (uint k = 0; k < 4; k++) simdgroup_load(weights[k], scores + 8 * k, SCORES);
        }
        UNROLL for (uint c = 0; c < M / 8; c++) {
            if (c * STAGED >= HEAD_DIM) continue;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage_block(values + start, c, tile_end - base, staged, tid);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL for (uint i = 0; i < 8; i++) {
                if (8 * c + i >= matrices) continue;
                UNROLL for (uint k = 0; k < 4; k++) {
                    if (k >= eights) continue;
                    simdgroup_float8x8 value;
                    simdgroup_load(value, staged + 8 * k * STRIDE + 8 * i, STRIDE);
                    simdgroup_multiply_accumulate(sums[8 * c + i], weights[k], value, sums[8 * c + i]);
                }
            }
        }
    }

    total = quad_sum(total);
    float unit = 1.0f;
    if (SINKS) {
        const float high = max(top, sinks[head]);
        unit = precise::exp(top - high);
        total = total * unit + precise::exp(sinks[head] - high);
    }
    if (col == 0) diagonal[row * 9] = unit * inverse_or_zero(total);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 units;
    simdgroup_load(units, diagonal, 8);
    UNROLL for (uint c = 0; c < M / 8; c++) {
        if (c * STAGED >= HEAD_DIM) continue;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (uint i = 0; i < 8; i++) {
            if (8 * c + i >= matrices) continue;
            simdgroup_float8x8 done;
            simdgroup_multiply(done, units, sums[8 * c + i]);
            simdgroup_store(done, staged + simd * 8 * STRIDE + 8 * i, STRIDE);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint cols = min(STAGED, HEAD_DIM - c * STAGED);
        for (uint i = tid; i < count * cols; i += TILE_THREADS) {
            const ulong to = (ulong(tile.x + i / cols) * p.heads + head) * HEAD_DIM + c * STAGED + i % cols;
            out[to] = staged[i / cols * STRIDE + i % cols];
        }
    }
}

KERNEL("attention_tiles_8", attend_tile<8>)
KERNEL("attention_tiles_16", attend_tile<16>)
KERNEL("attention_tiles_32", attend_tile<32>)
