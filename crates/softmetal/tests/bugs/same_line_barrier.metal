#include <metal_stdlib>
using namespace metal;

// Two barriers that stand on one line are two all the same.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float line[128];
    line[i] = in[i];
    if (i < 40) threadgroup_barrier(mem_flags::mem_threadgroup); else threadgroup_barrier(mem_flags::mem_threadgroup);  // BUG
    out[i] = line[i];
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float line[128];
    line[i] = in[i];
    for (uint k = 0; k < 2; k++) threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = line[i];
}
