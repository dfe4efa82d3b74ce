#include <metal_stdlib>
using namespace metal;

// Modulo the number of rows, which may be none.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    out[i] = in[i % (n / 1000)];  // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    out[i] = in[i % max(n / 1000, 1u)];
}
