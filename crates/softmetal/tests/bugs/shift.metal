#include <metal_stdlib>
using namespace metal;

// A shift by the whole width.
kernel void buggy(device float* out [[buffer(1)]], constant uint& n [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    out[i] = n << (i & 63);  // BUG
}

kernel void fixed(device float* out [[buffer(1)]], constant uint& n [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    out[i] = n << (i & 31);
}
