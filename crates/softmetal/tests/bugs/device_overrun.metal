#include <metal_stdlib>
using namespace metal;

// The guard lets one thread too many through.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (i <= n) out[i] = 1;  // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (i < n) out[i] = 1;
}
