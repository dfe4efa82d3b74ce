#include <metal_stdlib>
using namespace metal;

// A counter is reset without atomics by a thread that the others do not wait for.
kernel void buggy(device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup uint counter[1];
    if (i == 0) counter[0] = 0;
    atomic_fetch_add_explicit((threadgroup atomic_uint*)counter, 1u, memory_order_relaxed);  // BUG
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = counter[0];
}

kernel void fixed(device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup uint counter[1];
    if (i == 0) counter[0] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit((threadgroup atomic_uint*)counter, 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = counter[0];
}
