#include <metal_stdlib>
using namespace metal;

// The lower half of each simdgroup asks the upper half, which is elsewhere.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    float x = in[i];
    if (lane < 16) x += simd_shuffle_down(x, 16);  // BUG
    out[i] = x;
}

// At the upper end a shuffle gives one's own value, and that is no mistake.
kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    float x = in[i];
    const float upper = simd_shuffle_down(x, 16), filled = simd_shuffle_and_fill_up(x, 0.0f, 3);
    if (lane < 16) x += upper + simd_shuffle_xor(filled, 8) + simd_broadcast(x, 3) + quad_shuffle(x, 2);
    out[i] = x;
}
