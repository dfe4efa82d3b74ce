// Up to three matrices in cells times the rows of many tokens. A simdgroup has a pair of tiles of 16 rows and 8 N tokens; those of
// a threadgroup share the tokens, whose numbers come through threadgroup memory a cell at a time, the next ones while these are
// multiplied. With a gate, the first tile of a pair is the gate's and the second that of the matrix it gates.

// The vectors of a cell into threadgroup memory, past the registers, of which sums take most. For the same reason nothing that can be
// computed in a few instructions is kept from one cell to the next: `here` says so to compilers.
template <uint N, uint SIMDS>
METAL_FUNC void bring_columns(
    constant ProjectParams& p, device const uint4* columns, uint group, uint cell, uint tid, threadgroup uint4* to
) {
    const uint first = here(group) * N, cells = cells_of(p.cols), last = (p.tokens + 7) / 8 - 1, thread_id = here(tid);
    UNROLL for (uint i = 0; i < N * 64 / (SIMDS * SIMD); i++) {
        const uint at = thread_id + i * SIMDS * SIMD, tile = first + at / 64;
        copy_ahead(to + at, columns + ((min(tile, last) * cells + cell) * 64 + at % 64), tile <= last);
    }
}

// Sixteen columns of a cell as halfs, with their scales: the numbers themselves, to the nearest half, as the vectors are. So nothing
// but sums of floats is left for the products.
template <typename W>
METAL_FUNC uint4 halfs_of(thread const W& w, uint i) {
    const uint4 levels = w.levels(i);
    if (W::SCALED == 0) return levels;
    const half2 scale = as_type<half2>(two_halfs(w.scale(i))), offset = as_type<half2>(two_halfs(-w.offset(i)));
    const uint2 less = uint2(as_type<uint>(half2(offset.x)), as_type<uint>(half2(offset.y)));
    return uint4(
        fma_halfs(levels.x, scale.x, less.x), fma_halfs(levels.y, scale.y, less.y), fma_halfs(levels.z, scale.x, less.x),
        fma_halfs(levels.w, scale.y, less.y));
}

// A half of a cell, a block of 32 columns, times N times 8 tokens.
template <typename W, uint N>
METAL_FUNC void multiply_block(
    thread const W& a, thread const W& b, uint block, threadgroup const uint4* columns, uint lane, thread float4* one,
    thread float4* two
) {
    const uint4 a0 = halfs_of(a, 2 * block), a1 = halfs_of(a, 2 * block + 1);
    const uint4 b0 = halfs_of(b, 2 * block), b1 = halfs_of(b, 2 * block + 1);
    UNROLL for (uint n = 0; n < N; n++) {
        const uint4 x = columns[(n * 2 + block) * SIMD + lane];
        one[n] = unit_product<half>(a0, x.xy, one[n], lane);
        two[n] = unit_product<half>(b0, x.xy, two[n], lane);
        one[n] = unit_product<half>(a1, x.zw, one[n], lane);
        two[n] = unit_product<half>(b1, x.zw, two[n], lane);
    }
}

// What a simdgroup has of a threadgroup's rows: none where there are not so many.
struct Share {
    Tile tile;
    bool live;
    uint row, count;
};

template <uint SIMDS>
METAL_FUNC Share share_of(constant ProjectParams& p, uint group, uint simd) {
    const uint simd_rows = WITH_GATE != 0 ? CELL_ROWS : 2 * CELL_ROWS;
    const Tile tile = tile_of(p, group, simd_rows * SIMDS, WITH_GATE != 0 ? 1 : 3);
    const uint place = simd * simd_rows;
    const bool live = place < tile.places.y;
    return {tile, live, live ? tile.places.x + place : 0, live ? min(simd_rows, tile.places.y - place) : 0};
}

template <uint N, uint SIMDS>
[[kernel, max_total_threads_per_threadgroup(SIMDS * 32)]] void cell_matmul(
    constant ProjectParams& p [[buffer(0)]], device const uint4* columns [[buffer(1)]], device const float* sums [[buffer(2)]],
    device const float* scales [[buffer(3)]], device const uchar* w0 [[buffer(4)]], device const uchar* w1 [[buffer(5)]],
    device const uchar* w2 [[buffer(6)]], device const float* bias0 [[buffer(7)]], device const float* bias1 [[buffer(8)]],
    device const float* bias2 [[buffer(9)]], device const float* residual [[buffer(10)]], device float* out [[buffer(11)]],
    uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]
) {
    threadgroup uint4 column_memory[2 * N * 64];
    const Matrices m = {w0, w1, w2, bias0, bias1, bias2};
    // Tokens go first: threadgroups beside each other share weights. All simdgroups of a threadgroup have rows of one matrix; one
    // that has none has the first ones, and throws its results away.
    const uint part = share_of<SIMDS>(p, group.y, tid / SIMD).tile.part;
    float4 one[N], two[N];
    UNROLL for (uint n = 0; n < N; n++) one[n] = two[n] = float4(0.0f);
    bring_columns<N, SIMDS>(p, columns, group.x, 0, tid, column_memory);
#define MULTIPLY(KIND) { \
        typedef Cells##KIND W; \
        const uint cells = cells_of(p.cols); \
        const Share own = share_of<SIMDS>(p, group.y, tid / SIMD); \
        const ulong bytes = W::bytes(cells); \
        device const uchar* from_one = m.weight_of(part) + own.row / CELL_ROWS * bytes; \
        const uint to_second = WITH_GATE == 0 && own.count > CELL_ROWS ? uint(bytes) : 0; \
        device const uchar* from_two = WITH_GATE != 0 ? w1 + own.row / CELL_ROWS * bytes : from_one; \
        W a, b; \
        a.load(from_one, cells, 0, tid % SIMD); \
        b.load(from_two + to_second, cells, 0, tid % SIMD); \
        ROLLED for (uint cell = 0; cell < cells; cell++) { \
            const uint parity = cell % 2, ahead = here(min(cell + 1, cells - 1)), lane = here(tid) % SIMD; \
            W next_a, next_b; \
            next_a.load(from_one, cells, ahead, lane); \
            if (W::SCALED == 0) next_b.load(from_two + here(to_second), cells, ahead, lane); \
            copies_are_there(); \
            threadgroup_barrier(mem_flags::mem_threadgroup); \
            bring_columns<N, SIMDS>(p, columns, group.x, ahead, tid, column_memory + (1 - parity) * N * 64); \
            multiply_block<W, N>(a, b, 0, column_memory + parity * N * 64, lane, one, two); \
            if (W::SCALED != 0) next_b.load(from_two + here(to_second), cells, ahead, lane); \
            multiply_block<W, N>(a, b, 1, column_memory + parity * N * 64, lane, one, two); \
            a = next_a; \
            b = next_b; \
        } \
    }
    FOR_CELL_TYPE(m.type_of(part), MULTIPLY)
#undef MULTIPLY
    // The last cell was brought once more.
    copies_are_there();
    const Share own = share_of<SIMDS>(p, here(group.y), here(tid) / SIMD);
    if (!own.live) return;
    const uint token = here(group.x) * 8 * N, lane = here(tid) % SIMD, row = own.row, count = own.count;
    const uint width = WITH_GATE != 0 ? p.rows0 : p.rows0 + p.rows1 + p.rows2;
    device const float* bias = m.bias_of(own.tile.part);
    UNROLL for (uint n = 0; n < N; n++) {
        UNROLL for (uint i = 0; i < 4; i++) {
            // Of the rows g and g + 8, tokens 2 t and 2 t + 1.
            const uint t = token + n * 8 + lane % 4 * 2 + i % 2, r = lane / 4 + i / 2 * 8;
            if (t >= p.tokens) continue;
            const float scale = scales[t];
            float first = one[n][i] * scale, second = two[n][i] * scale;
            const ulong to = ulong(t) * width + own.tile.before + row + r;
            if (WITH_GATE != 0) {
                if (r >= count) continue;
                if (WITH_BIAS != 0) {
                    first += bias0[row + r];
                    second += bias1[row + r];
                }
                first = activate(GATE, first) * second;
                if (WITH_RESIDUAL != 0) first += residual[to];
                out[to] = first;
            } else {
                if (r < count) {
                    if (WITH_BIAS != 0) first += bias[row + r];
                    if (WITH_RESIDUAL != 0) first += residual[to];
                    out[to] = first;
                }
                if (r + CELL_ROWS < count) {
                    if (WITH_BIAS != 0) second += bias[row + CELL_ROWS + r];
                    if (WITH_RESIDUAL != 0) second += residual[to + CELL_ROWS];
                    out[to + CELL_ROWS] = second;
                }
            }
        }
    }
}

KERNEL("cell_matmul_32", cell_matmul<4, 4>)
KERNEL("cell_matmul_64", cell_matmul<8, 8>)
KERNEL("cell_matmul_128", cell_matmul<16, 8>)
