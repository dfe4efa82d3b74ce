#include <metal_stdlib>
using namespace metal;

// The union has nothing to do with it.
union bits { float4 v; uint4 u; float f[4]; };

kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    bits b;
    b.v = *(device const float4*)(in + 2 + i * 0);  // BUG
    out[i] = b.f[i & 3];
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    bits b;
    b.v = *(device const float4*)(in + 4);
    out[i] = b.f[i & 3];
}
