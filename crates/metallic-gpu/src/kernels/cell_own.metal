// The vector of one token, of which each simdgroup lays out what it needs itself, four cells at a time: where a group has few pairs,
// simdgroups have little in common, and nobody waits for others.
struct Own {
    enum : uint { TOKENS = 4, SUMS = 2, BESIDE = 1, AT_ONCE = 4, BYTES = AT_ONCE * (2 * CELL_COLS + 16) };
    template <typename W>
    using Sums = float2;

    constant ProjectParams& p;
    Inputs in;
    Crew crew;
    bool fresh;
    // Cells that were taken of those that are laid out, and those from the first one on whose squares nobody else adds up.
    uint taken, squaring;
    float square;
    float4 x[2], w[2];
    // The column that a lane reads next.
    uint col;

    METAL_FUNC Inputs inputs() const { return in; }
    METAL_FUNC threadgroup uchar* own() const { return crew.memory + crew.simd * BYTES; }
    METAL_FUNC threadgroup float* squares() const { return (threadgroup float*)(crew.memory + crew.simds * BYTES); }
    METAL_FUNC Results results() const {
        return {squares() + crew.simds + crew.simd, line_from(crew.memory, crew.simds * (BYTES + 8))};
    }
    METAL_FUNC uint column(uint cell) const { return (cell + crew.lane / 8) * CELL_COLS + crew.lane / 4 % 2 * 32 + crew.lane % 4 * 4; }
    // The columns of the cells from this one on, from the beginning again past the end.
    METAL_FUNC void point(uint cell) {
        const uint all = cells_of(p.cols) * CELL_COLS;
        col = column(cell);
        if (col >= all) col -= all;
    }
    METAL_FUNC void load(thread float4* to, device const float* from) {
        UNROLL for (uint i = 0; i < 2; i++)
            to[i] = col + 16 * i < p.cols ? *(device const float4*)(from + col + 16 * i) : float4(0.0f);
    }
    METAL_FUNC void lay_out() {
        float4 near = x[0], far = x[1];
        if (WITH_NORM != 0) {
            const float4 small = near * UNIT, smaller = far * UNIT;
            const float more = across(small * small + smaller * smaller);
            if (crew.lane / 8 < squaring) square += more;
            squaring -= min(squaring, uint(AT_ONCE));
            near *= w[0];
            far *= w[1];
        }
        const TwoBytes made = two_bytes(near, far);
        const uint block = crew.lane / 4, j = block / 2;
        // The cells before are not read any more.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup uchar* to = own() + j * 128 + crew.lane % 4 * 16 + block % 2 * 8;
        *(threadgroup uint2*)to = made.high;
        *(threadgroup uint2*)(to + 64) = made.low;
        if (crew.lane % 4 == 0) *(threadgroup Block*)(own() + AT_ONCE * 128 + block * 8) = made.block;
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    template <typename W, typename Rest>
    METAL_FUNC void ready(uint, Stretch stretch, thread Rest& rest) {
        point(stretch.cell);
        if (WITH_NORM != 0) load(w, in.norm);
        if (fresh) wait_for_earlier();
        load(x, in.x);
        rest.fill(crew.lane);
        taken = 0;
        squaring = fresh && stretch.pair == 0 ? min(stretch.count, cells_of(p.cols) - stretch.cell) : 0;
        fresh = false;
    }
    template <typename W>
    METAL_FUNC void add(thread const W& a, thread const W& b, uint cell, thread float2* sum) {
        if (taken == 0) {
            lay_out();
            point(cell + AT_ONCE);
            load(x, in.x);
            if (WITH_NORM != 0) load(w, in.norm);
        }
        ByteColumns<1> c;
        const uint half_token = crew.lane / 4;
        threadgroup const uint4* from = (threadgroup const uint4*)(own() + taken * 128 + half_token * 64);
        c.x[0] = half_token < 2 ? from[crew.lane % 4] : uint4(0);
        const uint4 both = *(threadgroup const uint4*)(own() + AT_ONCE * 128 + taken * 16);
        c.unit[0] = as_type<float2>(both.xz);
        c.sums[0] = as_type<int2>(both.yw);
        taken = (taken + 1) % AT_ONCE;
        OfBytes<W::BYTES != 0>::add(a, c, crew.lane, sum);
        OfBytes<W::BYTES != 0>::add(b, c, crew.lane, sum + 1);
    }
    template <typename W>
    METAL_FUNC void put(threadgroup float* to, thread const float2* sum) const {
        put_tokens<W, 1>(to, crew.lane, sum);
        if (WITH_NORM == 0) return;
        const float all = simd_sum(square);
        if (crew.lane == 0) squares()[crew.simd] = all;
    }
    // The norm's scale, for each simdgroup its own.
    METAL_FUNC void finished() const {
        if (WITH_NORM == 0) return;
        float all = 0.0f;
        ROLLED for (uint s = crew.lane; s < crew.simds; s += SIMD) all += squares()[s];
        all = simd_sum(all);
        if (crew.lane == 0) *results().scales = UNIT * precise::rsqrt(all / float(p.cols) + p.eps * (UNIT * UNIT));
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    METAL_FUNC void nothing_to_do() const {
        if (fresh) wait_for_earlier();
    }
};

METAL_FUNC Own own_of(constant ProjectParams& p, device const float* x, device const float* norm, Crew crew) {
    return {p, {x, norm, 1, 0}, crew, true, 0, 0, 0.0f, {}, {}, 0};
}
