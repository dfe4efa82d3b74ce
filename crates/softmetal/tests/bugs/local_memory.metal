#include <metal_stdlib>
using namespace metal;

// More threadgroup memory than any GPU has.
kernel void buggy(device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float big[9000];
    big[i] = i;
    out[i] = big[i];
}

kernel void fixed(device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float big[8000];
    big[i] = i;
    out[i] = big[i];
}
