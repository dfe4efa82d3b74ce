#include <metal_stdlib>
using namespace metal;

// A loop that reuses its tile: the next round's writes overtake the last round's reads.
kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint lid [[thread_position_in_threadgroup]],
                  uint size [[threads_per_threadgroup]]) {
    threadgroup float tile[128];
    float s = 0;
    for (uint round = 0; round < 3; round++) {
        tile[lid] = in[lid] * round;  // BUG
        threadgroup_barrier(mem_flags::mem_threadgroup);
        s += tile[(lid + 1) % size];  // OTHER
    }
    out[lid] = s;
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], uint lid [[thread_position_in_threadgroup]],
                  uint size [[threads_per_threadgroup]]) {
    threadgroup float tile[128];
    float s = 0;
    for (uint round = 0; round < 3; round++) {
        tile[lid] = in[lid] * round;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        s += tile[(lid + 1) % size];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[lid] = s;
}
