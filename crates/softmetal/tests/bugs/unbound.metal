#include <metal_stdlib>
using namespace metal;

// Buffer 3 is read, but the host binds nothing to it.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], device const float* bias [[buffer(3)]],
                  uint i [[thread_position_in_grid]]) {
    out[i] = in[i] + bias[i];  // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], device const float* bias [[buffer(3)]],
                  constant uint& has_bias [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    out[i] = has_bias != 0 ? in[i] + bias[i] : in[i];
}
