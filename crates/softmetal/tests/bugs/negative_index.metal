#include <metal_stdlib>
using namespace metal;

// The left neighbour of element 0.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = in[int(i) - 1];  // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = in[max(int(i) - 1, 0)];
}
