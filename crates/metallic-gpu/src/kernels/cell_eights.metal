// Vectors of up to eight tokens as `cell_bytes` leaves them, numbers of two bytes.

// Vectors that come from a buffer. In threadgroup memory, behind those that lie there, are the scales of their tokens, then parts of sums.
struct Buffered {
    device const float* scales;
    Inputs in;
    Crew crew;
    uint cells;
    bool fresh;

    METAL_FUNC Results results() const { return {(threadgroup float*)crew.memory, line_from(crew.memory, 32)}; }
    METAL_FUNC void begin() {
        if (fresh) {
            wait_for_earlier();
            if (crew.tid < in.tokens) results().scales[crew.tid] = scales[crew.tid];
        }
        fresh = false;
    }
    METAL_FUNC uint after(uint cell) const { return cell + 1 == cells ? 0 : cell + 1; }
    METAL_FUNC void finished() const {}
    METAL_FUNC void nothing_to_do() const {
        if (fresh) wait_for_earlier();
    }
};

// Of each cell the numbers of four tokens, then those of four more; and what they are worth. NEAR: they are copied to threadgroup memory
// once, where that has room for them; else each cell's come while the one before it is computed with, as often as there are rows for it.
template <bool NEAR>
struct EightsOfBytes {
    enum : uint { TOKENS = 8, SUMS = 4, BESIDE = 0 };
    template <typename W>
    using Sums = float2;
    // Of a cell, 16 bytes each.
    enum : uint { NUMBERS = 2 * SIMD, WORTHS = TOKENS };

    Buffered buffered;
    device const uint4* columns;
    device const uint4* blocks;
    threadgroup uint4* near;
    uint4 x[2], worth[2];

    METAL_FUNC Inputs inputs() const { return buffered.in; }
    METAL_FUNC Results results() const { return buffered.results(); }
    METAL_FUNC void finished() const {}
    METAL_FUNC void nothing_to_do() const { buffered.nothing_to_do(); }
    METAL_FUNC void load(uint cell) {
        UNROLL for (uint n = 0; n < 2; n++) {
            const uint number = cell * NUMBERS + n * SIMD + buffered.crew.lane, of = cell * WORTHS + 4 * n + buffered.crew.lane % 4;
            x[n] = NEAR ? near[number] : columns[number];
            worth[n] = NEAR ? near[buffered.cells * NUMBERS + of] : blocks[of];
        }
    }
    template <typename W, typename Rest>
    METAL_FUNC void fetch(thread Rest& rest) {
        const uint threads = buffered.crew.simds * SIMD, numbers = buffered.cells * NUMBERS, worths = buffered.cells * WORTHS;
        for (uint i = buffered.crew.tid; i < numbers; i += threads) copy_ahead(near + i, columns + i, true);
        for (uint i = buffered.crew.tid; i < worths; i += threads) copy_ahead(near + numbers + i, blocks + i, true);
        copies_go();
        rest.fill(buffered.crew.lane);
        all_copies_but<W::DEPTH - 1 - first_cells<W>()>();
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    template <typename W, typename Rest>
    METAL_FUNC void ready(uint, Stretch stretch, thread Rest& rest) {
        const bool fresh = buffered.fresh;
        buffered.begin();
        if (NEAR && fresh) fetch<W>(rest);
        if (!NEAR) load(stretch.cell);
        rest.fill(buffered.crew.lane);
    }
    template <typename W>
    METAL_FUNC void add(thread const W& a, thread const W& b, uint cell, thread float2* sum) {
        if (NEAR) load(cell);
        ByteColumns<2> c;
        UNROLL for (uint n = 0; n < 2; n++) {
            c.x[n] = x[n];
            c.unit[n] = as_type<float2>(worth[n].xz);
            c.sums[n] = as_type<int2>(worth[n].yw);
        }
        if (!NEAR) load(buffered.after(cell));
        OfBytes<W::BYTES != 0>::add(a, c, buffered.crew.lane, sum);
        OfBytes<W::BYTES != 0>::add(b, c, buffered.crew.lane, sum + 2);
    }
    template <typename W>
    METAL_FUNC void put(threadgroup float* to, thread const float2* sum) const {
        put_tokens<W, 2>(to, buffered.crew.lane, sum);
    }
};

// The vectors of a kernel, of so many cells.
template <bool NEAR>
METAL_FUNC EightsOfBytes<NEAR> eights_of_bytes(
    device const uint4* columns, device const uint4* blocks, device const float* scales, uint tokens, uint cells, Crew crew
) {
    threadgroup uint4* near = (threadgroup uint4*)crew.memory;
    if (NEAR) crew.memory += cells * (EightsOfBytes<NEAR>::NUMBERS + EightsOfBytes<NEAR>::WORTHS) * 16;
    return {{scales, {scales, scales, tokens, 0}, crew, cells, true}, columns, blocks, near, {}, {}};
}
