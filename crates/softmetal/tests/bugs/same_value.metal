#include <metal_stdlib>
using namespace metal;

// All threads say the same.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float whole[1];
    whole[0] = in[0] + 1;  // BUG
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = whole[0];
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float whole[1];
    if (i == 0) whole[0] = in[0] + 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = whole[0];
}
