#include <metal_stdlib>
using namespace metal;

// Half of the lanes skip the simdgroup barrier.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float line[128];
    line[i] = in[i];
    if (i & 1) simdgroup_barrier(mem_flags::mem_threadgroup);  // BUG
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = line[i];
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float line[128];
    line[i] = in[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = line[i];
}
