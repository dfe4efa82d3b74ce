// Matrices in cells times the vectors of a tile of up to eight tokens, which are halfs and lie as `cell_columns` leaves them: every
// column of a matrix unit's product is a token. Teams share pairs of tiles as in `cell_dots.metal`; nothing is staged.

// The vectors: numbers, and the sums of each 32.
struct Eights {
    device const uint4* columns;
    device const float* sums;
};

template <typename W>
METAL_FUNC void add_eight(thread const W& w, uint4 x, float2 s, uint first, uint lane, thread float4& to) {
    if (W::SCALED == 0) {
        to = unit_product<half>(w.levels(first), x.xy, to, lane);
        to = unit_product<half>(w.levels(first + 1), x.zw, to, lane);
        return;
    }
    float4 p = unit_product<half>(w.levels(first), x.xy, float4(0.0f), lane);
    if (W::SCALED == 16) {
        to = fma(by_rows(w.scale(first)), p, to);
        p = float4(0.0f);
    }
    p = unit_product<half>(w.levels(first + 1), x.zw, p, lane);
    to = fma(by_rows(w.scale(W::SCALED == 16 ? first + 1 : first)), p, to);
    if (W::OFFSET != 0) to = fma(by_rows(-w.offset(first)), s.xyxy, to);
}

// The pairs `begin .. end` of a job, whose matrices are of one type.
template <typename W, typename Job>
METAL_FUNC void eight_dots(
    constant ProjectParams& p, Eights in, Inputs tokens, thread const Job& job, uint2 range, uint2 group, Crew crew, Results r,
    thread Progress& progress
) {
    const uint cells = cells_of(p.cols);
    const uint split = p.split, teams = crew.simds / split, team = crew.simd / split, own = crew.simd % split;
    uint base = range.x + group.x * teams;
    if (base >= range.y) {
        // Who waits for this kernel counts on what came before it as well.
        wait_for_earlier();
        return;
    }
    uint pair = min(base + team, range.y - 1);
    Tiles from = job.template tiles<W>(pair);
    W a[W::AHEAD], b[W::AHEAD];
    UNROLL for (uint i = 0; i < W::AHEAD; i++) {
        const uint cell = min(own + i * split, cells - 1);
        a[i].load(from.one, cells, cell, crew.lane);
        b[i].load(from.two, cells, cell, crew.lane);
    }
    if (progress.fresh) {
        wait_for_earlier();
        if (crew.tid < tokens.tokens) r.scales[crew.tid] = tokens.x[crew.tid];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        progress.fresh = false;
    }
    ROLLED for (; base < range.y; base += group.y * teams) {
        float4 sum[2] = {float4(0.0f), float4(0.0f)};
        const uint next = min(base + group.y * teams + team, range.y - 1);
        ROLLED for (uint turn = 0; turn < cells; turn += W::AHEAD * split) {
            uint ahead = turn + W::AHEAD * split + own;
            if (turn + W::AHEAD * split >= cells) {
                from = job.template tiles<W>(next);
                ahead = own;
            }
            UNROLL for (uint i = 0; i < W::AHEAD; i++) {
                const uint cell = turn + own + i * split;
                if (cell < cells) {
                    UNROLL for (uint h = 0; h < 2; h++) {
                        const uint block = cell * 2 + h;
                        const uint4 x = in.columns[block * SIMD + crew.lane];
                        const float2 s =
                            W::OFFSET != 0 ? *(device const float2*)(in.sums + block * 8 + crew.lane % 4 * 2) : float2(0.0f);
                        add_eight(a[i], x, s, 2 * h, crew.lane, sum[0]);
                        add_eight(b[i], x, s, 2 * h, crew.lane, sum[1]);
                    }
                }
                const uint then = min(ahead + i * split, cells - 1);
                a[i].load(from.one, cells, then, crew.lane);
                b[i].load(from.two, cells, then, crew.lane);
            }
        }
        threadgroup float* sums = r.sums + progress.parity * crew.simds * sums_of_simd<2>();
        threadgroup float* mine = sums + crew.simd * sums_of_simd<2>();
        UNROLL for (uint tile = 0; tile < 2; tile++) {
            const uint row = tile * CELL_ROWS + crew.lane / 4, token = crew.lane % 4 * 2;
            *(threadgroup float2*)(mine + row * 8 + token) = sum[tile].xy;
            *(threadgroup float2*)(mine + (row + 8) * 8 + token) = sum[tile].zw;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (base + team < range.y) {
            job.template finish<2>(pair, tokens, r, sums + team * split * sums_of_simd<2>(), split, own * SIMD + crew.lane);
        }
        progress.parity ^= 1;
        pair = next;
    }
}

[[kernel, max_total_threads_per_threadgroup(512)]] void cell_rows(
    constant ProjectParams& p [[buffer(0)]], device const uint4* columns [[buffer(1)]], device const float* sums [[buffer(2)]],
    device const float* scales [[buffer(3)]], device const uchar* w0 [[buffer(4)]], device const uchar* w1 [[buffer(5)]],
    device const uchar* w2 [[buffer(6)]], device const float* bias0 [[buffer(7)]], device const float* bias1 [[buffer(8)]],
    device const float* bias2 [[buffer(9)]], device const float* residual [[buffer(10)]], device float* out [[buffer(11)]],
    threadgroup float4* shared [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]
) {
    const Crew crew = {tid, lane, simd, simds, (threadgroup uchar*)shared};
    const Inputs tokens = {scales, scales, p.tokens};
    const Eights in = {columns, sums};
    const Products job = {p, {w0, w1, w2, bias0, bias1, bias2}, residual, out, 0};
    // The tokens' scales, then the sums of two rounds.
    const Results r = {(threadgroup float*)shared, (threadgroup float*)shared + 8};
    Progress progress = {true, 0};
    const uint each = WITH_GATE != 0 ? CELL_ROWS : PAIR_ROWS;
    uint begin = 0;
    ROLLED for (uint part = 0; part < 3; part++) {
        uint end = begin + (rows_of(p, part) + each - 1) / each;
        if (ALIKE && WITH_GATE == 0) end += (p.rows1 + each - 1) / each + (p.rows2 + each - 1) / each;
#define EIGHT_DOTS(KIND) \
    eight_dots<Cells##KIND>(p, in, tokens, job, uint2(begin, end), uint2(group.x, groups.x), crew, r, progress);
        if (end > begin) FOR_CELL_TYPE(job.m.type_of(part), EIGHT_DOTS)
#undef EIGHT_DOTS
        if (ALIKE) break;
        begin = end;
    }
}
