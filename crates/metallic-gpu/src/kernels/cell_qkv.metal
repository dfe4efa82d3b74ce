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

    template <uint TOKENS>
    METAL_FUNC void finish(
        uint number, Inputs in, Results r, Parts parts, uint lane
    ) const {
        const Pair pair = at(number);
        device const float* bias = m.bias_of(pair.part);
        for (uint i = lane; i < CELL_ROWS * in.tokens; i += SIMD) {
            const uint t = i / CELL_ROWS, j = i % CELL_ROWS;
            // The two elements as rows of the pair, and in their head.
            const uint2 at = INTERLEAVED != 0 ? uint2(2 * j, 2 * j + 1) : uint2(j, CELL_ROWS + j);
            const uint2 place = INTERLEAVED != 0 ? pair.one + at : uint2(pair.one + j, pair.two + j);
            float one = result_of<TOKENS>(r, parts, at.x, t), two = result_of<TOKENS>(r, parts, at.y, t);
            if (WITH_BIAS != 0) {
                one += bias[pair.head * HEAD_DIM + place.x];
                two += bias[pair.head * HEAD_DIM + place.y];
            }
            const uint turned_by = INTERLEAVED != 0 ? place.x / 2 : place.x;
            if (pair.part < 2 && turned_by < p.pairs) {
                const float2 cs = turn(positions[token + t], freqs[turned_by]);
                const float turned = rotated(one, two, 0, uint2(0, 1), cs, p.magnitude);
                two = rotated(one, two, 1, uint2(0, 1), cs, p.magnitude);
                one = turned;
            }
            if (pair.part == 0) {
                device float* queries = out + ulong(token + t) * p.rows0 + pair.head * HEAD_DIM;
                queries[place.x] = one;
                queries[place.y] = two;
            } else {
                device uchar* row = (pair.part == 1 ? keys : values) + kv_row(rows, blocks, token + t, pair.head, p.rows1 / HEAD_DIM);
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
