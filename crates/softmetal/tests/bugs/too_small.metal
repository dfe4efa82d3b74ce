#include <metal_stdlib>
using namespace metal;

// The host binds fewer bytes than the argument has.
struct wide {
    uint n;
    uint pad[7];
};

kernel void buggy(device float* out [[buffer(1)]], constant wide& args [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < args.n) out[i] = args.pad[6];
}

kernel void fixed(device float* out [[buffer(1)]], constant uint& n [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < n) out[i] = n;
}
