//! The PTX target: what the text holds, how entries are described, and that NVIDIA's assembler takes it.

use std::{collections::BTreeMap, env, path::PathBuf, process::Command};

use crate::front::needed;
use softmetal::{
    Compiler, Source,
    ptx::{PtxModule, PtxOptions, ptx},
};

const REDUCE: &str = "#include <metal_stdlib>
using namespace metal;
constant bool scaled [[function_constant(0)]];
constant float factor [[function_constant(1)]];
constant bool both = scaled && is_function_constant_defined(factor);
kernel void row_sum(device const float4* x [[buffer(0)]], device float* y [[buffer(2)]], constant uint& n [[buffer(3)]],
                    threadgroup float* parts [[threadgroup(0)]], uint row [[threadgroup_position_in_grid]],
                    uint t [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]], uint group [[simdgroup_index_in_threadgroup]]) {
    threadgroup float total[4];
    float sum = 0;
    for (uint i = t; i < n / 4; i += threads) { float4 v = x[row * (n / 4) + i]; sum += v.x + v.y + v.z + v.w; }
    sum = simd_sum(sum);
    if (lane == 0) parts[group] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t == 0) { float all = 0; for (uint g = 0; g < threads / 32; g++) all += parts[g]; total[row & 3] = both ? all * factor : all; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t == 1) y[row] = total[row & 3];
}
";

const MATRICES: &str = "#include <metal_stdlib>
using namespace metal;
template <typename T> kernel void product(device const T* a [[buffer(0)]], device const T* b [[buffer(1)]], device float* c [[buffer(2)]],
                                          constant uint& k [[buffer(3)]]) {
    simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint i = 0; i < k; i += 8) {
        simdgroup_matrix<T, 8, 8> x, y;
        simdgroup_load(x, a + i, k);
        simdgroup_load(y, b + i * 8, 8);
        simdgroup_multiply_accumulate(sum, x, y, sum);
    }
    simdgroup_store(sum, c, 8);
}
template [[host_name(\"product_half\")]] kernel void product<half>(device const half*, device const half*, device float*, constant uint&);
template [[host_name(\"product_bfloat\")]] kernel void product<bfloat>(device const bfloat*, device const bfloat*, device float*, constant uint&);
template [[host_name(\"product_float\")]] kernel void product<float>(device const float*, device const float*, device float*, constant uint&);
";

const TENSORS: &str = "#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
template <typename T> kernel void tensors(device T* a [[buffer(0)]], device T* b [[buffer(1)]], device float* c [[buffer(2)]],
                                          constant int3& n [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]]) {
    tensor<device T, dextents<int, 2>, tensor_inline> x(a, dextents<int, 2>(n.z, n.x)), y(b, dextents<int, 2>(n.z, n.y));
    constexpr auto shape = matmul2d_descriptor(64, 32, 32, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<shape, execution_simdgroups<4>> op;
    auto sum = op.template get_destination_cooperative_tensor<decltype(x), decltype(y), float>();
#pragma unroll
    for (ushort i = 0; i < sum.get_capacity(); i++) sum[i] = 0.0f;
    for (int k = 0; k < n.z; k += 32) {
        auto left = x.slice(k, group.y * 64), right = y.slice(k, group.x * 32);
        op.run(left, right, sum);
    }
#pragma unroll
    for (ushort i = 0; i < sum.get_capacity(); i++) {
        auto at = sum.get_multidimensional_index(i);
        const int row = group.y * 64 + at[1], column = group.x * 32 + at[0];
        if (sum.is_valid_element(i) && row < n.x && column < n.y) c[row * n.y + column] = sum[i];
    }
}
template [[host_name(\"tensors_half\")]] [[kernel]] decltype(tensors<half>) tensors<half>;
template [[host_name(\"tensors_bfloat\")]] [[kernel]] decltype(tensors<bfloat>) tensors<bfloat>;
";

/// A collective of every kind and type, math, atomics.
const FUNCTIONS: &str = "#include <metal_stdlib>
using namespace metal;
kernel void functions(device const float* x [[buffer(0)]], device float* o [[buffer(1)]], device atomic_uint* n [[buffer(2)]],
                      device atomic_float* f [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    float v = x[i], w = 0, c; int e; half h = half(v); bfloat b = bfloat(v);
    if (v > 0) w += simd_sum(v) + simd_max(int(v)) + simd_prefix_exclusive_sum(v) + quad_sum(v) + simd_shuffle_down(v, 1) + simd_broadcast_first(h);
    w += simd_all(v > 1) + simd_is_first() + simd_and(uint(v)) + float(simd_product(b)) + simd_shuffle_and_fill_up(v, w, 3) + quad_shuffle_xor(v, 1);
    w += sin(v) + cos(v) + tan(v) + exp(v) + log(v) + pow(v, 3.0f) + atan2(v, w) + tanh(v) + sqrt(v) + rsqrt(v) + fmod(v, 3.0f) + asin(v) + acosh(v)
        + erf_free(v) + frexp(v, e) + ldexp(v, e) + sincos(v, c) + exp10(v) + sinpi(v) + float(exp(h)) + float(log(b)) + round(v) + nextafter(v, w);
    w += popcount(uint(i)) + mulhi(i, 3u) + extract_bits(i, 2, 3) + madsat(int(i), 2, 3) + clz(i) + dot(float3(v), float3(w)) + length(float2(v));
    atomic_fetch_add_explicit(n, 1u, memory_order_relaxed); atomic_fetch_add_explicit(f, v, memory_order_relaxed);
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    o[i] = w + c;
}
";

fn build(name: &str, text: &str, options: &PtxOptions) -> Option<PtxModule> {
    let compiler = needed(Compiler::new())?;
    let module = ptx(&compiler, &Source::new(format!("{name}.metal"), text), options)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assemble(name, &module.text, options.sm);
    Some(module)
}

/// Runs ptxas if there is one: on the path, or named by SOFTMETAL_PTXAS.
fn assemble(name: &str, text: &str, sm: u32) {
    let ptxas = env::var_os("SOFTMETAL_PTXAS").map_or(PathBuf::from("ptxas"), PathBuf::from);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernels.ptx");
    std::fs::write(&file, text).unwrap();
    let run = Command::new(&ptxas)
        .arg(format!("-arch=sm_{sm}"))
        .arg("-o")
        .arg(folder.path().join("cubin"))
        .arg(&file)
        .output();
    match run {
        Err(_) => eprintln!(
            "!!! {name}: NOT ASSEMBLED, no ptxas on the path or in SOFTMETAL_PTXAS (pip install nvidia-cuda-nvcc-cu12 has one)"
        ),
        Ok(output) => {
            assert!(
                output.status.success(),
                "{name}: ptxas says {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[test]
fn the_greater_of_two_numbers_is_one_instruction_that_passes_over_what_is_none() {
    let source = "#include <metal_stdlib>
using namespace metal;
kernel void bounds(device const float* x [[buffer(0)]], device const half4* h [[buffer(1)]], device float* y [[buffer(2)]],
                   uint t [[thread_position_in_grid]]) {
    y[t] = clamp(max(x[t], x[t + 1]), -2.0f, 2.0f) + float(min(h[t], h[t + 1]).x);
}
";
    let Some(module) = build("bounds", source, &PtxOptions::default()) else { return };
    assert!(module.text.contains("max.f32") && module.text.contains("min.f32"), "{}", module.text);
    assert!(!module.text.contains(".nan") && !module.text.contains("@%p"), "{}", module.text);
}

#[test]
fn entries_are_described_as_they_are_launched() {
    let Some(module) = build("reduce", REDUCE, &PtxOptions::default()) else { return };
    let [kernel] = &module.kernels[..] else { panic!("{:?}", module.kernels) };
    assert_eq!((kernel.name.as_str(), kernel.entry.as_str()), ("row_sum", "row_sum"));
    assert_eq!((kernel.buffers, kernel.buffer_indices()), (4, vec![0, 2, 3]));
    assert_eq!(kernel.static_shared, 16);
    let memory = kernel.shared_memory(&[4 * 8, 20, 1]).unwrap();
    assert_eq!((memory.offsets[..3].to_vec(), memory.bytes), (vec![0, 32, 64], 80));
    assert!(kernel.shared_memory(&[16; 9]).unwrap_err().to_string().contains("9 threadgroup arguments"));
    // Four pointers, then the offsets.
    let head = module.text.split(".entry row_sum(").nth(1).unwrap().split(')').next().unwrap();
    assert_eq!(head.matches(".param .u64").count(), 4, "{head}");
    assert!(head.contains("[32]"), "{head}");
    assert!(module.text.contains(".target sm_80"));
}

#[test]
fn vectors_are_loaded_whole_and_collectives_ask_who_is_there() {
    let Some(module) = build("reduce", REDUCE, &PtxOptions::default()) else { return };
    for part in ["ld.global.v4.f32", "st.shared.f32", "bar.sync", "activemask", "shfl.sync"] {
        assert!(module.text.contains(part), "no {part}");
    }
    let Some(module) =
        build("reduce_full", REDUCE, &PtxOptions { full_simdgroups: true, ..PtxOptions::default() })
    else {
        return;
    };
    assert!(!module.text.contains("activemask"));
}

#[test]
fn products_of_tensors_are_those_of_matrix_units_and_stay_in_registers() {
    let Some(module) = build("tensors", TENSORS, &PtxOptions::default()) else { return };
    for part in ["m16n8k16.row.col.f32.f16.f16.f32", "m16n8k16.row.col.f32.bf16.bf16.f32"] {
        assert!(module.text.contains(part), "no {part}");
    }
    assert!(!module.text.contains(".local"), "elements lie in memory");
    let exact = PtxOptions { exact: true, ..PtxOptions::default() };
    let Some(module) = build("tensors_exact", TENSORS, &exact) else { return };
    assert!(!module.text.contains("mma.sync"));
}

#[test]
fn function_constants_are_baked_in() {
    let with = |pairs: &[(&str, &str)]| {
        let constants: BTreeMap<String, String> =
            pairs.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        PtxOptions { constants, ..PtxOptions::default() }
    };
    // 2.5 is 0f40200000 in PTX.
    let Some(module) = build("constants", REDUCE, &with(&[("scaled", "true"), ("factor", "2.5f")])) else {
        return;
    };
    assert!(module.text.contains("0f40200000"));
    let Some(module) = build("constants", REDUCE, &with(&[("factor", "2.5f")])) else { return };
    assert!(!module.text.contains("0f40200000"));
    let unknown = ptx(&Compiler::new().unwrap(), &Source::new("c.metal", REDUCE), &with(&[("scale", "1")]))
        .unwrap_err();
    assert!(unknown.to_string().contains("no function constant `scale`"), "{unknown}");
}

#[test]
fn matrix_products_use_the_tensor_cores() {
    let Some(module) = build("matrices", MATRICES, &PtxOptions::default()) else { return };
    assert_eq!(module.kernels.len(), 3);
    let body = |name: &str| {
        let start = module.text.find(&format!(".entry {name}(")).unwrap_or_else(|| panic!("no {name}"));
        module.text[start..].split("\n}").next().unwrap().to_owned()
    };
    for (name, instruction) in [
        ("product_half", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"),
        ("product_bfloat", "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"),
        ("product_float", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
    ] {
        assert!(body(name).contains(instruction), "{name} has no {instruction}");
        assert!(!body(name).contains("shfl"), "{name}: the layout is free, nothing needs to move");
    }
    for options in
        [PtxOptions { exact: true, ..PtxOptions::default() }, PtxOptions { sm: 70, ..PtxOptions::default() }]
    {
        let Some(module) = build("matrices_by_shuffles", MATRICES, &options) else { return };
        assert!(!module.text.contains("mma.sync") && module.text.contains("shfl.sync"));
    }
}

#[test]
fn whole_products_of_matrix_units_are_there_by_name() {
    let text = "#include <metal_stdlib>
using namespace metal;
kernel void product(device const uint4* a [[buffer(0)]], device const uint2* b [[buffer(1)]], device float4* c [[buffer(2)]],
                    uint lane [[thread_index_in_simdgroup]]) {
#ifdef SOFTMETAL_MMA
    c[lane] = softmetal_mma<bfloat>(softmetal_stream(a + lane), b[lane], softmetal_mma<half>(a[lane], b[lane], float4(0.0f)));
#else
    c[lane] = float4(0.0f);
#endif
}
";
    let Some(module) = build("units", text, &PtxOptions::default()) else { return };
    for part in
        ["m16n8k16.row.col.f32.bf16", "m16n8k16.row.col.f32.f16", "ld.global.nc.L1::no_allocate.v4.u32"]
    {
        assert!(module.text.contains(part), "no {part}");
    }
    for options in
        [PtxOptions { exact: true, ..PtxOptions::default() }, PtxOptions { sm: 75, ..PtxOptions::default() }]
    {
        let Some(module) = build("no_units", text, &options) else { return };
        assert!(!module.text.contains("mma.sync"));
    }
}

#[test]
fn threads_that_a_kernel_has_at_most_reach_the_assembler() {
    let text = "#include <metal_stdlib>
using namespace metal;
[[max_total_threads_per_threadgroup(96)]]
kernel void plain(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1.0f; }
template <uint N>
[[kernel, max_total_threads_per_threadgroup(N * 32)]] void many(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    x[i] = N;
}
template [[host_name(\"many_4\")]] [[kernel]] decltype(many<4>) many<4>;
kernel void free(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 2.0f; }
";
    let Some(module) = build("threads", text, &PtxOptions::default()) else { return };
    let head = |name: &str| {
        let start = module.text.find(&format!(".entry {name}(")).unwrap_or_else(|| panic!("no {name}"));
        module.text[start..].split("\n{").next().unwrap().to_owned()
    };
    assert!(head("plain").contains(".maxntid 96, 1, 1"), "{}", head("plain"));
    assert!(head("many_4").contains(".maxntid 128, 1, 1"), "{}", head("many_4"));
    assert!(!head("free").contains(".maxntid") && !module.text.contains("msl_max_threads"));
}

#[test]
fn kernels_that_begin_early_wait_once_where_they_say_or_first() {
    let early = PtxOptions { sm: 90, early: true, ..PtxOptions::default() };
    let Some(module) = build("early", REDUCE, &early) else { return };
    let count = |module: &PtxModule, what: &str| module.text.matches(what).count();
    assert_eq!(count(&module, "griddepcontrol.launch_dependents"), 1);
    assert_eq!(count(&module, "griddepcontrol.wait"), 1);
    let own = REDUCE.replace(
        "float sum = 0;",
        "float sum = 0;\n#ifdef SOFTMETAL_EARLY\n softmetal_wait_for_earlier();\n#endif\n",
    );
    let Some(module) = build("early_own", &own, &early) else { return };
    assert_eq!(count(&module, "griddepcontrol.wait"), 1);
    for options in
        [PtxOptions { early: true, ..PtxOptions::default() }, PtxOptions { sm: 90, ..PtxOptions::default() }]
    {
        let Some(module) = build("not_early", &own, &options) else { return };
        assert_eq!(count(&module, "griddepcontrol"), 0, "{options:?}");
    }
}

#[test]
fn a_struct_with_a_member_in_constant_memory_is_no_constant() {
    let text = "#include <metal_stdlib>
using namespace metal;
constant uint kind [[function_constant(0)]];
struct P { uint n; };
struct Job {
    constant P& p;
    device float* out;
    uint at(uint i) const { const uint n = kind != 0 ? p.n : 1; return n * i; }
};
kernel void job(constant P& p [[buffer(0)]], device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const Job job = {p, out};
    job.out[job.at(i)] = 3.0f;
}
";
    let constants = BTreeMap::from([("kind".to_owned(), "1u".to_owned())]);
    let Some(module) = build("job", text, &PtxOptions { constants, ..PtxOptions::default() }) else { return };
    assert_eq!(module.kernels[0].buffers, 2);
}

#[test]
fn a_source_that_looks_at_lanes_gets_apples_layout() {
    let text = MATRICES
        .replace("simdgroup_store(sum, c, 8);", "sum.thread_elements()[0] += 1; simdgroup_store(sum, c, 8);");
    let Some(module) = build("lanes", &text, &PtxOptions::default()) else { return };
    assert!(module.text.contains("mma.sync") && module.text.contains("shfl.sync"));
}

#[test]
fn the_whole_library_compiles_for_every_generation() {
    let text = FUNCTIONS.replace("erf_free(v)", "abs(v)");
    for sm in [70, 80, 90] {
        let Some(module) = build("functions", &text, &PtxOptions { sm, ..PtxOptions::default() }) else {
            return;
        };
        assert_eq!(module.kernels[0].buffers, 4);
        assert!(
            !module.text.contains(".extern .func"),
            "calls something outside: {}",
            module.text.lines().find(|l| l.contains(".extern .func")).unwrap()
        );
    }
}

#[test]
fn errors_point_at_the_source() {
    let Some(compiler) = needed(Compiler::new()) else { return };
    let text = REDUCE.replace("sum = simd_sum(sum);", "sum = simd_summ(sum);");
    let error =
        ptx(&compiler, &Source::new("wrong.metal", text), &PtxOptions::default()).unwrap_err().to_string();
    assert!(error.contains("wrong.metal:13:"), "{error}");
}
