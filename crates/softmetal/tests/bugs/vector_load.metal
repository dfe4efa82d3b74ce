#include <metal_stdlib>
using namespace metal;

// Four elements in one load: the last load straddles the end.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (4 * i >= n) return;
    const float4 v = *(device const float4*)(in + 4 * i);  // BUG
    for (uint k = 0; k < 4 && 4 * i + k < n; k++) out[4 * i + k] = v[k];
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (4 * i >= n) return;
    float4 v = 0;
    if (4 * i + 3 < n) v = *(device const float4*)(in + 4 * i);
    else for (uint k = 0; 4 * i + k < n; k++) v[k] = in[4 * i + k];
    for (uint k = 0; k < 4 && 4 * i + k < n; k++) out[4 * i + k] = v[k];
}
