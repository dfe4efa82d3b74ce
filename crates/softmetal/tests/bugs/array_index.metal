#include <metal_stdlib>
using namespace metal;

// A local array, one element short.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    float last[4] = { 0, 0, 0, 0 };
    for (uint k = 0; k < 8; k++) last[k % (n & 7u)] = in[i] + k;  // BUG
    out[i] = last[0] + last[3];
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    float last[4] = { 0, 0, 0, 0 };
    for (uint k = 0; k < 8; k++) last[k % (n & 3u)] = in[i] + k;
    out[i] = last[0] + last[3];
}
