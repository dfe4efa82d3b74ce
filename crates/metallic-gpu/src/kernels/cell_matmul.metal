// Up to three matrices in cells times the rows of many tokens. A simdgroup has a pair of tiles of 16 rows and 8 N tokens; those of
// a threadgroup share the tokens, whose numbers come through threadgroup memory a cell at a time, the next ones while these are
// multiplied. With a gate, the first tile of a pair is the gate's and the second that of the matrix it gates.

// What a thread brings of the next cell.
template <uint N, uint SIMDS>
struct Next {
    enum : uint { EACH = N * 64 / (SIMDS * SIMD) };
    uint4 columns[EACH];
    float sum;

    METAL_FUNC void load(device const uint4* from, device const float* sums, uint tiles, uint cells, uint cell, uint tid) {
        UNROLL for (uint i = 0; i < EACH; i++) {
            const uint at = tid + i * SIMDS * SIMD, tile = at / 64;
            columns[i] = tile < tiles ? from[(ulong(tile) * cells + cell) * 64 + at % 64] : uint4(0);
        }
        const uint tile = tid / 16;
        sum = tid < 16 * N && tile < tiles ? sums[(ulong(tile) * cells + cell) * 16 + tid % 16] : 0.0f;
    }
    METAL_FUNC void put(threadgroup uint4* to, threadgroup float* sums, uint tid) const {
        UNROLL for (uint i = 0; i < EACH; i++) to[tid + i * SIMDS * SIMD] = columns[i];
        if (tid < 16 * N) sums[tid] = sum;
    }
};

template <typename W, uint N>
METAL_FUNC void multiply_cell(
    thread const W& a, thread const W& b, threadgroup const uint4* columns, threadgroup const float* sums, uint lane,
    thread float4* one, thread float4* two
) {
    constexpr uint GROUPS = W::SCALED == 16 ? 4 : 2;
    UNROLL for (uint g = 0; g < GROUPS; g++) {
        constexpr uint EACH = 4 / GROUPS;
        const uint first = g * EACH;
        uint4 left[2][EACH];
        UNROLL for (uint i = 0; i < EACH; i++) {
            left[0][i] = a.levels(first + i);
            left[1][i] = b.levels(first + i);
        }
        const float4 scale_a = by_rows(a.scale(first)), scale_b = by_rows(b.scale(first));
        const float4 offset_a = by_rows(a.offset(first)), offset_b = by_rows(b.offset(first));
        UNROLL for (uint n = 0; n < N; n++) {
            const uint4 x = columns[(n * 2 + first / 2) * SIMD + lane];
            if (W::SCALED == 0) {
                UNROLL for (uint i = 0; i < EACH; i++) {
                    const uint2 right = (first + i) % 2 == 0 ? x.xy : x.zw;
                    one[n] = unit_product<half>(left[0][i], right, one[n], lane);
                    two[n] = unit_product<half>(left[1][i], right, two[n], lane);
                }
            } else {
                float4 p = float4(0.0f), q = float4(0.0f);
                UNROLL for (uint i = 0; i < EACH; i++) {
                    const uint2 right = (first + i) % 2 == 0 ? x.xy : x.zw;
                    p = unit_product<half>(left[0][i], right, p, lane);
                    q = unit_product<half>(left[1][i], right, q, lane);
                }
                one[n] = fma(scale_a, p, one[n]);
                two[n] = fma(scale_b, q, two[n]);
                if (W::OFFSET != 0) {
                    const float2 s = *(threadgroup const float2*)(sums + (n * 2 + first / 2) * 8 + lane % 4 * 2);
                    one[n] = fma(-offset_a, s.xyxy, one[n]);
                    two[n] = fma(-offset_b, s.xyxy, two[n]);
                }
            }
        }
    }
}

template <uint N, uint SIMDS>
[[kernel, max_total_threads_per_threadgroup(SIMDS * 32)]] void cell_matmul(
    constant ProjectParams& p [[buffer(0)]], device const uint4* columns [[buffer(1)]], device const float* sums [[buffer(2)]],
    device const float* scales [[buffer(3)]], device const uchar* w0 [[buffer(4)]], device const uchar* w1 [[buffer(5)]],
    device const uchar* w2 [[buffer(6)]], device const float* bias0 [[buffer(7)]], device const float* bias1 [[buffer(8)]],
    device const float* bias2 [[buffer(9)]], device const float* residual [[buffer(10)]], device float* out [[buffer(11)]],
    uint2 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]
) {
    threadgroup uint4 column_memory[2 * N * 64];
    threadgroup float sum_memory[2 * N * 16];
    const Matrices m = {w0, w1, w2, bias0, bias1, bias2};
    const uint each = WITH_GATE != 0 ? CELL_ROWS : 2 * CELL_ROWS;
    // Tokens go first: threadgroups beside each other share weights.
    const uint token = group.x * 8 * N, cells = (p.cols + CELL_COLS - 1) / CELL_COLS;
    const uint tiles = min(N, (p.tokens - token + 7) / 8);
    // All simdgroups of a threadgroup have rows of one matrix; one that has none has the first ones, and throws its results away.
    const Tile tile = tile_of(p, group.y, each * SIMDS, WITH_GATE != 0 ? 1 : 3);
    const uint part = tile.part, place = simd * each;
    const bool live = place < tile.places.y;
    const uint row = live ? tile.places.x + place : 0, count = live ? min(each, tile.places.y - place) : 0;
    columns += ulong(token / 8) * cells * 64;
    sums += ulong(token / 8) * cells * 16;
    float4 one[N], two[N];
    UNROLL for (uint n = 0; n < N; n++) one[n] = two[n] = float4(0.0f);
    Next<N, SIMDS> next;
    next.load(columns, sums, tiles, cells, 0, tid);
    next.put(column_memory, sum_memory, tid);
#define MULTIPLY(KIND) { \
        typedef Cells##KIND W; \
        const ulong bytes = W::bytes(cells); \
        device const uchar* from_one = m.weight_of(part) + row / CELL_ROWS * bytes; \
        device const uchar* from_two = WITH_GATE != 0 ? w1 + row / CELL_ROWS * bytes : count > CELL_ROWS ? from_one + bytes : from_one; \
        W a, b; \
        a.load(from_one, cells, 0, lane); \
        b.load(from_two, cells, 0, lane); \
        ROLLED for (uint cell = 0; cell < cells; cell++) { \
            const uint parity = cell % 2, ahead = min(cell + 1, cells - 1); \
            W next_a, next_b; \
            next_a.load(from_one, cells, ahead, lane); \
            next_b.load(from_two, cells, ahead, lane); \
            next.load(columns, sums, tiles, cells, ahead, tid); \
            threadgroup_barrier(mem_flags::mem_threadgroup); \
            multiply_cell<W, N>( \
                a, b, column_memory + parity * N * 64, sum_memory + parity * N * 16, lane, one, two); \
            next.put(column_memory + (1 - parity) * N * 64, sum_memory + (1 - parity) * N * 16, tid); \
            a = next_a; \
            b = next_b; \
        } \
    }
    FOR_CELL_TYPE(m.type_of(part), MULTIPLY)
#undef MULTIPLY
    if (!live) return;
    const uint width = WITH_GATE != 0 ? p.rows0 : p.rows0 + p.rows1 + p.rows2;
    device const float* bias = m.bias_of(part);
    UNROLL for (uint n = 0; n < N; n++) {
        UNROLL for (uint i = 0; i < 4; i++) {
            // Of the rows g and g + 8, tokens 2 t and 2 t + 1.
            const uint t = token + n * 8 + lane % 4 * 2 + i % 2, r = lane / 4 + i / 2 * 8;
            if (t >= p.tokens) continue;
            const float scale = scales[t];
            float first = one[n][i] * scale, second = two[n][i] * scale;
            const ulong to = ulong(t) * width + tile.before + row + r;
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
