// Rows of a matrix, each worked on by a simdgroup or by a whole threadgroup.

// Where a thread stands in its row.
struct Lanes {
    uint tid;
    uint threads;
    uint lane;
    uint simd;
    uint simds;
};

// `per_group` rows share a threadgroup, one simdgroup each; where it is 1, all simdgroups work on one row.
inline uint row_of(thread Lanes& at, uint group, uint per_group) {
    if (per_group == 1) return group;
    const uint row = group * per_group + at.simd;
    at.tid = at.lane;
    at.threads = SIMD;
    at.simd = 0;
    at.simds = 1;
    return row;
}

// What kernels that work row by row take after their buffers, and how they find their row.
#define ROW_THREADS                                                                                              \
    uint group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],                       \
    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],                           \
    uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]]

#define FIND_ROW                                                                                                 \
    threadgroup float scratch[64];                                                                               \
    Lanes at = {tid, threads, lane, simd, simds};                                                                \
    const uint row = row_of(at, group, p.per_group);                                                             \
    if (row >= p.rows) return;                                                                                   \
    const ulong start = ulong(row) * p.cols

// The sum over the threads of a row; every thread gets it. `scratch` holds two numbers per simdgroup.
inline float row_sum(float x, threadgroup float* scratch, Lanes at) {
    return group_sum(x, scratch, at.lane, at.simd, at.simds);
}

// Two sums at once.
inline float2 row_sums(float2 x, threadgroup float* scratch, Lanes at) {
    x = float2(simd_sum(x.x), simd_sum(x.y));
    if (at.simds == 1) return x;
    if (at.lane == 0) {
        scratch[at.simd] = x.x;
        scratch[SIMD + at.simd] = x.y;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x = at.lane < at.simds ? float2(scratch[at.lane], scratch[SIMD + at.lane]) : float2(0.0f);
    x = float2(simd_sum(x.x), simd_sum(x.y));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return x;
}
