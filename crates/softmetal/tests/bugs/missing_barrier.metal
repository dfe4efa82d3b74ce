#include <metal_stdlib>
using namespace metal;

// A row's sum over simdgroups: partial sums are read before all are written.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  threadgroup float* partial [[threadgroup(0)]], uint row [[threadgroup_position_in_grid]],
                  uint lid [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
    float s = 0;
    for (uint i = lid; i < n; i += size) s += in[row * n + i];
    s = simd_sum(s);
    if (sg == 0) partial[lane] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) partial[sg] = s;  // OTHER
    s = simd_sum(partial[lane]);     // BUG
    if (lid == 0) out[row] = s;
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  threadgroup float* partial [[threadgroup(0)]], uint row [[threadgroup_position_in_grid]],
                  uint lid [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
    float s = 0;
    for (uint i = lid; i < n; i += size) s += in[row * n + i];
    s = simd_sum(s);
    if (sg == 0) partial[lane] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) partial[sg] = s;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    s = simd_sum(partial[lane]);
    if (lid == 0) out[row] = s;
}
