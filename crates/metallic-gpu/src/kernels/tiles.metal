// Products of tiles. A threadgroup of four simdgroups has TILE by TILE results, each simdgroup a quarter of them as
// blocks of 8 by 8; both sides go through threadgroup memory in runs of DEPTH columns, as floats.

constant constexpr uint TILE = 64;
constant constexpr uint DEPTH = 32;
// Floats from one row of a run to the next: rows begin on banks of their own.
constant constexpr uint RUN_PITCH = DEPTH + 4;
constant constexpr uint TILE_THREADS = 128;
// Two runs while products are made, all results afterwards.
constant constexpr uint TILE_FLOATS = 2 * TILE * RUN_PITCH;
static_assert(TILE * TILE <= TILE_FLOATS, "results fit where the runs were");

struct Quarter {
    simdgroup_float8x8 sum[4][4];
    uint2 from;   // first row of a and of b, within the tile
    uint2 blocks; // blocks of 8 that hold any results
};

// The quarter of a simdgroup, where `left.x` rows of a and `left.y` rows of b are left from the tile's first on.
inline void begin(thread Quarter& q, uint simd, uint2 left) {
    q.from = uint2(simd / 2, simd % 2) * 32;
    q.blocks = min(uint2(4), (max(left, q.from) - q.from + 7) / 8);
    UNROLL for (uint i = 0; i < 4; i++) {
        UNROLL for (uint j = 0; j < 4; j++) q.sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
}

// Adds the products of the runs in threadgroup memory: a [TILE, DEPTH], then b [TILE, DEPTH].
inline void multiply(thread Quarter& q, threadgroup const float* runs) {
    threadgroup const float* a = runs + q.from.x * RUN_PITCH;
    threadgroup const float* b = runs + (TILE + q.from.y) * RUN_PITCH;
    for (uint k = 0; k < DEPTH; k += 8) {
        simdgroup_float8x8 right[4];
        UNROLL for (uint j = 0; j < 4; j++) {
            if (j < q.blocks.y) simdgroup_load(right[j], b + j * 8 * RUN_PITCH + k, RUN_PITCH, ulong2(0, 0), true);
        }
        UNROLL for (uint i = 0; i < 4; i++) {
            if (i >= q.blocks.x) continue;
            simdgroup_float8x8 left;
            simdgroup_load(left, a + i * 8 * RUN_PITCH + k, RUN_PITCH);
            UNROLL for (uint j = 0; j < 4; j++) {
                if (j < q.blocks.y) simdgroup_multiply_accumulate(q.sum[i][j], left, right[j], q.sum[i][j]);
            }
        }
    }
}

// Results to threadgroup memory, [TILE, TILE]; a simdgroup may then read its own quarter.
inline void finish(thread Quarter& q, threadgroup float* results) {
    UNROLL for (uint i = 0; i < 4; i++) {
        UNROLL for (uint j = 0; j < 4; j++) {
            if (i < q.blocks.x && j < q.blocks.y) {
                simdgroup_store(q.sum[i][j], results + (q.from.x + i * 8) * TILE + q.from.y + j * 8, TILE);
            }
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}
