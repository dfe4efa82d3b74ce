#include <metal_stdlib>
using namespace metal;

// A vector load at every element.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const float4 v = *(device const float4*)(in + i);  // BUG
    out[i] = v.x + v.w;
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const float4 v = float4(*(device const packed_float4*)(in + i));
    out[i] = v.x + v.w;
}
