#include <metal_stdlib>
using namespace metal;

// This one is copied, which C++ allows only if vectors are copied byte by byte.
union bits { float4 v; uint4 u; float f[4]; };

bits twice(bits b) {
    b.v += b.v;
    return b;
}

kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    bits b;
    b.v = *(device const float4*)(in + 1);  // BUG
    out[i] = twice(b).f[i & 3];
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    bits b;
    b.v = *(device const float4*)(in + 4);
    out[i] = twice(b).f[i & 3];
}
