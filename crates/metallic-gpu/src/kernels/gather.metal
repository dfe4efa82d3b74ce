// Rows of a table by number, decoded where the table is quantised; columns of a matrix.

// The table's element type.
constant uint GATHER_TYPE [[function_constant(0)]];
// 1: row i of the result is row i of the table, and no numbers are read.
constant uint IN_ORDER [[function_constant(1)]];

// A thread has eight neighbouring elements of a row; `at.y` is the row.
#define GATHER(T, NAME)                                                                                          \
    kernel void gather_##NAME(                                                                                   \
        constant GatherParams& p [[buffer(0)]], device const uint* ids [[buffer(1)]],                            \
        device const uchar* table [[buffer(2)]], device T* out [[buffer(3)]],                                    \
        uint2 at [[thread_position_in_grid]]                                                                     \
    ) {                                                                                                          \
        const uint i = at.x * 8;                                                                                 \
        if (i >= p.cols || at.y >= p.rows) return;                                                               \
        const ulong from = IN_ORDER ? ulong(at.y) : ulong(ids[at.y]);                                            \
        const Eight v = decode8(GATHER_TYPE, table + from * p.pitch, i, p.cols);                                 \
        device T* row = out + ulong(at.y) * p.cols;                                                              \
        store_ragged(row, i, p.cols, v.lo);                                                                      \
        store_ragged(row, i + 4, p.cols, v.hi);                                                                  \
    }                                                                                                            \
    kernel void slice_##NAME(                                                                                    \
        constant SliceParams& p [[buffer(0)]], device const T* x [[buffer(1)]], device T* out [[buffer(2)]],     \
        uint2 at [[thread_position_in_grid]]                                                                     \
    ) {                                                                                                          \
        const uint i = at.x * 4;                                                                                 \
        if (i >= p.cols || at.y >= p.rows) return;                                                               \
        const float4 v = load_ragged(x + ulong(at.y) * p.in_cols + p.start, i, p.cols);                          \
        store_ragged(out + ulong(at.y) * p.cols, i, p.cols, v);                                                  \
    }

GATHER(float, f32)
GATHER(half, f16)
GATHER(bfloat, bf16)
