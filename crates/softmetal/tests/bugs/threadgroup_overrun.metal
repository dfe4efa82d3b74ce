#include <metal_stdlib>
using namespace metal;

// The tile is one element short of the threadgroup.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], threadgroup float* tile [[threadgroup(0)]],
                  uint i [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    tile[i + 1] = in[i];  // BUG
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = i + 1 < size ? tile[i + 1] : 0.0f;
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], threadgroup float* tile [[threadgroup(0)]],
                  uint i [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    tile[i] = in[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = i + 1 < size ? tile[i + 1] : 0.0f;
}
