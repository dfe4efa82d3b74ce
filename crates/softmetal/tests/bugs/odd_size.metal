#include <metal_stdlib>
using namespace metal;

// Two elements per thread: right for even sizes, one too many for odd ones.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (2 * i >= n) return;
    out[2 * i] = in[2 * i];
    out[2 * i + 1] = in[2 * i + 1];  // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (2 * i >= n) return;
    out[2 * i] = in[2 * i];
    if (2 * i + 1 < n) out[2 * i + 1] = in[2 * i + 1];
}
