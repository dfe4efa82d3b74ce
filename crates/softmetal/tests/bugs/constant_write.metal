#include <metal_stdlib>
using namespace metal;

// The cast takes const away.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    *(device float*)(in + i) = 0;  // BUG
    out[i] = 1;
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    *(device float*)(out + i) = in[i];
}
