// Products of matrices in cells with the vectors of up to 4 N tokens.
//
// A threadgroup has the vectors in threadgroup memory, so that a column of a matrix unit's product is a half of a token's number and
// weights are read once for all of them. For weights of few bits numbers are of two bytes, with a unit for each 32 columns; for others
// two bfloats: eight bits of it, and eight more of what is left. A group has some pairs of tiles of 16 rows, whose cells follow each
// other; each simdgroup takes as many of them as the others, wherever a pair ends, and the parts of a pair's sums meet at the end.
// Cells are copied to threadgroup memory before they are needed: registers hold few, and who waits for one of several loads waits for
// all of them. The norm's scale is a factor on the result.

constant constexpr uint PAIR_ROWS = 2 * CELL_ROWS;

// The threads that work, and their memory.
struct Crew {
    uint tid, lane, simd, simds;
    threadgroup uchar* memory;
};

struct Inputs {
    device const float* x;
    device const float* norm;
    uint tokens;
    // 1 where what is left of a token's numbers is a token of its own, behind it.
    uint fine;

    METAL_FUNC uint all() const { return tokens << fine; }
};

// The vectors of a row of threadgroups, which has up to `most` of them from `token` on.
template <bool ONE>
METAL_FUNC Inputs inputs_of(constant ProjectParams& p, device const float* x, device const float* norm, uint token, uint most) {
    if (ONE) return {x, norm, 1, 0};
    return {x + ulong(token) * p.cols, norm, min(most, p.tokens - token), p.fine};
}

// Whether vectors lie as bfloats for some of the matrices.
constant bool SOME_BFLOATS = WEIGHT0 == CELLS_F16 || WEIGHT0 == CELLS_BF16 || WEIGHT1 == CELLS_F16 || WEIGHT1 == CELLS_BF16 ||
    WEIGHT2 == CELLS_F16 || WEIGHT2 == CELLS_BF16;

// Bytes from one half of a token's numbers to the next: no two of them on the same banks.
template <bool BYTES>
METAL_FUNC uint plane_bytes(uint chunk) {
    return (BYTES ? (chunk + 127) / 128 * 128 : 2 * chunk) + 64;
}

// Bytes of all numbers, in whichever form.
METAL_FUNC uint numbers_bytes(Inputs in, uint chunk) {
    return 2 * in.all() * (SOME_BFLOATS ? plane_bytes<false>(chunk) : plane_bytes<true>(chunk));
}

// What numbers are worth in each 32 columns of a token, behind the numbers of all.
METAL_FUNC threadgroup Block* blocks_of(Crew crew, Inputs in, uint chunk, uint token) {
    return (threadgroup Block*)(crew.memory + numbers_bytes(in, chunk)) + token * (chunk / 32);
}

METAL_FUNC void put_bfloats(float4 v, uint quad, threadgroup uchar* to, uint plane) {
    const uint4 high = as_type<uint4>(v) & 0xffff0000u;
    const float4 rest = v - as_type<float4>(high);
    // What is left, to the nearest.
    const uint4 low = (as_type<uint4>(rest) + 0x8000u) & 0xffff0000u;
    to += quad / 8 * 64 + quad % 4 * 16 + quad % 8 / 4 * 8;
    *(threadgroup uint2*)to = uint2(high.x >> 16 | high.y, high.z >> 16 | high.w);
    *(threadgroup uint2*)(to + plane) = uint2(low.x >> 16 | low.y, low.z >> 16 | low.w);
}

METAL_FUNC void put_bytes(TwoBytes made, threadgroup uchar* to, uint plane, bool first, threadgroup Block* block) {
    *(threadgroup uint2*)to = made.high;
    *(threadgroup uint2*)(to + plane) = made.low;
    if (first) *block = made.block;
}

// Which token, and which of its items, stands at a place: a division where there are several.
METAL_FUNC uint2 token_item(uint place, uint each, uint tokens) {
    const uint token = tokens > 1 ? place / each : 0;
    return uint2(token, place - token * each);
}

METAL_FUNC void add_square(threadgroup float* to, float square, uint lane) {
    square = simd_sum(square);
    if (lane == 0) *to += square;
}

// Columns `from .. from + chunk` of the vectors into threadgroup memory, zeros past the end; the squares of each token and
// simdgroup are added up. A thread has twice four columns at a time, sixteen apart, and so many loads under way, of whichever tokens.
// The norm's weights were there before the vectors are.
template <uint AT_ONCE, bool BYTES, bool ONE, typename Rest>
METAL_FUNC void stage_columns(
    constant ProjectParams& p, Inputs in, uint from, uint chunk, bool wait, Crew crew, threadgroup float* squares, thread Rest& rest
) {
    const uint plane = plane_bytes<BYTES>(chunk), tokens = ONE ? 1 : in.tokens, fine = ONE ? 0 : in.fine;
    // Whole simdgroups come along, also past the end of a token: lanes add up.
    const uint threads = crew.simds * SIMD, each = (chunk + 255) / 256 * 32, all = tokens * each;
    if (WITH_NORM != 0 && from == 0) {
        for (uint t = crew.lane; t < tokens; t += SIMD) squares[t * crew.simds + crew.simd] = 0.0f;
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    // Of one token they are added up at the end.
    float square = 0.0f;
    ROLLED for (uint start = crew.tid; start < all || wait; start += AT_ONCE * threads) {
        float4 v[2 * AT_ONCE], w[2 * AT_ONCE];
        UNROLL for (uint u = 0; u < 2 * AT_ONCE; u++) {
            const uint item = token_item(start + u / 2 * threads, each, tokens).y, i = item / 4 * 32 + u % 2 * 16 + item % 4 * 4;
            if (WITH_NORM != 0) w[u] = i < chunk && from + i < p.cols ? *(device const float4*)(in.norm + from + i) : float4(0.0f);
        }
        if (wait) wait_for_earlier();
        wait = false;
        UNROLL for (uint u = 0; u < 2 * AT_ONCE; u++) {
            const uint place = start + u / 2 * threads;
            const uint2 at = token_item(place, each, tokens);
            const uint i = at.y / 4 * 32 + u % 2 * 16 + at.y % 4 * 4;
            const bool there = place < all && i < chunk && from + i < p.cols;
            v[u] = there ? *(device const float4*)(in.x + ulong(at.x) * p.cols + from + i) : float4(0.0f);
        }
        if (start - crew.lane + AT_ONCE * threads >= all) rest.fill(crew.lane);
        UNROLL for (uint u = 0; u < AT_ONCE; u++) {
            const uint place = start + u * threads;
            const uint2 own = token_item(place, each, tokens);
            const uint t = own.x, item = own.y;
            if (place < all) {
                float4 near = v[2 * u], far = v[2 * u + 1];
                if (WITH_NORM != 0) {
                    const float4 small = near * UNIT, smaller = far * UNIT;
                    square += across(small * small + smaller * smaller);
                    if (tokens > 1) {
                        add_square(squares + t * crew.simds + crew.simd, square, crew.lane);
                        square = 0.0f;
                    }
                    near *= w[2 * u];
                    far *= w[2 * u + 1];
                }
                const bool live = item / 4 * 32 < chunk;
                threadgroup uchar* to = crew.memory + 2 * (t << fine) * plane;
                if (BYTES) {
                    const uint block = item / 4, at = block / 2 * 64 + block % 2 * 8 + item % 4 * 16;
                    threadgroup Block* blocks = blocks_of(crew, in, chunk, t << fine);
                    const TwoBytes made = two_bytes(near, far);
                    if (live) put_bytes(made, to + at, plane, item % 4 == 0, blocks + block);
                    if (fine != 0) {
                        const TwoBytes rest = two_bytes(near - made.near, far - made.far);
                        if (live) put_bytes(rest, to + 2 * plane + at, plane, item % 4 == 0, blocks + chunk / 32 + block);
                    }
                } else if (live) {
                    put_bfloats(near, item / 4 * 8 + item % 4, to, plane);
                    put_bfloats(far, item / 4 * 8 + 4 + item % 4, to, plane);
                }
            }
        }
    }
    if (WITH_NORM != 0 && tokens == 1) add_square(squares + crew.simd, square, crew.lane);
}

// What this lane has of the columns of a cell, the `cell`-th that lies in threadgroup memory.
template <uint N>
METAL_FUNC void take_columns(thread Columns<N>& c, Inputs in, uint cell, uint chunk, Crew crew) {
    UNROLL for (uint n = 0; n < N; n++) {
        const uint half_token = 8 * n + crew.lane / 4;
        const bool live = half_token < 2 * in.all();
        threadgroup const uint4* from =
            (threadgroup const uint4*)(crew.memory + half_token * plane_bytes<false>(chunk) + cell * 128) + crew.lane % 4;
        UNROLL for (uint b = 0; b < 2; b++) c.x[n][b] = live ? from[4 * b] : uint4(0);
    }
}
template <uint N>
METAL_FUNC void take_columns(thread ByteColumns<N>& c, Inputs in, uint cell, uint chunk, Crew crew) {
    UNROLL for (uint n = 0; n < N; n++) {
        const uint half_token = 8 * n + crew.lane / 4;
        const bool live = half_token < 2 * in.all();
        threadgroup const uchar* from = crew.memory + half_token * plane_bytes<true>(chunk) + cell * 64;
        c.x[n] = live ? ((threadgroup const uint4*)from)[crew.lane % 4] : uint4(0);
        const uint token = min(4 * n + crew.lane % 4, in.all() - 1);
        const uint4 both = *(threadgroup const uint4*)(blocks_of(crew, in, chunk, token) + 2 * cell);
        c.unit[n] = as_type<float2>(both.xz);
        c.sums[n] = as_type<int2>(both.yw);
    }
}

// Cells that are asked for before the vectors, which come behind them.
constant constexpr uint FIRST_CELLS = 3;
template <typename W>
constexpr uint first_cells() {
    return uint(W::DEPTH) - 1 < FIRST_CELLS ? uint(W::DEPTH) - 1 : FIRST_CELLS;
}

// What is shared of the results: a factor for each token, then parts of sums.
struct Results {
    threadgroup float* scales;
    threadgroup float* sums;
};

// Floats of threadgroup memory that the sums of a pair take: 32 rows of so many tokens.
template <uint TOKENS>
METAL_FUNC uint sums_of_pair() {
    return PAIR_ROWS * TOKENS;
}

// The next place at the beginning of a line. What is copied ahead begins there, as it does in its buffer: else every line would be asked
// for twice.
METAL_FUNC threadgroup float* line_from(threadgroup uchar* memory, uint bytes) {
    return (threadgroup float*)(memory + (bytes + 127) / 128 * 128);
}

// A lane's sums of the rows g and g + 8: of both halves of a number, or of whole ones.
METAL_FUNC float2 rows_of_sum(float4 sum) {
    return sum.xz + sum.yw;
}
METAL_FUNC float2 rows_of_sum(float2 sum) {
    return sum;
}

// The sums of a pair's rows with 4 N tokens, of which a lane has every fourth, for weights W.
template <typename W, uint N, typename Sum>
METAL_FUNC void put_tokens(threadgroup float* to, uint lane, thread const Sum* sum) {
    UNROLL for (uint tile = 0; tile < 2; tile++) {
        UNROLL for (uint n = 0; n < N; n++) {
            const float2 s = rows_of_sum(sum[tile * N + n]) * (1.0f / float(W::TIMES));
            const uint row = tile * CELL_ROWS + lane / 4, token = 4 * n + lane % 4;
            to[row * 4 * N + token] = s.x;
            to[(row + 8) * 4 * N + token] = s.y;
        }
    }
}

// What a kind of cells takes of vectors, and how it adds up.
template <bool BYTES, uint N>
struct Taken {
    typedef Columns<N> In;
    typedef float4 Sum;
};
template <uint N>
struct Taken<true, N> {
    typedef ByteColumns<N> In;
    typedef float2 Sum;
};

// How vectors lie in threadgroup memory.
enum Form : uint { NOWHERE, AS_BYTES, AS_BFLOATS };

// How the cells of some pairs are shared, `width` of each pair: they follow each other, and simdgroups take as many each.
struct Shares {
    uint pairs, width, simds;

    // Where a simdgroup's begin.
    METAL_FUNC uint begin(uint simd) const { return pairs * width * simd / simds; }
    // Who has the one at this place.
    METAL_FUNC uint owner(uint place) const { return ((place + 1) * simds - 1) / (pairs * width); }
    // The first who has cells of a pair, and how many of them there are.
    METAL_FUNC uint2 owners(uint pair) const {
        const uint one = owner(pair * width);
        return uint2(one, owner((pair + 1) * width - 1) - one + 1);
    }
};

// What a simdgroup has of a group's cells: so many, from a cell of a pair on.
struct Stretch {
    uint cell, pair, count;
};

// The vectors of up to 4 N tokens in threadgroup memory, so many cells at a time. Behind them: the norm's scales, the squares of each
// token and simdgroup they are made of, parts of sums. ONE: of one token, as it mostly is, which has nothing to tell apart; kernels are
// read from memory too.
template <uint N, bool ONE>
struct Staged {
    enum : uint { TOKENS = 4 * N, SUMS = 2 * N, BESIDE = ONE };
    template <typename W>
    using Sums = typename Taken<W::BYTES != 0, N>::Sum;

    constant ProjectParams& p;
    Inputs in;
    Crew crew;
    uint form;

    METAL_FUNC Inputs inputs() const { return in; }
    METAL_FUNC uint chunk() const { return p.blocks * CELL_COLS; }
    METAL_FUNC Results results() const {
        threadgroup float* scales = (threadgroup float*)blocks_of(crew, in, chunk(), in.all());
        const uint before = numbers_bytes(in, chunk()) + in.all() * (chunk() / 4) + 16 * N * (crew.simds + 1);
        return {scales, line_from(crew.memory, before)};
    }
    METAL_FUNC threadgroup float* squares() const { return results().scales + 4 * N; }

    // The norm's scales, of the squares that all threads have seen, a simdgroup for each token.
    METAL_FUNC void share_scales() const {
        ROLLED for (uint t = crew.simd; t < in.tokens; t += crew.simds) {
            float square = 0.0f;
            ROLLED for (uint s = crew.lane; s < crew.simds; s += SIMD) square += squares()[t * crew.simds + s];
            square = simd_sum(square);
            if (crew.lane == 0) results().scales[t] = UNIT * precise::rsqrt(square / float(p.cols) + p.eps * (UNIT * UNIT));
        }
    }

    template <bool BYTES, typename Rest>
    METAL_FUNC void stage(uint first, thread Rest& rest) const {
        // The norm takes registers of its own.
        if (WITH_NORM != 0) stage_columns<2, BYTES, ONE>(p, in, first * CELL_COLS, chunk(), form == NOWHERE, crew, squares(), rest);
        else stage_columns<4, BYTES, ONE>(p, in, first * CELL_COLS, chunk(), form == NOWHERE, crew, squares(), rest);
    }

    // Puts the cells from `first` on in their place, in the form that W takes.
    template <typename W, typename Rest>
    METAL_FUNC void ready(uint first, Stretch, thread Rest& rest) {
        const uint wanted = W::BYTES != 0 ? AS_BYTES : AS_BFLOATS, cells = cells_of(p.cols);
        if (form == wanted && p.blocks >= cells) {
            rest.fill(crew.lane);
            return;
        }
        // Nobody reads what lies there.
        if (form != NOWHERE) threadgroup_barrier(mem_flags::mem_threadgroup);
        stage<W::BYTES != 0>(first, rest);
        // Also of who had nothing to lay out.
        rest.fill(crew.lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        form = wanted;
        // They are needed at the end.
        if (WITH_NORM != 0 && first + p.blocks >= cells) share_scales();
    }
    template <typename W>
    METAL_FUNC void add(thread const W& a, thread const W& b, uint cell, thread Sums<W>* sum) const {
        typename Taken<W::BYTES != 0, N>::In c;
        take_columns(c, in, cell, chunk(), crew);
        a.template add<N>(c, crew.lane, sum);
        b.template add<N>(c, crew.lane, sum + N);
    }
    template <typename W>
    METAL_FUNC void put(threadgroup float* to, thread const Sums<W>* sum) const {
        put_tokens<W, N>(to, crew.lane, sum);
    }
    METAL_FUNC void finished() const {}
    METAL_FUNC void nothing_to_do() const {
        // Who waits for this kernel counts on what came before it as well.
        if (form == NOWHERE) wait_for_earlier();
    }
};

// The parts of a pair's sums. That of a simdgroup lies at `pair + simd`, which no other has; those of later columns further behind.
struct Parts {
    threadgroup const float* sums;
    Shares shares;
    uint pair, cells, stride, fine;
    uint2 owners;
};

// The product of a row of a pair with a token.
template <uint TOKENS>
METAL_FUNC float result_of(Results r, Parts parts, uint row, uint token) {
    float y = 0.0f;
    threadgroup const float* sums = parts.sums + row * TOKENS + (token << parts.fine);
    uint2 owners = parts.owners;
    uint first = 0;
    ROLLED while (true) {
        _Pragma("clang loop unroll_count(4)")
        for (uint s = 0; s < owners.y; s++) {
            threadgroup const float* part = sums + (parts.pair + owners.x + s) * sums_of_pair<TOKENS>();
            y += parts.fine != 0 ? part[0] + part[1] : part[0];
        }
        first += parts.shares.width;
        if (first >= parts.cells) break;
        sums += parts.stride;
        const Shares shares = {parts.shares.pairs, min(parts.shares.width, parts.cells - first), parts.shares.simds};
        owners = shares.owners(parts.pair);
    }
    return WITH_NORM != 0 ? y * r.scales[token] : y;
}

// Cells on their way to a simdgroup, DEPTH - 1 of them at a time.
template <typename W, typename Job>
struct Stream {
    thread const Job& job;
    threadgroup uchar* ring;
    // What is fetched next: a cell of a pair, which ends before `end` and begins at `first`.
    uint pair, cell, left;
    uint cells, first, end;
    uint slot, free;
    typename W::Source source;

    METAL_FUNC void point(uint lane) { source.point(job.template tiles<W>(pair), cells, cell, lane); }
    METAL_FUNC void fetch(uint lane) {
        if (left > 0) {
            source.fetch(ring + free, lane);
            left--;
            cell++;
            if (cell != end) {
                source.next(cell);
            } else if (left > 0) {
                cell = first;
                pair++;
                point(lane);
            }
        }
        copies_go();
        free = free == (W::DEPTH - 1) * W::SLOT ? 0 : free + W::SLOT;
    }
    METAL_FUNC void start(uint lane) {
        // Nobody reads what was there.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        point(lane);
        ROLLED while (free < first_cells<W>() * W::SLOT) fetch(lane);
    }
    // The rest of them: what is asked for before is there before.
    METAL_FUNC void fill(uint lane) {
        ROLLED while (free < (W::DEPTH - 1) * W::SLOT) fetch(lane);
    }
    // The next cell of both tiles. The one before it is not read any more.
    METAL_FUNC void take(thread W& a, thread W& b, uint lane) {
        all_copies_but<W::DEPTH - 2>();
        simdgroup_barrier(mem_flags::mem_threadgroup);
        fetch(lane);
        a.take(ring + slot, 0, lane);
        b.take(ring + slot, 1, lane);
        slot = slot == (W::DEPTH - 1) * W::SLOT ? 0 : slot + W::SLOT;
    }
};

// The pairs `range` of a job, whose matrices are of one type. A job says where the two tiles of a pair lie and what is done with their
// results; and what that takes besides, of the first pair that a simdgroup finishes: `early` reads what was there before the kernels
// before, `late` what they have written, and `meanwhile` computes what it can while others are still at their cells; where vectors leave no
// registers for it (BESIDE is 0) all of it comes in the end. A group has its part of them, so many at a time that the parts of their sums have room.
template <typename W, typename Vectors, typename Job>
METAL_FUNC void cell_dots(
    constant ProjectParams& p, thread Vectors& vectors, thread const Job& job, uint2 range, uint2 group, Crew crew
) {
    const uint cells = cells_of(p.cols), per_chunk = p.blocks, runs = (cells + per_chunk - 1) / per_chunk;
    const uint sums_each = sums_of_pair<Vectors::TOKENS>(), stride = (p.split + crew.simds) * sums_each;
    const Results r = vectors.results();
    threadgroup uchar* ring = (threadgroup uchar*)(r.sums + runs * stride) + crew.simd * W::DEPTH * W::SLOT;
    const uint all = range.y - range.x, end = range.x + all * (group.x + 1) / group.y;
    ROLLED for (uint begin = range.x + all * group.x / group.y; begin < end; begin += p.split) {
        const uint pairs = min(p.split, end - begin);
        typename Job::Beside beside = {};
        ROLLED for (uint run = 0; run < runs; run++) {
            const uint first = run * per_chunk, last = min(cells, first + per_chunk);
            const Shares shares = {pairs, last - first, crew.simds};
            uint place = shares.begin(crew.simd);
            const uint stop = shares.begin(crew.simd + 1);
            uint pair = place / shares.width, cell = place % shares.width;
            Stream<W, Job> stream = {job, ring, begin + pair, first + cell, stop - place, cells, first, last, 0, 0, {}};
            if (place < stop) stream.start(crew.lane);
            if (Vectors::BESIDE && run == 0 && crew.simd < pairs) beside = job.early(begin + crew.simd, crew.lane);
            vectors.template ready<W>(first, Stretch{min(cell, shares.width - 1), pair, stop - place}, stream);
            if (Vectors::BESIDE && run + 1 == runs && crew.simd < pairs) job.late(beside, begin + crew.simd, crew.lane);
            // Also who has no cells has a part, of zeros.
            ROLLED do {
                typename Vectors::template Sums<W> sum[Vectors::SUMS];
                UNROLL for (uint i = 0; i < Vectors::SUMS; i++) sum[i] = 0.0f;
                const uint until = min(cell + stop - place, shares.width);
                place += until - cell;
                ROLLED for (; cell < until; cell++) {
                    W a, b;
                    stream.take(a, b, crew.lane);
                    vectors.add(a, b, cell, sum);
                }
                vectors.template put<W>(r.sums + run * stride + (pair + crew.simd) * sums_each, sum);
                cell = 0;
                pair++;
            } while (place < stop);
        }
        if (Vectors::BESIDE && crew.simd < pairs) job.meanwhile(beside);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        vectors.finished();
        const Shares shares = {pairs, min(cells, per_chunk), crew.simds};
        ROLLED for (uint pair = crew.simd; pair < pairs; pair += crew.simds) {
            const Parts parts = {r.sums, shares, pair, cells, stride, vectors.inputs().fine, shares.owners(pair)};
            if (!Vectors::BESIDE || pair != crew.simd) {
                beside = job.early(begin + pair, crew.lane);
                job.late(beside, begin + pair, crew.lane);
                job.meanwhile(beside);
            }
            job.template finish<Vectors::TOKENS>(begin + pair, vectors.inputs(), r, parts, beside, crew.lane);
        }
        if (begin + p.split < end) threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

constant bool ALIKE = WITH_GATE != 0 || (WEIGHT1 == WEIGHT0 && WEIGHT2 == WEIGHT0);

// All pairs of a job; matrices of one type go together.
template <typename Vectors, typename Job>
METAL_FUNC void all_products(constant ProjectParams& p, thread Vectors& vectors, thread const Job& job, uint2 group, Crew crew) {
    const uint each = WITH_GATE != 0 ? CELL_ROWS : PAIR_ROWS;
    uint begin = 0;
    ROLLED for (uint part = 0; part < 3; part++) {
        uint end = begin + (rows_of(p, part) + each - 1) / each;
        if (ALIKE && WITH_GATE == 0) end += (p.rows1 + each - 1) / each + (p.rows2 + each - 1) / each;
#define CELL_DOTS(KIND) cell_dots<Cells##KIND>(p, vectors, job, uint2(begin, end), group, crew);
        if (end > begin) FOR_CELL_TYPE(job.m.type_of(part), CELL_DOTS)
#undef CELL_DOTS
        if (ALIKE) break;
        // What was summed up is read before it is written over.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        begin = end;
    }
    vectors.nothing_to_do();
}
