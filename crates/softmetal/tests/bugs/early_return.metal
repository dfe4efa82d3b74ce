#include <metal_stdlib>
using namespace metal;

// Threads past the end return, the others wait for them.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_threadgroup]]) {
    threadgroup float line[128];
    if (i >= n) return;
    line[i] = in[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);  // BUG
    out[i] = line[n - 1 - i];
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_threadgroup]]) {
    threadgroup float line[128];
    if (i < n) line[i] = in[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < n) out[i] = line[n - 1 - i];
}
