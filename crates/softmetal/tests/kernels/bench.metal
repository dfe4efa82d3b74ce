#include <metal_stdlib>
using namespace metal;

kernel void nothing(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = i; }

kernel void barriers(device float* out [[buffer(0)]], constant int& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float passed = 0;
    for (int k = 0; k < n; k++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        passed += 1;
    }
    out[i] = passed;
}

kernel void sums(device float* out [[buffer(0)]], constant int& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float x = i;
    for (int k = 0; k < n; k++) x = simd_sum(x) * (1.0f / 32);
    out[i] = x;
}

kernel void spin(device float* out [[buffer(0)]], constant int& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float x = i;
    for (int k = 0; k < n; k++) x = x * 0.999f + 1.0f;
    out[i] = x;
}
