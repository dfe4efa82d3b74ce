#include <metal_stdlib>
using namespace metal;

// A barrier that orders no memory stands between the write and the read.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]],
                  uint size [[threads_per_threadgroup]]) {
    threadgroup float line[128];
    line[i] = in[i];                             // OTHER
    threadgroup_barrier(mem_flags::mem_none);
    out[i] = line[size - 1 - i];                 // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]],
                  uint size [[threads_per_threadgroup]]) {
    threadgroup float line[128];
    line[i] = in[i];
    threadgroup_barrier(mem_flags::mem_none | mem_flags::mem_threadgroup);
    out[i] = line[size - 1 - i];
}
