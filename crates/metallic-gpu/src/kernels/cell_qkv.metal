// The way into attention with matrices in cells: queries, keys and values of up to 4 N tokens, rotated where they are made.
// Queries are returned, keys and values go to the cache, whose elements stand alone. Elements that are rotated together are the
// same row of a pair's two tiles, or neighbours.

struct IntoCache {
    constant ProjectParams& p;
    Matrices m;
    device const uint* positions;
    device const float* freqs;
    device const uint2* rows;
    device const uint* blocks;
    device float* out;
    device uchar* keys;
    device uchar* values;
    // The first token of these threadgroups.
    uint token;

    // A pair's head, and where its tiles begin in it.
    struct Pair {
        uint part, head, one, two;
    };

    METAL_FUNC Pair at(uint number) const {
        const Tile tile = tile_of(p, number, PAIR_ROWS, 3);
        const uint within = tile.places.x % HEAD_DIM, half_way = within / 2;
        Pair pair = {tile.part, tile.places.x / HEAD_DIM, within, within + CELL_ROWS};
        if (INTERLEAVED == 0 && half_way < p.pairs) {
            pair.one = half_way;
            pair.two = half_way + p.pairs;
        }
        return pair;
    }

    template <typename W>
    METAL_FUNC Tiles tiles(uint number) const {
        const Pair pair = at(number);
        const ulong bytes = W::bytes(cells_of(p.cols));
        device const uchar* w = m.weight_of(pair.part);
        const uint row = pair.head * HEAD_DIM;
        return {w + (row + pair.one) / CELL_ROWS * bytes, w + (row + pair.two) / CELL_ROWS * bytes};
    }

    // The two elements of a lane as rows of the pair, and in their head.
    METAL_FUNC uint2 rows_at(uint j) const {
        return INTERLEAVED != 0 ? uint2(2 * j, 2 * j + 1) : uint2(j, CELL_ROWS + j);
    }
    METAL_FUNC uint2 places(Pair pair, uint j) const {
        return INTERLEAVED != 0 ? pair.one + rows_at(j) : uint2(pair.one + j, pair.two + j);
    }

    // What two elements of a token become beyond their products: what is added, how they are turned, and where they go in the cache.
    struct Beside {
        float2 bias, turn;
        ulong row;
        uint position;
        float freq;
    };
    METAL_FUNC Beside beside_of(Pair pair, uint t, uint j) const {
        const uint2 place = places(pair, j);
        Beside beside = {float2(0.0f), float2(1.0f, 0.0f), 0, 0, 0.0f};
        if (pair.part != 0) beside.row = kv_row(rows, blocks, token + t, pair.head, p.rows1 / HEAD_DIM);
        if (WITH_BIAS != 0) {
            device const float* bias = m.bias_of(pair.part) + pair.head * HEAD_DIM;
            beside.bias = float2(bias[place.x], bias[place.y]);
        }
        const uint turned_by = INTERLEAVED != 0 ? place.x / 2 : place.x;
        if (pair.part < 2 && turned_by < p.pairs) {
            beside.position = positions[token + t];
            beside.freq = freqs[turned_by];
        }
        return beside;
    }
    // Of the first token: it comes before the products are made, and what is computed of it is there before all of them are.
    METAL_FUNC Beside early(uint number, uint lane) const { return beside_of(at(number), 0, lane % CELL_ROWS); }
    METAL_FUNC void late(thread Beside&, uint, uint) const {}
    METAL_FUNC void meanwhile(thread Beside& beside) const {
        const float2 cs = turn(beside.position, beside.freq);
        beside.turn = float2(here(cs.x), here(cs.y));
    }

    template <uint TOKENS>
    METAL_FUNC void finish(
        uint number, Inputs in, Results r, Parts parts, Beside first, uint lane
    ) const {
        const Pair pair = at(number);
        for (uint i = lane; i < CELL_ROWS * in.tokens; i += SIMD) {
            const uint t = i / CELL_ROWS, j = i % CELL_ROWS;
            const uint2 at = rows_at(j), place = places(pair, j);
            Beside beside = first;
            if (t > 0) {
                beside = beside_of(pair, t, j);
                meanwhile(beside);
            }
            float one = result_of<TOKENS>(r, parts, at.x, t) + beside.bias.x;
            float two = result_of<TOKENS>(r, parts, at.y, t) + beside.bias.y;
            if (pair.part < 2 && (INTERLEAVED != 0 ? place.x / 2 : place.x) < p.pairs) {
                const float turned = rotated(one, two, 0, uint2(0, 1), beside.turn, p.magnitude);
                two = rotated(one, two, 1, uint2(0, 1), beside.turn, p.magnitude);
                one = turned;
            }
            if (pair.part == 0) {
                device float* queries = out + ulong(token + t) * p.rows0 + pair.head * HEAD_DIM;
                queries[place.x] = one;
                queries[place.y] = two;
            } else {
                device uchar* row = (pair.part == 1 ? keys : values) + beside.row;
                kv_put(row, place.x, one);
                kv_put(row, place.y, two);
            }
        }
    }
};

template <uint N, bool ONE>
[[kernel, max_total_threads_per_threadgroup(512)]] void cell_qkv(
    constant ProjectParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device const uchar* w0 [[buffer(3)]], device const uchar* w1 [[buffer(4)]], device const uchar* w2 [[buffer(5)]],
    device const float* bias0 [[buffer(6)]], device const float* bias1 [[buffer(7)]],
    device const float* bias2 [[buffer(8)]], device const uint* positions [[buffer(9)]],
    device const float* freqs [[buffer(10)]], device const uint2* rows [[buffer(11)]],
    device const uint* blocks [[buffer(12)]], device float* out [[buffer(13)]], device uchar* keys [[buffer(14)]],
    device uchar* values [[buffer(15)]], threadgroup uint4* shared [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    const uint most = ONE ? 1 : 4 * N >> p.fine, token = ONE ? 0 : group.y * most;
    const Crew crew = {tid, lane, simd, simds, (threadgroup uchar*)shared};
    const Inputs in = inputs_of<ONE>(p, x, norm, token, most);
    const IntoCache job = {p, {w0, w1, w2, bias0, bias1, bias2}, positions, freqs, rows, blocks, out, keys, values, token};
    Staged<N, ONE> vectors = {p, in, crew, NOWHERE};
    all_products(p, vectors, job, uint2(group.x, groups.x), crew);
}

// The same of one token, whose numbers simdgroups lay out for themselves.
[[kernel, max_total_threads_per_threadgroup(512)]] void cell_qkv_own(
    constant ProjectParams& p [[buffer(0)]], device const float* x [[buffer(1)]], device const float* norm [[buffer(2)]],
    device const uchar* w0 [[buffer(3)]], device const uchar* w1 [[buffer(4)]], device const uchar* w2 [[buffer(5)]],
    device const float* bias0 [[buffer(6)]], device const float* bias1 [[buffer(7)]],
    device const float* bias2 [[buffer(8)]], device const uint* positions [[buffer(9)]],
    device const float* freqs [[buffer(10)]], device const uint2* rows [[buffer(11)]],
    device const uint* blocks [[buffer(12)]], device float* out [[buffer(13)]], device uchar* keys [[buffer(14)]],
    device uchar* values [[buffer(15)]], threadgroup uint4* shared [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    const Crew crew = {tid, lane, simd, simds, (threadgroup uchar*)shared};
    const IntoCache job = {p, {w0, w1, w2, bias0, bias1, bias2}, positions, freqs, rows, blocks, out, keys, values, 0};
    Own vectors = own_of(p, x, norm, crew);
    all_products(p, vectors, job, uint2(group.x, groups.x), crew);
}

KERNEL("cell_qkv_1", cell_qkv<1, true>)
KERNEL("cell_qkv_4", cell_qkv<1, false>)
KERNEL("cell_qkv_8", cell_qkv<2, false>)

// The same of up to eight tokens, whose vectors were laid out before.
template <bool NEAR>
[[kernel, max_total_threads_per_threadgroup(512)]] void cell_qkv_rows(
    constant ProjectParams& p [[buffer(0)]], device const uint4* columns [[buffer(1)]], device const uint4* sums [[buffer(2)]],
    device const float* scales [[buffer(3)]], device const uchar* w0 [[buffer(4)]], device const uchar* w1 [[buffer(5)]],
    device const uchar* w2 [[buffer(6)]], device const float* bias0 [[buffer(7)]], device const float* bias1 [[buffer(8)]],
    device const float* bias2 [[buffer(9)]], device const uint* positions [[buffer(10)]],
    device const float* freqs [[buffer(11)]], device const uint2* rows [[buffer(12)]],
    device const uint* blocks [[buffer(13)]], device float* out [[buffer(14)]], device uchar* keys [[buffer(15)]],
    device uchar* values [[buffer(16)]], threadgroup uint4* shared [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]
) {
    const Crew crew = {tid, lane, simd, simds, (threadgroup uchar*)shared};
    const IntoCache job = {p, {w0, w1, w2, bias0, bias1, bias2}, positions, freqs, rows, blocks, out, keys, values, 0};
    EightsOfBytes<NEAR> vectors = eights_of_bytes<NEAR>(columns, sums, scales, p.tokens, cells_of(p.cols), crew);
    all_products(p, vectors, job, uint2(group.x, groups.x), crew);
}

KERNEL("cell_qkv_rows", cell_qkv_rows<false>)
KERNEL("cell_qkv_rows_near", cell_qkv_rows<true>)
