#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

typedef tensor<device float, dextents<int, 2>, tensor_inline> Matrix;

// An operation of the whole threadgroup that only some threads come to.
kernel void buggy(device float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    constexpr auto shape = matmul2d_descriptor(16, 16, 16);
    Matrix a(in, dextents<int, 2>(16, 16)), b(in + 256, dextents<int, 2>(16, 16)), c(out, dextents<int, 2>(16, 16));
    matmul2d<shape, execution_simdgroups<2>> op;
    if (i < 40) {
        op.run(a, b, c);  // BUG
    } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);  // OTHER
    }
}

kernel void fixed(device float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    constexpr auto shape = matmul2d_descriptor(16, 16, 16);
    Matrix a(in, dextents<int, 2>(16, 16)), b(in + 256, dextents<int, 2>(16, 16)), c(out, dextents<int, 2>(16, 16));
    matmul2d<shape, execution_simdgroups<2>> op;
    op.run(a, b, c);
}
