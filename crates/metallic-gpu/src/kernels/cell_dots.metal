// Products of matrices in cells with the vectors of up to 4 N tokens.
//
// A threadgroup has the vectors in threadgroup memory, as two bfloats a number: eight bits of it, and eight more of what is
// left. So a column of a matrix unit's product is a half of a token, and weights are read once for all of them. Its simdgroups
// are teams of `split`; a team takes pairs of tiles of 16 rows in turn, and its simdgroups the cells of a tile. What comes
// next is loaded before it is needed, across the borders of tiles. The norm's scale is a factor on the result.

constant constexpr uint PAIR_ROWS = 2 * CELL_ROWS;

// What was computed before is there from here on; weights may be read before that. Every kernel of these families calls it.
METAL_FUNC void wait_for_earlier() {
#ifdef SOFTMETAL_EARLY
    softmetal_wait_for_earlier();
#endif
}

// The threads that work, and their memory.
struct Crew {
    uint tid, lane, simd, simds;
    threadgroup uchar* memory;
};

// Where the weights of a pair's tiles lie.
struct Tiles {
    device const uchar* one;
    device const uchar* two;
};

struct Inputs {
    device const float* x;
    device const float* norm;
    uint tokens;
};

// Bytes from one half of a token's numbers to the next: no two of them on the same banks.
METAL_FUNC uint plane_bytes(uint chunk) {
    return 2 * chunk + 64;
}

// The sums of each sixteen columns of a token, behind the numbers of all.
METAL_FUNC threadgroup float* column_sums(Crew crew, Inputs in, uint chunk, uint token) {
    return (threadgroup float*)(crew.memory + 2 * in.tokens * plane_bytes(chunk)) + token * (chunk / 16);
}

// Columns `from .. from + chunk` of the vectors into threadgroup memory, zeros past the end; the squares of each token and
// simdgroup are added up. So many loads of a thread are under way at a time.
template <uint AT_ONCE>
METAL_FUNC void stage_columns(
    constant ProjectParams& p, Inputs in, uint from, uint chunk, Crew crew, threadgroup float* squares
) {
    const uint plane = plane_bytes(chunk);
    ROLLED for (uint t = 0; t < in.tokens; t++) {
        float square = 0.0f;
        // Whole simdgroups come along, also past the end: lanes add up.
        const uint threads = crew.simds * SIMD;
        device const float* own_x = in.x + ulong(t) * p.cols + from;
        ROLLED for (uint start = crew.tid * 4; start < (chunk + 127) / 128 * 128; start += AT_ONCE * threads * 4) {
            float4 v[AT_ONCE];
            UNROLL for (uint u = 0; u < AT_ONCE; u++) {
                const uint i = start + u * threads * 4;
                v[u] = i < chunk && from + i < p.cols ? *(device const float4*)(own_x + i) : float4(0.0f);
            }
            if (WITH_NORM != 0) {
                UNROLL for (uint u = 0; u < AT_ONCE; u++) {
                    const uint i = start + u * threads * 4;
                    const float4 small = v[u] * UNIT;
                    square += across(small * small);
                    if (i < chunk && from + i < p.cols) v[u] *= *(device const float4*)(in.norm + from + i);
                }
            }
            UNROLL for (uint u = 0; u < AT_ONCE; u++) {
                const uint i = start + u * threads * 4;
                if (i >= (chunk + 127) / 128 * 128) break;
                const uint4 high = as_type<uint4>(v[u]) & 0xffff0000u;
                const float4 rest = v[u] - as_type<float4>(high);
                // What is left, to the nearest.
                const uint4 low = (as_type<uint4>(rest) + 0x8000u) & 0xffff0000u;
                const uint quad = i / 4, at = quad / 8 * 64 + quad % 4 * 16 + quad % 8 / 4 * 8;
                threadgroup uchar* to = crew.memory + 2 * t * plane + at;
                if (i < chunk) {
                    *(threadgroup uint2*)to = uint2(high.x >> 16 | high.y, high.z >> 16 | high.w);
                    *(threadgroup uint2*)(to + plane) = uint2(low.x >> 16 | low.y, low.z >> 16 | low.w);
                }
                // Of what the products see, not of what was: their offsets would not cancel.
                const float sum = quad_sum(across(as_type<float4>(high) + as_type<float4>(low)));
                if (i < chunk && crew.lane % 4 == 0) column_sums(crew, in, chunk, t)[i / 16] = sum;
            }
        }
        if (WITH_NORM != 0) {
            square = simd_sum(square);
            threadgroup float* own = squares + t * crew.simds + crew.simd;
            if (crew.lane == 0) *own = from == 0 ? square : *own + square;
        }
    }
}

// What this lane has of the columns of a cell, the `cell`-th that lies in threadgroup memory.
template <uint N, bool SUMS>
METAL_FUNC void take_columns(thread Columns<N>& c, Inputs in, uint cell, uint chunk, Crew crew) {
    UNROLL for (uint n = 0; n < N; n++) {
        const uint half_token = 8 * n + crew.lane / 4;
        const bool live = half_token < 2 * in.tokens;
        threadgroup const uint4* from =
            (threadgroup const uint4*)(crew.memory + half_token * plane_bytes(chunk) + cell * 128) + crew.lane % 4;
        UNROLL for (uint b = 0; b < 2; b++) c.x[n][b] = live ? from[4 * b] : uint4(0);
        if (SUMS) {
            const uint token = min(4 * n + crew.lane % 4, in.tokens - 1);
            c.sums[n] = *(threadgroup const float4*)(column_sums(crew, in, chunk, token) + 4 * cell);
        }
    }
}

// Floats of threadgroup memory that a simdgroup's sums take: 32 rows of 4 N tokens.
template <uint N>
METAL_FUNC uint sums_of_simd() {
    return PAIR_ROWS * 4 * N;
}

// What is shared of the results, behind the columns: the norm's scales, the squares of each token and simdgroup they are made of,
// then the sums of all simdgroups, of two rounds in turn.
struct Results {
    threadgroup float* scales;
    threadgroup float* sums;
};

template <uint N>
METAL_FUNC Results results_of(Inputs in, uint chunk, Crew crew) {
    threadgroup float* scales = column_sums(crew, in, chunk, in.tokens);
    return {scales, scales + 4 * N * (crew.simds + 1)};
}

template <uint N>
METAL_FUNC threadgroup float* squares_of(Results r) {
    return r.scales + 4 * N;
}

// The norm's scales, of the squares that all threads have seen.
template <uint N>
METAL_FUNC void share_scales(constant ProjectParams& p, Inputs in, Results r, Crew crew) {
    if (WITH_NORM == 0 || crew.tid >= in.tokens) return;
    threadgroup const float* parts = squares_of<N>(r) + crew.tid * crew.simds;
    float square = 0.0f;
    ROLLED for (uint s = 0; s < crew.simds; s++) square += parts[s];
    r.scales[crew.tid] = UNIT * precise::rsqrt(square / float(p.cols) + p.eps * (UNIT * UNIT));
}

template <uint N>
METAL_FUNC void put_sums(threadgroup float* own, uint lane, thread const float4* sum) {
    UNROLL for (uint tile = 0; tile < 2; tile++) {
        UNROLL for (uint n = 0; n < N; n++) {
            const float4 s = sum[tile * N + n];
            const uint row = tile * CELL_ROWS + lane / 4, token = 4 * n + lane % 4;
            own[row * 4 * N + token] = s.x + s.y;
            own[(row + 8) * 4 * N + token] = s.z + s.w;
        }
    }
}

// The product of a row of a team's 32 with a token.
template <uint N>
METAL_FUNC float result_of(Results r, threadgroup const float* team, uint split, uint row, uint token) {
    float y = 0.0f;
    _Pragma("clang loop unroll_count(4)")
    for (uint s = 0; s < split; s++) y += team[s * sums_of_simd<N>() + row * 4 * N + token];
    return WITH_NORM != 0 ? y * r.scales[token] : y;
}

// What a threadgroup goes on with from one type of matrices to the next: whether nothing was done yet, and where sums go.
struct Progress {
    bool fresh;
    uint parity;
};

// The pairs `begin .. end` of a job, whose matrices are of one type. A job says where the two tiles of a pair lie and what is done
// with their results.
template <typename W, uint N, typename Job>
METAL_FUNC void cell_dots(
    constant ProjectParams& p, Inputs in, thread const Job& job, uint2 range, uint2 group, Crew crew, thread Progress& progress
) {
    const uint cells = cells_of(p.cols), per_chunk = p.blocks, chunk = per_chunk * CELL_COLS;
    const uint split = p.split, teams = crew.simds / split, team = crew.simd / split, own = crew.simd % split;
    const Results r = results_of<N>(in, chunk, crew);
    // Pairs of a group's teams come one after another; those past the end are the last one again, and thrown away.
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
    ROLLED for (; base < range.y; base += group.y * teams) {
        float4 sum[2 * N];
        UNROLL for (uint i = 0; i < 2 * N; i++) sum[i] = float4(0.0f);
        // The last cells of a pair are followed by the first ones of the next.
        const uint next = min(base + group.y * teams + team, range.y - 1);
        // A chunk but the last is a whole number of turns.
        ROLLED for (uint first = 0; first < cells; first += per_chunk) {
            if (progress.fresh || per_chunk < cells) {
                if (progress.fresh) wait_for_earlier();
                threadgroup_barrier(mem_flags::mem_threadgroup);
                // The norm takes registers of its own.
                if (WITH_NORM != 0) stage_columns<2>(p, in, first * CELL_COLS, chunk, crew, squares_of<N>(r));
                else stage_columns<4>(p, in, first * CELL_COLS, chunk, crew, squares_of<N>(r));
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
            const uint end = min(cells, first + per_chunk);
            ROLLED for (uint turn = first; turn < end; turn += W::AHEAD * split) {
                uint ahead = turn + W::AHEAD * split + own;
                if (turn + W::AHEAD * split >= cells) {
                    from = job.template tiles<W>(next);
                    ahead = own;
                }
                UNROLL for (uint i = 0; i < W::AHEAD; i++) {
                    const uint cell = turn + own + i * split;
                    if (cell < end) {
                        Columns<N> c;
                        take_columns<N, W::SUMS != 0>(c, in, cell - first, chunk, crew);
                        a[i].template add<N>(c, crew.lane, sum);
                        b[i].template add<N>(c, crew.lane, sum + N);
                    }
                    const uint then = min(ahead + i * split, cells - 1);
                    a[i].load(from.one, cells, then, crew.lane);
                    b[i].load(from.two, cells, then, crew.lane);
                }
            }
        }
        if (progress.fresh) share_scales<N>(p, in, r, crew);
        progress.fresh = false;
        threadgroup float* sums = r.sums + progress.parity * crew.simds * sums_of_simd<N>();
        put_sums<N>(sums + crew.simd * sums_of_simd<N>(), crew.lane, sum);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (base + team < range.y) {
            job.template finish<N>(pair, in, r, sums + team * split * sums_of_simd<N>(), split, own * SIMD + crew.lane);
        }
        progress.parity ^= 1;
        pair = next;
    }
}

constant bool ALIKE = WITH_GATE != 0 || (WEIGHT1 == WEIGHT0 && WEIGHT2 == WEIGHT0);

// All pairs of a job; matrices of one type go together.
template <uint N, typename Job>
METAL_FUNC void all_products(constant ProjectParams& p, Inputs in, thread const Job& job, uint2 group, Crew crew) {
    Progress progress = {true, 0};
    const uint each = WITH_GATE != 0 ? CELL_ROWS : PAIR_ROWS;
    uint begin = 0;
    ROLLED for (uint part = 0; part < 3; part++) {
        uint end = begin + (rows_of(p, part) + each - 1) / each;
        if (ALIKE && WITH_GATE == 0) end += (p.rows1 + each - 1) / each + (p.rows2 + each - 1) / each;
#define CELL_DOTS(KIND) cell_dots<Cells##KIND, N>(p, in, job, uint2(begin, end), group, crew, progress);
        if (end > begin) FOR_CELL_TYPE(job.m.type_of(part), CELL_DOTS)
#undef CELL_DOTS
        if (ALIKE) break;
        begin = end;
    }
}
