#include <metal_stdlib>
using namespace metal;

// Lanes of one simdgroup exchange data through threadgroup memory without a simdgroup barrier.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float line[128];
    line[i] = in[i];             // OTHER
    out[i] = line[i ^ 1];        // BUG
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float line[128];
    line[i] = in[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = line[i ^ 1];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    line[i] = 2 * line[i];
}
