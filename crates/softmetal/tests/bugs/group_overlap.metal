#include <metal_stdlib>
using namespace metal;

// Neighbouring threadgroups write one element in common.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint g [[threadgroup_position_in_grid]],
                  uint i [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    out[g * (size - 1) + i] = in[i];  // BUG OTHER
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint g [[threadgroup_position_in_grid]],
                  uint i [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    out[g * size + i] = in[i];
}
