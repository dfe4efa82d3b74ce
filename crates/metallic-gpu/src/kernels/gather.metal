// Rows of a table by number, decoded where the table is quantised; columns of a matrix; elements by their rows' own indices.

// The table's element type.
constant uint GATHER_TYPE [[function_constant(0)]];
// 1: row i of the result is row i of the table, and no numbers are read.
constant uint IN_ORDER [[function_constant(1)]];
// 1: an id with its highest bit set names a row of `fed`, where the step before has put the id.
constant uint FEEDS [[function_constant(2)]];

inline ulong row_named(device const uint* ids, device const uint* fed, uint at, uint last) {
    const uint id = ids[at];
    // What was chosen from no candidate is no row, and neither is an index past the table: the last one stands for it.
    return min(FEEDS && id >> 31 ? fed[id & 0x7fffffffu] : id, last);
}

// A thread has eight neighbouring elements of a row; `at.y` is the row.
template <typename T>
kernel void gather(
    constant GatherParams& p [[buffer(0)]], device const uint* ids [[buffer(1)]],
    device const uchar* table [[buffer(2)]], device const uint* fed [[buffer(3)]],
    device T* out [[buffer(4)]], uint2 at [[thread_position_in_grid]]
) {
    const uint i = at.x * 8;
    if (i >= p.cols || at.y >= p.rows) return;
    const ulong from = IN_ORDER ? ulong(at.y) : row_named(ids, fed, at.y, p.last);
    const Eight v = decode8(GATHER_TYPE, table + from * p.pitch, i, p.cols);
    device T* row = out + ulong(at.y) * p.cols;
    store_ragged(row, i, p.cols, v.lo);
    store_ragged(row, i + 4, p.cols, v.hi);
}
template <typename T>
kernel void slice(
    constant SliceParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device T* out [[buffer(2)]],
    uint2 at [[thread_position_in_grid]]
) {
    const uint i = at.x * 4;
    if (i >= p.cols || at.y >= p.rows) return;
    const float4 v = load_ragged(x + ulong(at.y) * p.in_cols + p.start, i, p.cols);
    store_ragged(out + ulong(at.y) * p.cols, i, p.cols, v);
}
template <typename T>
kernel void pick(
    constant PickParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device const uint* ids [[buffer(2)]],
    device T* out [[buffer(3)]], uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.count || at.y >= p.rows) return;
    const ulong to = ulong(at.y) * p.count + at.x;
    const uint id = ids[to];
    out[to] = id < p.cols ? x[ulong(at.y) * p.cols + id] : T(NAN);
}

EACH_FLOAT("gather", gather)
EACH_FLOAT("slice", slice)
EACH_FLOAT("pick", pick)
