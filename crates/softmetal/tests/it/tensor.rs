//! Tensors of Metal 4 and products of them: every way operands lie, edges, types, and layouts that change with the seed.

use std::collections::HashSet;

use crate::front::needed;
use softmetal::{Compiler, Device, Flavour, Library, Source, as_bytes, as_bytes_mut, lint::lint};

const HEAD: &str = "#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
";

/// Rows, columns and terms; the last ones of a tile of 32 by 16 are missing.
const SIZES: [usize; 3] = [45, 21, 37];

/// `a [rows, terms]` or `[terms, rows]`, `b [terms, columns]` or `[columns, terms]`, by tiles of which the last are cut off.
const PRODUCTS: &str = "
template <typename A, typename B, bool LEFT, bool RIGHT, int DEPTH>
kernel void product(device A* pa [[buffer(0)]], device B* pb [[buffer(1)]], device float* out [[buffer(2)]], constant int3& n [[buffer(3)]],
                    uint2 group [[threadgroup_position_in_grid]]) {
    tensor<device A, dextents<int, 2>, tensor_inline> a(pa, LEFT ? dextents<int, 2>(n.x, n.z) : dextents<int, 2>(n.z, n.x));
    tensor<device B, dextents<int, 2>, tensor_inline> b(pb, RIGHT ? dextents<int, 2>(n.z, n.y) : dextents<int, 2>(n.y, n.z),
                                                        array<int, 2>{1, RIGHT ? n.z : n.y});
    auto c = tensor(out, dextents<int, 2>(n.y, n.x));
    const int row = group.y * 32, column = group.x * 16;
    constexpr auto shape = matmul2d_descriptor(32, 16, DEPTH > 0 ? DEPTH : static_cast<int>(dynamic_extent), LEFT, RIGHT, false,
                                               matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<shape, execution_simdgroups<2>> op;
    auto first = a.slice(LEFT ? row : 0, LEFT ? 0 : row);
    auto second = b.slice(RIGHT ? 0 : column, RIGHT ? column : 0);
    auto sum = op.template get_destination_cooperative_tensor<decltype(first), decltype(second), float>();
    for (auto it = sum.begin(); it != sum.end(); ++it) *it = 0.0f;
    for (int k = 0; k < n.z; k += DEPTH > 0 ? DEPTH : n.z) {
        auto left = first.slice(LEFT ? 0 : k, LEFT ? k : 0);
        auto right = second.slice(RIGHT ? k : 0, RIGHT ? 0 : k);
        op.run(left, right, sum);
    }
    auto result = c.slice(column, row);
    sum.store(result);
}
template [[host_name(\"half\")]] [[kernel]] decltype(product<half, half, false, false, 16>) product<half, half, false, false, 16>;
template [[host_name(\"half_right\")]] [[kernel]] decltype(product<half, half, false, true, 0>) product<half, half, false, true, 0>;
template [[host_name(\"half_left\")]] [[kernel]] decltype(product<half, half, true, false, 8>) product<half, half, true, false, 8>;
template [[host_name(\"bfloat_both\")]] [[kernel]] decltype(product<bfloat, bfloat, true, true, 32>) product<bfloat, bfloat, true, true, 32>;
template [[host_name(\"mixed\")]] [[kernel]] decltype(product<half, bfloat, false, true, 16>) product<half, bfloat, false, true, 16>;
template [[host_name(\"float\")]] [[kernel]] decltype(product<half, float, false, true, 16>) product<half, float, false, true, 16>;
";

/// A tile for each simdgroup, written without asking who has what (`lanes`), and with (`asked`).
const LANES: &str = "
kernel void lanes(device half* in [[buffer(0)]], device float* out [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {
    tensor<device half, extents<int, 16, 16>, tensor_inline> a(in, extents<int, 16, 16>());
    matmul2d<matmul2d_descriptor(16, 16, 16, false, true), execution_simdgroup> op;
    auto c = op.get_destination_cooperative_tensor<decltype(a), decltype(a), float>();
    op.run(a, a, c);
    for (uint i = 0; i < 8; i++) out[(i / 4 * 8 + lane / 4) * 16 + lane % 4 * 4 + i % 4] = c[i];
}
kernel void asked(device half* in [[buffer(0)]], device float* out [[buffer(1)]]) {
    tensor<device half, dextents<int, 2>, tensor_inline> all(in, dextents<int, 2>(16, 16));
    auto a = all.slice<16, 16>(0, 0);
    matmul2d<matmul2d_descriptor(16, 16, 16, false, true), execution_simdgroup> op;
    auto c = op.get_destination_cooperative_tensor<decltype(a), decltype(a), float>();
    op.run(a, a, c);
    for (uint i = 0; i < c.get_capacity(); i++) {
        if (!c.is_valid_element(i)) continue;
        auto at = c.get_multidimensional_index(i);
        out[at[1] * 16 + at[0]] = c[i];
    }
}
";

fn compile(name: &str, text: &str, flavour: Flavour) -> Option<Library> {
    let compiler = needed(Compiler::new())?.flavour(flavour);
    let made = compiler.compile(&Source::new(format!("{name}.metal"), format!("{HEAD}{text}")));
    Some(made.unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Whole numbers that every type holds, and whose sums are exact.
fn value(seed: usize, index: usize) -> f32 {
    ((index * 7 + seed * 5) % 17) as f32 - 8.0
}

type Encode = fn(f32) -> Vec<u8>;

fn encoded(encode: Encode, seed: usize, count: usize) -> Vec<u8> {
    (0..count).flat_map(|index| encode(value(seed, index))).collect()
}

/// These need few bits: the exponent has another bias, the rest is cut off.
const HALF: Encode = |x| {
    let bits = x.to_bits();
    let size = if x == 0.0 { 0 } else { (bits & 0x7fff_ffff) - ((127 - 15) << 23) };
    ((bits >> 16 & 0x8000) as u16 | (size >> 13) as u16).to_le_bytes().to_vec()
};
const BFLOAT: Encode = |x| ((x.to_bits() >> 16) as u16).to_le_bytes().to_vec();
const FLOAT: Encode = |x| x.to_le_bytes().to_vec();

#[test]
fn products_are_right_however_operands_lie_and_whoever_has_which_element() {
    let [rows, columns, terms] = SIZES;
    let cases: [(&str, [Encode; 2], [bool; 2]); 6] = [
        ("half", [HALF, HALF], [false, false]),
        ("half_right", [HALF, HALF], [false, true]),
        ("half_left", [HALF, HALF], [true, false]),
        ("bfloat_both", [BFLOAT, BFLOAT], [true, true]),
        ("mixed", [HALF, BFLOAT], [false, true]),
        ("float", [HALF, FLOAT], [false, true]),
    ];
    for flavour in [Flavour::Plain, Flavour::Checked] {
        let Some(library) = compile("products", PRODUCTS, flavour) else { return };
        for (name, [left, right], [left_turned, right_turned]) in &cases {
            let (a, b) = (encoded(*left, 1, rows * terms), encoded(*right, 2, terms * columns));
            let of_a = |r: usize, k: usize| value(1, if *left_turned { k * rows + r } else { r * terms + k });
            let of_b =
                |k: usize, c: usize| value(2, if *right_turned { c * terms + k } else { k * columns + c });
            for seed in 0..if flavour == Flavour::Plain { 6 } else { 2 } {
                let mut out = vec![f32::NAN; rows * columns];
                let outcome = Device::with_workers(1)
                    .dispatch(&library, name)
                    .unwrap()
                    .buffer(0, &a)
                    .buffer(1, &b)
                    .buffer_mut(2, as_bytes_mut(&mut out))
                    .buffer(3, as_bytes(&[rows as i32, columns as i32, terms as i32, 0]))
                    .threadgroups([columns.div_ceil(16) as u32, rows.div_ceil(32) as u32, 1], [64, 1, 1])
                    .seed(seed)
                    .run()
                    .unwrap();
                assert!(outcome.is_clean(), "{name}, seed {seed}: {}", outcome.reports[0]);
                for (index, found) in out.iter().enumerate() {
                    let (r, c) = (index / columns, index % columns);
                    let wanted: f32 = (0..terms).map(|k| of_a(r, k) * of_b(k, c)).sum();
                    assert_eq!(*found, wanted, "{name}, seed {seed}, row {r}, column {c}");
                }
            }
        }
    }
}

/// What a kernel of [`LANES`] leaves under a seed.
fn lanes(library: &Library, kernel: &str, seed: u64) -> Vec<u32> {
    let input = encoded(HALF, 3, 256);
    let mut out = vec![0_f32; 256];
    let device = Device::with_workers(1);
    let dispatch = device.dispatch(library, kernel).unwrap();
    let outcome = dispatch
        .buffer(0, as_bytes(&input))
        .buffer_mut(1, as_bytes_mut(&mut out))
        .threads([32, 1, 1], [32, 1, 1])
        .seed(seed)
        .run()
        .unwrap();
    assert!(outcome.is_clean(), "{kernel}: {}", outcome.reports[0]);
    out.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_kernel_that_takes_a_layout_for_granted_shows() {
    let Some(library) = compile("lanes", LANES, Flavour::Plain) else { return };
    let found =
        |kernel: &str| -> HashSet<Vec<u32>> { (0..8).map(|seed| lanes(&library, kernel, seed)).collect() };
    assert_eq!(found("asked").len(), 1, "whoever asks gets the same from every layout");
    assert!(found("lanes").len() >= 7, "every seed has a layout of its own: {}", found("lanes").len());
    assert!(
        found("lanes").is_disjoint(&found("asked")),
        "and none of them is the one the kernel believes in"
    );
}

#[test]
fn tensors_keep_the_address_space_of_their_elements() {
    let Some(compiler) = needed(Compiler::new()) else { return };
    let check = |space: &str| {
        let text = format!(
            "{HEAD}kernel void k(device half* x [[buffer(0)]], threadgroup half* t [[threadgroup(0)]], device float* o [[buffer(1)]]) {{
    tensor<device half, dextents<int, 2>, tensor_inline> a(x, dextents<int, 2>(16, 16));
    tensor<{space} half, dextents<int, 2>, tensor_inline> b(t, dextents<int, 2>(16, 16));
    matmul2d<matmul2d_descriptor(16, 16, 16), execution_simdgroup> op;
    auto c = op.get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
    op.run(a, b, c);
    o[0] = c[0];
}}"
        );
        lint(&compiler, &Source::new("spaces.metal", text)).unwrap()
    };
    assert!(check("threadgroup").is_empty(), "{:?}", check("threadgroup"));
    let found = check("device");
    assert!(found.iter().any(|d| d.at.as_ref().is_some_and(|at| at.line == 8)), "{found:?}");
}
