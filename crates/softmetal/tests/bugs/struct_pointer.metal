#include <metal_stdlib>
using namespace metal;

// The pointer sits in a struct and reaches the access through two functions.
struct view {
    device const float* data;
    uint stride;
};

static float at(thread const view& v, uint row, uint column) {
    return v.data[row * v.stride + column];  // BUG
}

static float sum(view v, uint row, uint columns) {
    float s = 0;
    for (uint c = 0; c < columns; c++) s += at(v, row, c);
    return s;
}

kernel void buggy(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint row [[thread_position_in_grid]]) {
    view v = { in, n + 1 };
    out[row] = sum(v, row, n);
}

kernel void fixed(device const float* in [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint row [[thread_position_in_grid]]) {
    view v = { in, n };
    out[row] = sum(v, row, n);
}
