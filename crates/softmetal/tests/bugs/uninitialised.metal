#include <metal_stdlib>
using namespace metal;

// Slots of simdgroups that do not exist are read before anything was written to them.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
    threadgroup float partial[32];
    float m = simd_max(in[i]);
    if (lane == 0) partial[sg] = m;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    m = simd_max(partial[lane]);  // BUG
    if (i == 0) out[0] = m;
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]],
                  uint count [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[32];
    float m = simd_max(in[i]);
    if (lane == 0) partial[sg] = m;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    m = simd_max(lane < count ? partial[lane] : -INFINITY);
    if (i == 0) out[0] = m;
}
