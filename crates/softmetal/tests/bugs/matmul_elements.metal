#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

typedef tensor<device float, dextents<int, 2>, tensor_inline> Matrix;

// Not every element that a thread has room for is one of the matrix.
kernel void buggy(device float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    constexpr auto shape = matmul2d_descriptor(16, 16, 16);
    Matrix a(in, dextents<int, 2>(16, 16)), b(in + 256, dextents<int, 2>(16, 16));
    matmul2d<shape, execution_simdgroups<2>> op;
    auto c = op.get_destination_cooperative_tensor<Matrix, Matrix, float>();
    op.run(a, b, c);
    for (ushort j = 0; j < c.get_capacity(); j++) {
        const auto at = c.get_multidimensional_index(j);
        out[at[1] * 16 + at[0]] = c[j];  // BUG
    }
}

kernel void fixed(device float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    constexpr auto shape = matmul2d_descriptor(16, 16, 16);
    Matrix a(in, dextents<int, 2>(16, 16)), b(in + 256, dextents<int, 2>(16, 16));
    matmul2d<shape, execution_simdgroups<2>> op;
    auto c = op.get_destination_cooperative_tensor<Matrix, Matrix, float>();
    op.run(a, b, c);
    for (ushort j = 0; j < c.get_capacity(); j++) {
        if (!c.is_valid_element(j)) continue;
        const auto at = c.get_multidimensional_index(j);
        out[at[1] * 16 + at[0]] = c[j];
    }
}
