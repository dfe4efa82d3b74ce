//! The address-space lint finds what Metal would refuse, and nothing else.

use crate::front::needed;
use softmetal::{Compiler, Diagnostic, Source, lint::lint};

fn check(name: &str, text: &str) -> Option<Vec<Diagnostic>> {
    let compiler = needed(Compiler::new())?;
    Some(
        lint(&compiler, &Source::new(format!("{name}.metal"), text))
            .unwrap_or_else(|error| panic!("{name}: {error}")),
    )
}

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\n";

/// A mistake on line 4 of the source, and words that its message must hold.
const MISTAKES: &[(&str, &str, &[&str])] = &[
    (
        "threadgroup_to_device",
        "kernel void k(device float* d [[buffer(0)]], threadgroup float* t [[threadgroup(0)]]) {\ndevice float* p = t; p[0] = 1; }",
        &["device", "threadgroup"],
    ),
    (
        "device_to_thread",
        "kernel void k(device float* d [[buffer(0)]]) {\nthread float* p = d; p[0] = 1; }",
        &["device", "thread"],
    ),
    (
        "wrong_argument",
        "void f(device float* p) { p[0] = 1; } kernel void k(threadgroup float* t [[threadgroup(0)]]) {\nf(t); }",
        &["f"],
    ),
    (
        "thread_reference_to_device",
        "kernel void k(device float* d [[buffer(0)]]) {\nthread float& r = d[0]; r = 1; }",
        &["thread"],
    ),
    ("write_to_constant", "kernel void k(constant float* c [[buffer(0)]]) {\nc[0] = 1; }", &[]),
    (
        "constant_to_device",
        "kernel void k(constant float* c [[buffer(0)]], device float* o [[buffer(1)]]) {\ndevice const float* p = c; o[0] = p[0]; }",
        &["constant", "device"],
    ),
    (
        "in_a_template",
        "template <typename T> void f(threadgroup T* t, device T* d) {\nd = t; } template <typename T> kernel void k(device T* d [[buffer(0)]], threadgroup T* t [[threadgroup(0)]]) { f(t, d); }\ntemplate [[host_name(\"k_half\")]] kernel void k<half>(device half*, threadgroup half*);",
        &["threadgroup"],
    ),
    (
        "through_a_struct",
        "struct S { device float* p; }; kernel void k(threadgroup float* t [[threadgroup(0)]]) { S s;\ns.p = t; }",
        &["threadgroup"],
    ),
    (
        "returned",
        "device float* f(threadgroup float* t) {\nreturn t; } kernel void k(threadgroup float* t [[threadgroup(0)]]) { f(t); }",
        &["threadgroup"],
    ),
    (
        "own_array_as_device",
        "kernel void k(device float* d [[buffer(0)]]) { float own[4]; own[0] = 1;\ndevice float* p = own; d[0] = p[0]; }",
        &["device"],
    ),
    (
        "local_array_as_device",
        "kernel void k(device float* d [[buffer(0)]]) { threadgroup float tile[4]; tile[0] = 1;\ndevice float* p = tile; d[0] = p[0]; }",
        &["threadgroup"],
    ),
    (
        "cast_away",
        "kernel void k(device float* d [[buffer(0)]], threadgroup float4* t [[threadgroup(0)]]) {\ndevice float4* p = (device float4*)t; d[0] = p[0].x; }",
        &[],
    ),
];

#[test]
fn every_mistake_is_found_at_its_line() {
    for (name, body, words) in MISTAKES {
        let Some(found) = check(name, &format!("{HEAD}{body}\n")) else { return };
        assert!(!found.is_empty(), "{name}: nothing found");
        for diagnostic in &found {
            let at = diagnostic.at.as_ref().unwrap_or_else(|| panic!("{name}: no place in {diagnostic}"));
            assert_eq!(
                (at.file.as_str(), at.line),
                (format!("{name}.metal").as_str(), 4),
                "{name}: {diagnostic}"
            );
            assert!(!diagnostic.message.contains("__"), "{name} speaks OpenCL: {diagnostic}");
        }
        assert!(words.iter().all(|word| found[0].to_string().contains(word)), "{name}: {}", found[0]);
    }
}

/// Everything a kernel may do with address spaces.
const CORRECT: &str = "
constant bool flag [[function_constant(0)]];
constant int count [[function_constant(1)]];
constant bool both = flag && is_function_constant_defined(count);
constant float table[4] = {1, 2, 3, 4};
constexpr constant uint size = 8;
struct Params { float scale; uint n; float4 v; packed_float3 p; };
struct Block { half d; uchar q[16]; };
struct Loader {
    const device float* src; threadgroup float* dst; const uint step;
    Loader(const device float* s, threadgroup float* d, uint n) : src(s), dst(d), step(n) {}
    void load(uint i) { dst[i] = src[i * step]; }
    float get(uint i) const { return src[i]; }
};
template <typename T> T reduce(threadgroup const T* t, uint n) { T s = 0; for (uint i = 0; i < n; i++) s += t[i]; return s; }
template <typename T, int N> void fill(thread T (&a)[N], const device T* p) { for (int i = 0; i < N; i++) a[i] = p[i]; }
inline float4 at(constant Params& p) { return p.v * p.scale; }
inline void swap_in(thread float& a, thread float& b) { float t = a; a = b; b = t; }
inline void bump(device atomic_uint* n, threadgroup atomic_int* m) {
    atomic_fetch_add_explicit(n, 1u, memory_order_relaxed); atomic_fetch_add_explicit(m, 1, memory_order_relaxed);
}
template <typename T> kernel void work(device const T* x [[buffer(0)]], device float* o [[buffer(1)]], constant Params& p [[buffer(2)]],
        constant float4* c [[buffer(3)]], device const Block* b [[buffer(4)]], device atomic_uint* n [[buffer(5)]], threadgroup float* shared [[threadgroup(0)]],
        uint3 g [[threadgroup_position_in_grid]], uint local [[thread_position_in_threadgroup]], uint global [[thread_position_in_grid]]) {
    threadgroup float tile[size * 4]; threadgroup atomic_int m; threadgroup T other[8], more;
    T own[4]; fill(own, x); float a = own[0], e = p.scale; swap_in(a, e);
    float4 v = c[0]; v.xy += c[1].zw; v[1] = c[2][1] + table[local & 3]; half4 h = half4(v); Block k = b[global]; float d = b[0].d * k.q[3];
    const device float* q = o + p.n; Loader l(q, tile, 2); l.load(local); device float4* o4 = (device float4*)o; o4[1] = v; o4[2].x = h.x;
    const device Block& r = b[1]; thread const float4& w = v; float3 packed = p.p; device half* dh = reinterpret_cast<device half*>(o);
    shared[local] = simd_sum(a) + reduce(tile, size) + w.x + float(r.d) + packed.x + l.get(1) + (flag ? 1.0h : 0.5h) + (both ? count : 0);
    threadgroup_barrier(mem_flags::mem_threadgroup); bump(n, &m); simdgroup_float8x8 mat; simdgroup_load(mat, shared, 8); simdgroup_load(mat, o, 8);
    simdgroup_store(mat, tile, 8); dh[3] = 1; other[0] = own[1]; more = other[0]; float s, cs; s = sincos(a, cs);
    o[global] = at(p).x + dot(v, c[3]) + shared[0] + float(more) + s + cs + d + e + v.x + as_type<float>(local) + g.x;
}
template [[host_name(\"work_float\")]] kernel void work<float>(device const float*, device float*, constant Params&, constant float4*,
    device const Block*, device atomic_uint*, threadgroup float*, uint3, uint, uint);
typedef decltype(work<half>) work_t;
template [[host_name(\"work_half\")]] kernel work_t work<half>;
";

#[test]
fn correct_kernels_give_no_message() {
    let Some(found) = check("correct", &format!("{HEAD}{CORRECT}")) else { return };
    assert!(found.is_empty(), "{}", found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn correct_kernels_are_read_to_the_end() {
    // One more line at the end, with a mistake: it is found, so the lint did not stop before.
    let text = format!(
        "{HEAD}{CORRECT}kernel void last(device float* d [[buffer(0)]]) {{ thread float* p = d; p[0] = 1; }}\n"
    );
    let line = text.lines().count() as u32;
    let Some(found) = check("last", &text) else { return };
    assert_eq!(found.iter().filter_map(|d| d.at.as_ref()).map(|at| at.line).collect::<Vec<_>>(), [line]);
}

#[test]
fn a_source_that_does_not_preprocess_is_an_error() {
    let Some(compiler) = needed(Compiler::new()) else { return };
    let error = lint(&compiler, &Source::new("broken.metal", "#include \"nowhere.h\"\n")).unwrap_err();
    assert!(error.to_string().contains("broken.metal:1"), "{error}");
}
