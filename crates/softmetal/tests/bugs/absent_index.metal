#include <metal_stdlib>
using namespace metal;

// There is no lane 32.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    out[i] = simd_shuffle(in[i], lane + 1);  // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    out[i] = simd_shuffle(in[i], (lane + 1) % 32);
}
