// Matrices in cells times the vectors of a tile of up to eight tokens, which lie as `cell_columns` leaves them: as halfs, of which every
// column of a matrix unit's product is a token, or as numbers of two bytes, which take two columns each. Cells are shared and copied as
// in `cell_dots.metal`.

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

// Halfs, and the sums of each 32.
struct Eights {
    enum : uint { TOKENS = 8, SUMS = 2, BESIDE = 0 };
    template <typename W>
    using Sums = float4;

    Buffered buffered;
    device const uint4* columns;
    device const float* sums;
    uint4 x[2];
    float2 s[2];

    METAL_FUNC Inputs inputs() const { return buffered.in; }
    METAL_FUNC Results results() const { return buffered.results(); }
    METAL_FUNC void finished() const {}
    METAL_FUNC void nothing_to_do() const { buffered.nothing_to_do(); }
    template <typename W>
    METAL_FUNC void load(uint cell) {
        UNROLL for (uint h = 0; h < 2; h++) {
            const uint block = cell * 2 + h;
            x[h] = columns[block * SIMD + buffered.crew.lane];
            s[h] = W::OFFSET != 0 ? *(device const float2*)(sums + block * 8 + buffered.crew.lane % 4 * 2) : float2(0.0f);
        }
    }
    template <typename W, typename Rest>
    METAL_FUNC void ready(uint, Stretch stretch, thread Rest& rest) {
        buffered.begin();
        load<W>(stretch.cell);
        rest.fill(buffered.crew.lane);
    }
    template <typename W>
    METAL_FUNC void add(thread const W& a, thread const W& b, uint cell, thread float4* sum) {
        const uint4 now[2] = {x[0], x[1]};
        const float2 offsets[2] = {s[0], s[1]};
        load<W>(buffered.after(cell));
        UNROLL for (uint h = 0; h < 2; h++) {
            add_eight(a, now[h], offsets[h], 2 * h, buffered.crew.lane, sum[0]);
            add_eight(b, now[h], offsets[h], 2 * h, buffered.crew.lane, sum[1]);
        }
    }
    template <typename W>
    METAL_FUNC void put(threadgroup float* to, thread const float4* sum) const {
        UNROLL for (uint tile = 0; tile < 2; tile++) {
            const uint row = tile * CELL_ROWS + buffered.crew.lane / 4, token = buffered.crew.lane % 4 * 2;
            *(threadgroup float2*)(to + row * TOKENS + token) = sum[tile].xy;
            *(threadgroup float2*)(to + (row + 8) * TOKENS + token) = sum[tile].zw;
        }
    }
};

// Whether all matrices are of kinds that take bytes.
constant bool OF_BYTES = !SOME_BFLOATS;

template <bool NEAR>
[[kernel, max_total_threads_per_threadgroup(512)]] void cell_rows(
    constant ProjectParams& p [[buffer(0)]], device const uint4* columns [[buffer(1)]], device const float4* sums [[buffer(2)]],
    device const float* scales [[buffer(3)]], device const uchar* w0 [[buffer(4)]], device const uchar* w1 [[buffer(5)]],
    device const uchar* w2 [[buffer(6)]], device const float* bias0 [[buffer(7)]], device const float* bias1 [[buffer(8)]],
    device const float* bias2 [[buffer(9)]], device const float* residual [[buffer(10)]], device float* out [[buffer(11)]],
    threadgroup float4* shared [[threadgroup(0)]], uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint simds [[simdgroups_per_threadgroup]]
) {
    const Crew crew = {tid, lane, simd, simds, (threadgroup uchar*)shared};
    const Products job = {p, {w0, w1, w2, bias0, bias1, bias2}, residual, out, 0};
    const uint cells = cells_of(p.cols);
    if (OF_BYTES) {
        EightsOfBytes<NEAR> vectors = eights_of_bytes<NEAR>(columns, (device const uint4*)sums, scales, p.tokens, cells, crew);
        all_products(p, vectors, job, uint2(group.x, groups.x), crew);
    } else {
        const Buffered buffered = {scales, {scales, scales, p.tokens, 0}, crew, cells, true};
        Eights vectors = {buffered, columns, (device const float*)sums, {}, {}};
        all_products(p, vectors, job, uint2(group.x, groups.x), crew);
    }
}

KERNEL("cell_rows", cell_rows<false>)
KERNEL("cell_rows_near", cell_rows<true>)
