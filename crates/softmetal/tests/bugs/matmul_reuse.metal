#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

typedef tensor<device float, dextents<int, 2>, tensor_inline> Matrix;
typedef tensor<threadgroup float, dextents<int, 2>, tensor_inline> Tile;

// A tile is written anew while the operation may still read it.
kernel void buggy(device float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    constexpr auto shape = matmul2d_descriptor(16, 16, 16, false, false, false, matmul2d_descriptor::mode::multiply_accumulate);
    threadgroup float tile[256];
    Tile b(tile, dextents<int, 2>(16, 16));
    Matrix a(in, dextents<int, 2>(16, 16)), c(out, dextents<int, 2>(16, 16));
    matmul2d<shape, execution_simdgroups<2>> op;
    for (uint step = 0; step < 2; step++) {
        for (uint j = i; j < 256; j += 64) tile[j] = in[256 * step + j];  // OTHER
        threadgroup_barrier(mem_flags::mem_threadgroup);
        op.run(a, b, c);  // BUG
    }
}

kernel void fixed(device float* in [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    constexpr auto shape = matmul2d_descriptor(16, 16, 16, false, false, false, matmul2d_descriptor::mode::multiply_accumulate);
    threadgroup float tile[256];
    Tile b(tile, dextents<int, 2>(16, 16));
    Matrix a(in, dextents<int, 2>(16, 16)), c(out, dextents<int, 2>(16, 16));
    matmul2d<shape, execution_simdgroups<2>> op;
    for (uint step = 0; step < 2; step++) {
        for (uint j = i; j < 256; j += 64) tile[j] = in[256 * step + j];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        op.run(a, b, c);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
