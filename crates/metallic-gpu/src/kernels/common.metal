// Helpers of all families. Threads of a threadgroup are a whole number of simdgroups everywhere.

constant constexpr uint SIMD = 32;

// Before loops that index arrays in registers: an index that is no constant would put the array into memory.
#define UNROLL _Pragma("clang loop unroll(full)")
// Before loops whose copies would take the registers of others.
#define ROLLED _Pragma("clang loop unroll(disable)")

// The sum over a threadgroup; every thread gets it. `scratch` holds one number per simdgroup.
inline float group_sum(float x, threadgroup float* scratch, uint lane, uint simd, uint simds) {
    x = simd_sum(x);
    if (simds == 1) return x;
    if (lane == 0) scratch[simd] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x = simd_sum(lane < simds ? scratch[lane] : 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return x;
}

// The largest over a threadgroup; every thread gets it.
inline float group_max(float x, threadgroup float* scratch, uint lane, uint simd, uint simds) {
    x = simd_max(x);
    if (simds == 1) return x;
    if (lane == 0) scratch[simd] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x = simd_max(lane < simds ? scratch[lane] : -INFINITY);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return x;
}

inline float across(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}
