#include <metal_stdlib>
using namespace metal;

// In order, the last thread runs last and finds everything written: the answer is right, the kernel is not.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint row [[threadgroup_position_in_grid]],
                  uint lid [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    threadgroup float line[128];
    line[size - 1 - lid] = in[row * size + lid];  // OTHER
    if (lid == size - 1) {
        float s = 0;
        for (uint i = 0; i < size; i++) s += line[i];  // BUG
        out[row] = s;
    }
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint row [[threadgroup_position_in_grid]],
                  uint lid [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    threadgroup float line[128];
    line[size - 1 - lid] = in[row * size + lid];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lid == size - 1) {
        float s = 0;
        for (uint i = 0; i < size; i++) s += line[i];
        out[row] = s;
    }
}
