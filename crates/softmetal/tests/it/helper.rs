//! `softmetal::test`, as tests of kernels use it.

use softmetal::{Format, Shape, Source, test::KernelTest};

const SUM: &str = "#include <metal_stdlib>
using namespace metal;
kernel void block_sum(device const float* x [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                      threadgroup float* part [[threadgroup(0)]], uint row [[threadgroup_position_in_grid]],
                      uint i [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint group [[simdgroup_index_in_threadgroup]]) {
    float s = simd_sum(i < n ? x[row * n + i] : 0);
    if (lane == 0) part[group] = s;
    BARRIER
    if (i == 0) out[row] = part[0] + part[1];
}
constant float gain [[function_constant(0)]];
kernel void halves(device const half* x, device half* y, texture2d<float, access::write> t [[texture(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = x[i] * half(gain);
    t.write(float4(x[i]) * 0.5, uint2(i, 0));
}
";

fn block_sum(barrier: &str) -> KernelTest {
    let x: Vec<f32> = (0..180).map(|n| n as f32 / 7.0).collect();
    let sums: Vec<f32> = x.chunks(60).map(|row| row.iter().sum()).collect();
    KernelTest::source(Source::new("sum.metal", SUM.replace("BARRIER", barrier)), "block_sum")
        .input(0, &x)
        .output(1, &sums, 1e-5)
        .value(2, 60_u32)
        .threadgroup_memory(0, 8)
        .threadgroups([3, 1, 1], [64, 1, 1])
        .seeds(4)
}

#[test]
fn a_right_kernel_passes_and_a_wrong_one_is_told_where() {
    if crate::front::compiler().is_none() {
        return;
    }
    block_sum("threadgroup_barrier(mem_flags::mem_threadgroup);").passes();
    let wrong = block_sum("").verdict().unwrap_err();
    assert!(
        wrong.starts_with(
            "checked, in order:\nerror: uninitialised threadgroup memory in kernel `block_sum`\n"
        ),
        "{wrong}"
    );
    assert!(wrong.contains("--> sum.metal:10:38"), "{wrong}");
    let unknown = block_sum("unknown();").verdict().unwrap_err();
    assert!(unknown.contains("sum.metal:9:5: error: use of undeclared identifier 'unknown'"), "{unknown}");
    let other =
        block_sum("threadgroup_barrier(mem_flags::mem_threadgroup);").output(1, &[1.0_f32, 2.0, 3.0], 0.5);
    let other = other.verdict().unwrap_err();
    assert!(other.contains("of buffer 1 is") && other.contains("2 others are off as well"), "{other}");
    let panicked = std::panic::catch_unwind(|| block_sum("").passes()).unwrap_err();
    let message = panicked.downcast_ref::<String>().map_or("", String::as_str);
    assert!(
        message.starts_with("kernel `block_sum`:\nchecked, in order:\nerror: uninitialised"),
        "{message}"
    );
    let absent = KernelTest::file("no/such.metal", "k").verdict().unwrap_err();
    assert!(absent.contains("cannot read no/such.metal"), "{absent}");
}

#[test]
fn halfs_textures_and_constants_are_compared_too() {
    if crate::front::compiler().is_none() {
        return;
    }
    let x = [0.0, 0.25, 0.5, 1.0];
    let shape = Shape::two(Format::R8Unorm, 4, 1);
    let test = |texels: &[u8]| {
        KernelTest::source(Source::new("sum.metal", SUM.replace("BARRIER", "")), "halves")
            .input_half(0, &x)
            .output_half(1, &x.map(|x| 3.0 * x), 0.0)
            .output_texture(0, shape, texels)
            .constant("gain", 3.0_f32)
            .threads([4, 1, 1], [4, 1, 1])
    };
    test(&[0, 32, 64, 128]).passes();
    let wrong = test(&[0, 32, 65, 128]).verdict().unwrap_err();
    assert!(
        wrong.contains("texel 2 of row 0 of texture 0 is [40], expected [41]; 0 others are off"),
        "{wrong}"
    );
}
