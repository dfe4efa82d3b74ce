//! The cases.

use metallic_core::tensor::{Mask, Sdpa, TensorOp, View, outputs};
use metallic_core::{Binary, DType, Rope, RopePairs, Unary};

use super::{Data, Layout, Placement, TensorCase, Tolerance};
use crate::random::Random;

pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const UNARY: [Unary; 5] = [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu, Unary::Sigmoid];
const BINARY: [Binary; 4] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div];

/// A function of a few operations in `f32`.
pub(super) const FUNCTION: Tolerance =
    Tolerance { absolute: 2e-6, relative: 3e-6, reason: "exponentials in f32, each off by a few units" };
/// A division that a device may make of a reciprocal.
pub(super) const QUOTIENT: Tolerance =
    Tolerance { absolute: 0.0, relative: 3e-7, reason: "a quotient by a reciprocal is off by two units" };
/// Sums over a row, in `f32` or better.
pub(super) const ROWS: Tolerance =
    Tolerance { absolute: 1e-6, relative: 1e-5, reason: "a sum over a row, in f32" };

/// Builds a case: collects inputs, then says what comes out.
pub(super) struct Maker {
    pub(super) random: Random,
    pub(super) name: String,
    pub(super) inputs: Vec<Data>,
}

impl Maker {
    pub(super) fn new(name: impl Into<String>) -> Maker {
        let name = name.into();
        let seed = name.bytes().fold(11u64, |seed, b| seed.wrapping_mul(31).wrapping_add(u64::from(b)));
        Maker { random: Random::new(seed), name, inputs: Vec::new() }
    }

    /// Random numbers of `-scale .. scale`.
    pub(super) fn x(mut self, dtype: DType, shape: &[usize], layout: Layout, scale: f32) -> Maker {
        self.inputs.push(Data::random(layout.view(dtype, shape), scale, &mut self.random));
        self
    }

    /// Numbers by their index.
    pub(super) fn by(
        mut self,
        dtype: DType,
        shape: &[usize],
        layout: Layout,
        value: impl Fn(usize) -> f32,
    ) -> Maker {
        self.inputs.push(Data::floats(layout.view(dtype, shape), value));
        self
    }

    /// Random weights of any type, seen by `view`.
    fn blocks(mut self, view: View) -> Maker {
        self.inputs.push(Data::blocks(view, &mut self.random));
        self
    }

    pub(super) fn ids(mut self, shape: &[usize], layout: Layout, value: impl Fn(usize) -> u32) -> Maker {
        self.inputs.push(Data::integers(layout.view(DType::U32, shape), value));
        self
    }

    /// The case, its results laid out as `layout` says.
    pub(super) fn case(self, op: TensorOp, layout: Layout, tolerance: Tolerance) -> TensorCase {
        let views: Vec<&View> = self.inputs.iter().map(|data| &data.view).collect();
        let results = outputs(&op, &views).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let results = results.iter().map(|view| layout.view(view.dtype(), view.shape())).collect();
        self.into(op, results, tolerance)
    }

    /// The case, with results at these views.
    pub(super) fn into(self, op: TensorOp, outputs: Vec<View>, tolerance: Tolerance) -> TensorCase {
        let stored = outputs.first().map_or(DType::F32, View::dtype);
        let tolerance = if tolerance.relative == 0.0 && tolerance.absolute == 0.0 {
            tolerance
        } else {
            tolerance.stored_as(stored)
        };
        let Maker { name, inputs, .. } = self;
        TensorCase { name, op, inputs, outputs, placement: Placement::Apart, tolerance, zeros: false }
    }
}

fn zeros(mut case: TensorCase) -> TensorCase {
    case.zeros = true;
    case
}

fn placed(mut case: TensorCase, placement: Placement) -> TensorCase {
    case.name = format!("{}, {placement:?}", case.name);
    case.placement = placement;
    case
}

/// Every operation in its forms.
pub fn all() -> Vec<TensorCase> {
    let mut cases = copies();
    cases.extend(element_wise());
    cases.extend(norms());
    cases.extend(softmaxes());
    cases.extend(products());
    cases.extend(rotations());
    cases.extend(attentions());
    cases.extend(super::choice::choices());
    cases.extend(super::choice::samples());
    cases
}

fn copies() -> Vec<TensorCase> {
    let mut cases = Vec::new();
    for from in FLOATS {
        for to in FLOATS {
            for (input, output) in [
                (Layout::Plain, Layout::Plain),
                (Layout::Turned, Layout::Offset),
                (Layout::Offset, Layout::Turned),
                (Layout::Sliced, Layout::Stepped),
                (Layout::Stepped, Layout::Sliced),
                (Layout::RowsRepeated, Layout::Plain),
                (Layout::ColumnsRepeated, Layout::Offset),
            ] {
                let shape = [3, 5, 7, 33];
                let made = Maker::new(format!("copy {from} {input:?} to {to} {output:?}"));
                let made = made.x(from, &shape, input, 3.0);
                cases.push(made.into(TensorOp::Copy, vec![output.view(to, &shape)], Tolerance::EXACT));
            }
        }
        for shape in [&[][..], &[1], &[31], &[1025], &[33, 257], &[70, 1], &[1, 2, 65]] {
            let made = Maker::new(format!("copy {from} {shape:?} turned"));
            cases.push(made.x(from, shape, Layout::Turned, 3.0).case(
                TensorOp::Copy,
                Layout::Plain,
                Tolerance::EXACT,
            ));
        }
        let made = Maker::new(format!("copy {from} of nothing"));
        cases.push(zeros(made.x(from, &[0, 4], Layout::Plain, 1.0).case(
            TensorOp::Copy,
            Layout::Plain,
            Tolerance::EXACT,
        )));
        for to in FLOATS {
            // Too large and too small for a half; exactly between two of its numbers.
            let extremes = [1e30, -1e30, 1e-30, 65519.0, 65520.0, 1.000_488_3, 6e-8, f32::INFINITY, -0.0];
            let made = Maker::new(format!("copy extremes {from} to {to}"));
            let made = made.by(from, &[9], Layout::Plain, |i| extremes[i]);
            let outputs = vec![Layout::Plain.view(to, &[9])];
            cases.push(made.into(TensorOp::Copy, outputs, Tolerance::EXACT));
        }
    }
    for dtype in DType::all().filter(|dtype| dtype.is_quantized()) {
        for to in FLOATS {
            let w = View::contiguous(dtype, &[5, 512]).expect("whole blocks");
            let part = w.slice(0, 1..4).and_then(|w| w.slice(1, 256..512)).expect("whole blocks");
            let views = [("", w), (" sliced", part), (" turned", w.transpose(0, 1).expect("two axes"))];
            for (name, view) in views {
                let made = Maker::new(format!("copy {dtype}{name} to {to}")).blocks(view);
                let outputs = vec![Layout::Offset.view(to, view.shape())];
                // Backends may decode by another order of the same few operations.
                let decoded = Tolerance { absolute: 1e-7, relative: 1e-6, reason: "scale and offset in f32" };
                cases.push(made.into(TensorOp::Copy, outputs, decoded));
            }
        }
    }
    for dtype in [DType::U32, DType::I32] {
        let mut made = Maker::new(format!("copy {dtype}"));
        made.inputs.push(Data::integers(Layout::Turned.view(dtype, &[9, 33]), |i| {
            (i as u32).wrapping_mul(0x0101_0101)
        }));
        cases.push(made.case(TensorOp::Copy, Layout::Sliced, Tolerance::EXACT));
    }
    for dtype in FLOATS {
        for (layout, value) in Layout::OUTPUTS.into_iter().zip([0.5, -2.0, 3.0, 65504.0, 0.125]) {
            let outputs = vec![layout.view(dtype, &[3, 41])];
            let made = Maker::new(format!("fill {dtype} {layout:?}"));
            cases.push(made.into(TensorOp::Fill(value), outputs, Tolerance::EXACT.stored_as(dtype)));
        }
        let outputs = vec![Layout::Plain.view(dtype, &[1025])];
        let made = Maker::new(format!("fill {dtype} with zeros"));
        cases.push(zeros(made.into(TensorOp::Fill(0.0), outputs, Tolerance::EXACT)));
    }
    cases
}

fn element_wise() -> Vec<TensorCase> {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for (f, layout) in UNARY.into_iter().zip(Layout::OUTPUTS) {
            for (size, scale) in [(1, 2.0), (31, 4.0), (257, 1e-3), (1025, 50.0)] {
                let made = Maker::new(format!("{f:?} {dtype} {layout:?} [3, {size}]"));
                let made = made.x(dtype, &[3, size], layout, scale);
                cases.push(made.case(TensorOp::Unary(f), Layout::Plain, FUNCTION));
            }
            let made = Maker::new(format!("{f:?} {dtype} to {layout:?}"));
            let made = made.x(dtype, &[2, 5, 33], Layout::Sliced, 4.0);
            cases.push(placed(made.case(TensorOp::Unary(f), layout, FUNCTION), Placement::Together));
            let made = Maker::new(format!("{f:?} {dtype} of huge numbers"));
            let made = made.by(dtype, &[8], Layout::Plain, |i| 3e4 * (i as f32 - 3.5));
            cases.push(made.case(TensorOp::Unary(f), Layout::Plain, FUNCTION));
            let made = Maker::new(format!("gated {f:?} {dtype}"));
            let made = made.x(dtype, &[3, 257], layout, 4.0).x(dtype, &[3, 257], Layout::RowsRepeated, 2.0);
            cases.push(made.case(TensorOp::Gated(f), Layout::Plain, FUNCTION));
        }
        let capped = TensorOp::Softcap(7.0);
        let made = Maker::new(format!("softcap {dtype}")).x(dtype, &[5, 33], Layout::Turned, 40.0);
        cases.push(made.case(capped, Layout::Offset, Tolerance { absolute: 1e-5, ..FUNCTION }));
        for f in BINARY {
            let tolerance = if f == Binary::Div { QUOTIENT } else { Tolerance::EXACT };
            // Divisors away from zero keep quotients in the range of a half.
            let divisor = |i: usize| ((i % 13) as f32 - 6.5) * 0.3;
            for (a, b, out) in [
                (Layout::Plain, Layout::Plain, Layout::Plain),
                (Layout::Offset, Layout::Turned, Layout::Plain),
                (Layout::Turned, Layout::Sliced, Layout::Stepped),
                (Layout::Plain, Layout::RowsRepeated, Layout::Sliced),
                (Layout::ColumnsRepeated, Layout::Stepped, Layout::Turned),
            ] {
                for shape in [&[1][..], &[33, 31], &[2, 3, 257]] {
                    let made = Maker::new(format!("{f:?} {dtype} {shape:?} {a:?} and {b:?} to {out:?}"));
                    let made = made.x(dtype, shape, a, 2.0).by(dtype, shape, b, divisor);
                    cases.push(made.case(TensorOp::Binary(f), out, tolerance));
                }
            }
            let made = Maker::new(format!("{f:?} {dtype}"));
            let made =
                made.x(dtype, &[1025], Layout::Offset, 2.0).by(dtype, &[1025], Layout::Offset, divisor);
            let case = |placement| {
                let made =
                    Maker { random: Random::new(3), name: made.name.clone(), inputs: made.inputs.clone() };
                let outputs = vec![made.inputs[0].view];
                placed(made.into(TensorOp::Binary(f), outputs, tolerance), placement)
            };
            cases.extend([case(Placement::InPlace), case(Placement::Together)]);
            for reversed in [false, true] {
                let op = TensorOp::Scalar { op: f, value: -0.75, reversed };
                let made = Maker::new(format!("scalar {f:?} {dtype} reversed {reversed}"));
                let made = made.by(dtype, &[7, 31], Layout::Sliced, divisor);
                cases.push(made.case(op, Layout::Turned, tolerance));
                let made = Maker::new(format!("scalar {f:?} {dtype} reversed {reversed} of one number"));
                cases.push(made.by(dtype, &[], Layout::Plain, |_| 1.5).case(op, Layout::Plain, tolerance));
            }
        }
    }
    cases
}

fn norms() -> Vec<TensorCase> {
    let mut cases = Vec::new();
    let (rms, layer) = (TensorOp::RmsNorm { eps: 1e-5 }, TensorOp::LayerNorm { eps: 1e-5 });
    let (add_rms, add_layer) = (TensorOp::AddRmsNorm { eps: 1e-6 }, TensorOp::AddLayerNorm { eps: 1e-6 });
    // Around a mean, differences of the row's numbers lose what the mean takes.
    let centred = Tolerance { absolute: 2e-5, relative: 2e-5, reason: "differences from a mean, in f32" };
    for dtype in FLOATS {
        for (shape, x, out) in [
            (&[1, 1][..], Layout::Plain, Layout::Plain),
            (&[5, 31], Layout::Turned, Layout::Plain),
            (&[3, 33], Layout::Sliced, Layout::Offset),
            (&[2, 3, 64], Layout::Offset, Layout::Sliced),
            (&[257], Layout::Stepped, Layout::Stepped),
            (&[4, 1025], Layout::Plain, Layout::Turned),
            (&[1, 5000], Layout::RowsRepeated, Layout::Plain),
        ] {
            let d = &shape[shape.len() - 1..];
            for (name, op, rows, vectors) in [
                ("rms norm", rms, 1, 1),
                ("layer norm", layer, 1, 2),
                ("add, rms norm", add_rms, 2, 1),
                ("add, layer norm", add_layer, 2, 2),
            ] {
                let mut made = Maker::new(format!("{name} {dtype} {shape:?} {x:?} to {out:?}"));
                for layout in [x, Layout::Plain].into_iter().take(rows) {
                    made = made.x(dtype, shape, layout, 1.5);
                }
                for layout in [Layout::Stepped, Layout::Offset].into_iter().take(vectors) {
                    made = made.x(dtype, d, layout, 1.0);
                }
                let tolerance = if vectors == 2 { centred } else { ROWS };
                cases.push(made.case(op, out, tolerance));
            }
        }
        cases.push(zeros(
            Maker::new(format!("rms norm {dtype} of no rows"))
                .x(dtype, &[0, 8], Layout::Plain, 1.0)
                .x(dtype, &[8], Layout::Plain, 1.0)
                .case(rms, Layout::Plain, ROWS),
        ));
    }
    let tiny = Tolerance { absolute: 1e-13, ..ROWS };
    for (name, scale, tolerance) in [("huge", 1e19, ROWS), ("tiny", 1e-10, tiny)] {
        let made = Maker::new(format!("rms norm of {name} numbers"));
        let made = made.x(DType::F32, &[3, 129], Layout::Plain, scale);
        cases.push(made.x(DType::F32, &[129], Layout::Plain, 1.0).case(rms, Layout::Plain, tolerance));
    }
    let far = Tolerance { absolute: 2e-3, relative: 2e-3, reason: "numbers around 1000 carry 6e-5 each" };
    let made = Maker::new("layer norm of numbers far from zero");
    let made = made.by(DType::F32, &[3, 257], Layout::Plain, |i| 1000.0 + (i % 17) as f32 * 0.25);
    let made = made.x(DType::F32, &[257], Layout::Plain, 1.0).x(DType::F32, &[257], Layout::Plain, 1.0);
    cases.push(made.case(layer, Layout::Plain, far));
    cases
}

fn softmaxes() -> Vec<TensorCase> {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for (shape, x, out) in [
            (&[1, 1][..], Layout::Plain, Layout::Plain),
            (&[5, 31], Layout::Turned, Layout::Offset),
            (&[3, 33], Layout::Sliced, Layout::Stepped),
            (&[2, 2, 257], Layout::Offset, Layout::Sliced),
            (&[1025], Layout::Stepped, Layout::Plain),
            (&[2, 5000], Layout::Plain, Layout::Turned),
        ] {
            let made = Maker::new(format!("softmax {dtype} {shape:?} {x:?} to {out:?}"));
            cases.push(made.x(dtype, shape, x, 9.0).case(TensorOp::Softmax, out, FUNCTION));
        }
        let masked =
            |i: usize| if i.is_multiple_of(3) || i < 33 { f32::NEG_INFINITY } else { i as f32 * 0.05 };
        let made = Maker::new(format!("softmax {dtype} with a row that is masked out"));
        let made = made.by(dtype, &[4, 33], Layout::Plain, masked);
        cases.push(made.case(TensorOp::Softmax, Layout::Plain, FUNCTION));
        let made = Maker::new(format!("softmax {dtype} of nothing but masked rows"));
        let made = made.by(dtype, &[2, 40], Layout::Plain, |_| f32::NEG_INFINITY);
        cases.push(zeros(made.case(TensorOp::Softmax, Layout::Plain, FUNCTION)));
        let made = Maker::new(format!("softmax {dtype} of huge numbers"));
        let made = made.by(dtype, &[2, 40], Layout::Plain, |i| if i % 7 == 3 { 6e4 } else { -6e4 });
        cases.push(made.case(TensorOp::Softmax, Layout::Plain, FUNCTION));
    }
    cases
}

fn products() -> Vec<TensorCase> {
    use Layout::{Offset, Plain, RowsRepeated, Sliced, Stepped, Turned};
    let mut cases = Vec::new();
    let summed = Tolerance { absolute: 1e-4, relative: 1e-5, reason: "sums of up to 1025 products, in f32" };
    let matmul = |name: String, dtype, (m, k, n): (usize, usize, usize), layouts: [Layout; 3]| {
        let made = Maker::new(format!("{name} {dtype} {m}×{k}×{n} {layouts:?}"));
        let made = made.x(dtype, &[m, k], layouts[0], 1.0).x(dtype, &[k, n], layouts[1], 1.0);
        made.case(TensorOp::Matmul, layouts[2], summed)
    };
    for dtype in FLOATS {
        for (sizes, layouts) in [
            ((1, 1, 1), [Plain, Plain, Plain]),
            ((1, 257, 33), [Plain, Turned, Plain]),
            ((1, 257, 130), [Stepped, Plain, Offset]),
            ((4, 31, 65), [Turned, Sliced, Stepped]),
            ((5, 64, 64), [Plain, Turned, Plain]),
            ((33, 31, 257), [Offset, Plain, Sliced]),
            ((17, 1025, 9), [Sliced, Turned, Turned]),
            ((66, 70, 130), [Turned, Offset, Plain]),
            ((64, 64, 64), [Plain, Plain, Plain]),
            ((31, 33, 31), [RowsRepeated, Stepped, Plain]),
        ] {
            cases.push(matmul("matmul".into(), dtype, sizes, layouts));
        }
        for (a, b, out) in
            [(Plain, Plain, Plain), (RowsRepeated, Turned, Sliced), (Sliced, RowsRepeated, Offset)]
        {
            let made = Maker::new(format!("batched matmul {dtype} {a:?} {b:?}"));
            let made = made.x(dtype, &[3, 2, 7, 33], a, 1.0).x(dtype, &[3, 2, 33, 19], b, 1.0);
            cases.push(placed(made.case(TensorOp::Matmul, out, summed), Placement::Together));
        }
        let made = Maker::new(format!("matmul {dtype} over nothing"));
        let made = made.x(dtype, &[3, 0], Plain, 1.0).x(dtype, &[0, 5], Plain, 1.0);
        cases.push(zeros(made.case(TensorOp::Matmul, Plain, summed)));
        let made = Maker::new(format!("matmul {dtype} of no rows"));
        let made = made.x(dtype, &[0, 4], Plain, 1.0).x(dtype, &[4, 5], Plain, 1.0);
        cases.push(zeros(made.case(TensorOp::Matmul, Plain, summed)));
    }
    let held = Tolerance {
        absolute: 2e-2,
        relative: 1e-3,
        reason: "a device may hold decoded weights in half precision: 512 of them, each off by 2⁻¹²",
    };
    for dtype in DType::all().filter(|dtype| dtype.is_quantized()) {
        for (m, n) in [(1, 1), (1, 33), (3, 40), (33, 65)] {
            let whole = View::contiguous(dtype, &[n + 2, 512]).expect("whole blocks");
            let w = whole.slice(0, 1..n + 1).and_then(|w| w.transpose(0, 1)).expect("whole blocks");
            for a in FLOATS.into_iter().take(if m == 3 { 3 } else { 1 }) {
                let made = Maker::new(format!("matmul {a} {m}×512×{n} with {dtype}"));
                let made = made.x(a, &[m, 512], if m == 33 { Sliced } else { Plain }, 1.0).blocks(w);
                cases.push(made.case(TensorOp::Matmul, Plain, held));
            }
        }
    }
    cases
}

fn rotations() -> Vec<TensorCase> {
    // An angle of 2000 in f32 is off by 1.2e-4.
    let turned = Tolerance { absolute: 4e-4, relative: 1e-5, reason: "angles of up to 2000, in f32" };
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for pairs in [RopePairs::Halves, RopePairs::Interleaved] {
            for (tokens, heads, d, rotated, layout) in [
                (1, 1, 2, 2, Layout::Plain),
                (5, 3, 24, 24, Layout::Plain),
                (33, 2, 24, 10, Layout::Sliced),
                (7, 5, 64, 64, Layout::Turned),
                (2, 1, 128, 64, Layout::Offset),
                (3, 2, 9, 8, Layout::Stepped),
            ] {
                let name = format!("rope {dtype} {pairs:?} {rotated} of {d}, {tokens} tokens {layout:?}");
                let made = Maker::new(name).x(dtype, &[tokens, heads, d], layout, 1.5);
                let made = made.ids(&[tokens], Layout::Stepped, |i| (i * 631 % 2001) as u32);
                let made = made.by(DType::F32, &[rotated / 2], Layout::Offset, |i| 0.8f32.powi(i as i32));
                let rope = Rope { head_dim: d, pairs, magnitude: 1.1 };
                let out = if layout == Layout::Plain { Layout::Turned } else { Layout::Plain };
                cases.push(made.case(TensorOp::Rope(rope), out, turned));
            }
        }
        let made = Maker::new(format!("rope {dtype} of nothing turns nothing"));
        let made = made.x(dtype, &[3, 2, 8], Layout::Plain, 1.0).ids(&[3], Layout::Plain, |i| i as u32);
        let made = made.by(DType::F32, &[0], Layout::Plain, |_| 0.0);
        let rope = Rope { head_dim: 8, pairs: RopePairs::Halves, magnitude: 1.0 };
        cases.push(made.case(TensorOp::Rope(rope), Layout::Plain, Tolerance::EXACT));
    }
    cases
}

/// Heads, key/value heads, queries, keys, elements of a head.
type Heads = (usize, usize, usize, usize, usize);

fn attention(dtype: DType, heads: Heads, sdpa: Sdpa, sinks: bool, layout: Layout) -> TensorCase {
    let (h, kv, m, n, d) = heads;
    let mut name = format!("sdpa {dtype} {heads:?} {:?} {layout:?}", sdpa.mask);
    if sdpa.softcap.is_some() {
        name += " capped";
    }
    if sinks {
        name += " with sinks";
    }
    let mut made = Maker::new(name).x(dtype, &[h, m, d], layout, 1.5);
    made = made.x(dtype, &[kv, n, d], layout, 1.5).x(dtype, &[kv, n, d], layout, 1.5);
    if sinks {
        made = made.by(DType::F32, &[h], Layout::Stepped, |i| i as f32 * 0.5 - 1.0);
    }
    let out = if layout == Layout::Plain { Layout::Plain } else { Layout::Sliced };
    made.case(TensorOp::Sdpa(sdpa), out, softmaxed(dtype))
}

/// A softmax of sums of products.
pub(super) fn softmaxed(dtype: DType) -> Tolerance {
    // Probabilities held in the type of the values are off by half a unit each.
    let held = match dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 0.0,
    };
    Tolerance { absolute: 3e-5 + held, relative: 1e-4, reason: "a softmax of sums of products" }
}

fn attentions() -> Vec<TensorCase> {
    let mut cases = Vec::new();
    let plain = |d: usize, mask| Sdpa { scale: 1.0 / (d as f32).sqrt(), mask, softcap: None };
    for dtype in FLOATS {
        for (heads, mask, layout) in [
            ((1, 1, 1, 1, 32), Mask::Full, Layout::Plain),
            ((6, 2, 1, 33, 64), Mask::Causal, Layout::Sliced),
            ((6, 2, 33, 33, 64), Mask::Causal, Layout::Turned),
            ((4, 4, 7, 130, 80), Mask::Causal, Layout::Offset),
            ((5, 1, 31, 257, 32), Mask::Full, Layout::Plain),
            ((2, 1, 40, 70, 128), Mask::Window(5), Layout::Plain),
            ((2, 2, 33, 100, 32), Mask::Window(1), Layout::Sliced),
            ((2, 1, 5, 1025, 64), Mask::Window(600), Layout::Plain),
            ((3, 3, 4, 20, 26), Mask::Causal, Layout::Stepped),
            ((2, 1, 3, 9, 256), Mask::Causal, Layout::Plain),
            // The first 23 queries see no key.
            ((2, 1, 40, 17, 32), Mask::Causal, Layout::Plain),
            ((2, 1, 40, 17, 32), Mask::Window(3), Layout::Sliced),
        ] {
            cases.push(attention(dtype, heads, plain(heads.4, mask), false, layout));
        }
        let capped = Sdpa { softcap: Some(3.0), ..plain(48, Mask::Causal) };
        cases.push(attention(dtype, (2, 2, 9, 35, 48), capped, false, Layout::Plain));
        cases.push(attention(dtype, (4, 2, 9, 35, 64), plain(64, Mask::Causal), true, Layout::Plain));
        cases.push(attention(dtype, (4, 1, 20, 9, 32), plain(32, Mask::Window(4)), true, Layout::Turned));
        // Scores so large that one key takes all.
        let sharp = Sdpa { scale: 30.0, ..plain(32, Mask::Causal) };
        let mut sharp = attention(dtype, (2, 1, 5, 33, 32), sharp, false, Layout::Plain);
        sharp.name += ", sharp";
        sharp.tolerance.absolute += 2e-3; // A score of 1000 in f32 is off by 6e-5 for each of the sum's roundings.
        cases.push(sharp);
        cases.push(zeros(attention(dtype, (2, 1, 3, 0, 32), plain(32, Mask::Full), false, Layout::Plain)));
        cases.push(zeros(attention(dtype, (2, 1, 3, 0, 32), plain(32, Mask::Causal), true, Layout::Plain)));
        cases.push(zeros(attention(dtype, (2, 1, 0, 5, 32), plain(32, Mask::Causal), false, Layout::Plain)));
    }
    cases
}
