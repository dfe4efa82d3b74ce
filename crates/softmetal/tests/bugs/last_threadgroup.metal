#include <metal_stdlib>
using namespace metal;

// Whole threadgroups cover a grid that is no multiple of them: only the last one reads past the end.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    const float x = in[i];  // BUG
    if (i < n) out[i] = x;
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (i < n) {
        const float x = in[i];
        out[i] = x;
    }
}
