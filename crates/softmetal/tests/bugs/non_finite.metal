#include <metal_stdlib>
using namespace metal;

// The logarithm of zero.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = log(in[i]);  // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = log(max(in[i], 1e-6f));
}
