#include <metal_stdlib>
using namespace metal;

// Wrong in one instance only: the number of elements per load does not follow from the type.
template <typename T, uint N>
kernel void gather(device const T* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
    float s = 0;
    for (uint k = 0; k < N; k++) s += float(in[i * N + k]);  // BUG
    out[i] = s;
}

template [[host_name("buggy")]] kernel void gather<float, 4>(device const float*, device float*, constant uint&, uint);
template [[host_name("fixed")]] kernel void gather<half, 4>(device const half*, device float*, constant uint&, uint);
