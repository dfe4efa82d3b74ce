#include <metal_stdlib>
using namespace metal;

// Data travels through device memory, the barrier orders threadgroup memory only.
kernel void buggy(device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    out[i] = i;                                       // OTHER
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float next = out[(i + 1) % size];           // BUG
    threadgroup_barrier(mem_flags::mem_device);
    out[i] = next;
}

kernel void fixed(device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
    out[i] = i;
    threadgroup_barrier(mem_flags::mem_device);
    const float next = out[(i + 1) % size];
    threadgroup_barrier(mem_flags::mem_device);
    out[i] = next;
}
