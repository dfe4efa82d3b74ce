// One kernel per construct of the language that the rewriter must carry over to C++. Each writes what it found to `out`.
#include <metal_stdlib>
#include "included.h"
using namespace metal;

constant bool  wide    [[function_constant(0)]];
constant int   offset  [[function_constant(1)]];
constant float scale   [[function_constant(2)]];
constant bool  has_scale = is_function_constant_defined(scale);
constant int   twice     = has_scale ? offset * 2 : -1;
constant uint  table[4] = { 10, 20, 30, 40 };

kernel void uses_constants(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[i] = (wide ? 1000 : 0) + twice + int(table[i & 3]);
}

extern "C" kernel void undefined_constants(device int* out) {
    out[0] = is_function_constant_defined(offset) ? 1 : 0;
    out[1] = twice;
}

// An optional buffer, and indices that follow from what is free.
kernel void optional_buffer(device int* out, constant int& plus, device const int* extra [[buffer(5), function_constant(wide)]]) {
    out[0] = plus + (wide ? extra[0] : 0);
}

// Threadgroup variables: arrays, scalars, several in one declaration, in a template, aligned, in an inner block.
template <typename T, int N>
kernel void reverse(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                    uint i [[thread_position_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
    threadgroup T shared[N], last;
    alignas(16) threadgroup int counts[2][N / 2];
    threadgroup T* pointer = shared;
    threadgroup T (&reference)[N] = shared;
    shared[i] = in[i];
    counts[i / (N / 2)][i % (N / 2)] = int(i);
    if (i == n - 1) { last = in[i]; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    {
        threadgroup T inner[N];
        inner[i] = pointer[n - 1 - i] + reference[0] - reference[0];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[i] = inner[i] + (i == 0 ? last - last : T(0)) + T(counts[0][0]);
    }
}
template [[host_name("reverse_" "float")]] kernel void reverse<float, 32>(device const float*, device float*, uint, uint);
typedef decltype(reverse<half, 64>) reverse_t;
template [[host_name("reverse_half")]] kernel reverse_t reverse<half, 64>;
template [[host_name("reverse_int")]] [[kernel]] decltype(reverse<int, 32>) reverse<int, 32>;

// A threadgroup argument without an index, one with, and a limit that depends on the template.
template <int W>
[[kernel, max_total_threads_per_threadgroup(W * 32)]] void rotate(
    device const int* in, device int* out, threadgroup int* a, threadgroup int* b [[threadgroup(1)]],
    uint i [[thread_index_in_threadgroup]]) {
    a[i] = in[i];
    b[i] = 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = a[(i + 1) % (W * 32)] + b[i];
}
template [[host_name("rotate_2")]] [[kernel]] decltype(rotate<2>) rotate<2>;

// Overloads, methods and specialisations that differ by address space only.
inline float load(device const float* p) { return p[0]; }
inline float load(threadgroup const float* q) { return q[0]; }
inline float load(constant float* r) { return r[0]; }
template <typename P> struct element;
template <typename T> struct element<device T*> { typedef T type; };
template <typename T> struct element<threadgroup T*> { typedef T type; };
struct pair {
    float a, b;
    pair(float x, float y) thread : a(x), b(y) {}
    pair(float x, float y) device : a(x), b(y) {}
    float sum() const thread { return a + b; }
    float sum() const device { return a + b; }
    float sum() constant { return a + b; }
    thread pair& operator+=(thread const pair& o) thread { a += o.a; b += o.b; return *this; }
    thread pair& operator+=(device const pair& o) thread { a += o.a; b += o.b; return *this; }
    operator float() const thread { return sum(); }
    operator float() const device { return sum(); }
};
kernel void overloads(device const float* in, constant float* fixed, device float* out) {
    threadgroup float t;
    t = in[0];
    pair p(1.0, 2.0);
    p += p;
    typename element<device float*>::type more = 0.5;
    out[0] = load(in) + load(&t) + load(fixed) + p.sum() + float(p) + more;
}

// Structs by reference, by pointer and by value; nested address spaces.
struct Item { int weight; packed_float3 color; };
struct Params { uint count; float gain; Item items[2]; };
kernel void structs(constant Params& by_reference [[buffer(0)]], device const Params* by_pointer [[buffer(1)]],
                    Params by_value [[buffer(2)]], device float* out [[buffer(3)]]) {
    out[0] = by_reference.gain + by_pointer->items[1].color[2] + float(by_value.count) + by_value.items[0].weight;
    out[1] = sizeof(Item);
}

// Literals: no double anywhere.
kernel void literals(device float* out) {
    auto half_of = 1.0 / 3.0;
    out[0] = sizeof(half_of);
    out[1] = sizeof(1.0h) + sizeof(2h);
    out[2] = 0x1p3 + 1e2 + .5 + 1.f;
    out[3] = float(1.5bf);
    out[4] = 1.0h/ 3.0h;
}

// Macros, pragmas, casts, lambdas, attributes of clang.
#define LOOP(n) _Pragma("unroll") for (int k = 0; k < (n); k++)
#define FACTOR 4
kernel void macros(device int* out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]], ushort width [[threads_per_simdgroup]]) {
    int sum = 0;
    LOOP(4) { sum += k; }
    #pragma unroll(FACTOR)
    for (int k = 0; k < 4; k++) { sum += k; }
    auto add = [&](thread const int& x) { return x + int(as_type<uint>(1.0f) >> 23); };
    uint4 k = {1, 2, 3};
    [[clang::loop_unroll(enable)]] while (k.x < 3u) { k.x++; }
    out[lane] = add(sum) + int(width) + int(k.x + k.y + k.z + k.w) + included_value(lane);
}

volatile device coherent(device) atomic_uint* passes(volatile device coherent(device) atomic_uint* p) { return p; }
kernel void qualifiers(device coherent(system) atomic_uint* counter [[buffer(0)]], uint2 at [[thread_position_in_grid]],
                       uint2 size [[threads_per_grid]], ushort3 group [[threadgroup_position_in_grid]]) {
    atomic_fetch_add_explicit(passes(counter), at.x + at.y * size.x + group.x, memory_order_relaxed);
}

namespace inner {
constant int base [[function_constant(7)]];
constant int shifted = base + 1;
template <typename T> kernel void in_namespace(device T* out) { out[0] = T(shifted) + T(is_function_constant_defined(base)); }
template [[host_name("namespaced")]] kernel void in_namespace<int>(device int*);
}

constexpr sampler nearest_texel(coord::normalized, address::clamp_to_edge, filter::nearest);
inline float4 texel(texture2d<float> image, float2 at) { return image.sample(nearest_texel, at); }
vertex float4 not_compute(uint id [[vertex_id]]) { return float4(id); }
kernel void with_texture(texture2d<float, access::read> image [[texture(0)]], device float* out) { out[0] = image.get_width(); }
kernel void with_cube(texturecube<float> image [[texture(0)]], device float* out) { out[0] = image.get_width(); }
