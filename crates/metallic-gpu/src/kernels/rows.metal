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

inline float across(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}
