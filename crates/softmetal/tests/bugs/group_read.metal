#include <metal_stdlib>
using namespace metal;

// A threadgroup reads what its neighbour writes in the same dispatch.
kernel void buggy(device float* out [[buffer(1)]], uint i [[thread_position_in_grid]], uint g [[threadgroup_position_in_grid]],
                  uint size [[threads_per_threadgroup]], uint total [[threads_per_grid]]) {
    out[i] = i;
    threadgroup_barrier(mem_flags::mem_device);
    const float x = out[(i + size) % total];  // BUG
    out[total + i] = x;
}

kernel void fixed(device float* out [[buffer(1)]], uint i [[thread_position_in_grid]], uint g [[threadgroup_position_in_grid]],
                  uint size [[threads_per_threadgroup]], uint total [[threads_per_grid]]) {
    out[i] = i;
    threadgroup_barrier(mem_flags::mem_device);
    const float x = out[g * size + (i + 1) % size];
    out[total + i] = x;
}
