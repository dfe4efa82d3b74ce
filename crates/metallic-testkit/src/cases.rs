//! One table of cases for every operation, run on any backend against the reference.
//!
//! A case is a small graph that begins with an embedding, so that activations differ from token to token, and a few
//! steps of awkward sizes: one token, ragged tiles, several sequences, a past that crosses block borders.

use metallic_core::quant::quantize;
use metallic_core::reference::Reference;
use metallic_core::{
    Attention, BLOCK_TOKENS, Backend, DType, Graph, GraphBuilder, KvLayout, Op, Program, Rope, RopePairs,
    SequenceSpan, Shape, Sizes, Step, TensorType, Unary, Var, Weight, rewrite,
};

use crate::random::Random;

/// What the order of a few hundred additions in `F32` may change, at values around 1.
const EXACT: f32 = 2e-4;

/// Rows of every embedding table.
const VOCAB: usize = 50;

/// One operation in one form.
pub struct Case {
    /// What it is.
    pub name: String,
    /// Largest absolute difference to the reference, at values around 1, for a backend that rounds activations to 8
    /// bits where weights are quantised.
    pub tolerance: f32,
    /// The same for a backend whose activations are `F32` throughout.
    pub exact: f32,
    /// The computation; its outputs are compared.
    pub graph: Graph,
    /// The cache it needs.
    pub kv: KvLayout,
}

/// Builds weights of one graph.
struct Maker<'g> {
    g: &'g GraphBuilder,
    random: std::cell::RefCell<Random>,
}

impl<'g> Maker<'g> {
    fn tensor(&self, dtype: DType, shape: Shape, scale: f32) -> Var<'g> {
        let mut random = self.random.borrow_mut();
        let len = shape.elements(Sizes::default());
        let bytes = scaled_weights(dtype, len, scale, &mut random);
        let name = format!("w{}", random.bits());
        self.g.weight(Weight { name, ty: TensorType::new(dtype, shape), data: bytes.into() })
    }

    fn matrix(&self, dtype: DType, rows: usize, cols: usize) -> Var<'g> {
        self.tensor(dtype, Shape::matrix(rows, cols), 0.3)
    }

    fn vector(&self, len: usize) -> Var<'g> {
        self.tensor(DType::F32, Shape::vector(len), 1.0)
    }

    /// Activations `[tokens, cols]`.
    fn rows(&self, cols: usize) -> Var<'g> {
        self.tensor(DType::F32, Shape::matrix(VOCAB, cols), 1.5).embed(self.g.tokens())
    }
}

/// Random weights of any type, around 0.3.
pub(crate) fn weights(dtype: DType, len: usize, random: &mut Random) -> Vec<u8> {
    scaled_weights(dtype, len, 0.3, random)
}

fn scaled_weights(dtype: DType, len: usize, scale: f32, random: &mut Random) -> Vec<u8> {
    if encodable(dtype) { encode(dtype, &random.floats(len, scale)) } else { blocks(dtype, len, random) }
}

fn encodable(dtype: DType) -> bool {
    !matches!(dtype, DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K)
}

fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.bytes_for(values.len()).unwrap_or(0)];
    quantize(dtype, values, &mut bytes).expect("the test's own numbers fill blocks");
    bytes
}

/// Random blocks of a K type: every bit of every field counts. Scales are positive halves that bring the largest weights
/// of every type to 0.3 or more: results must be large beside the tolerances.
fn blocks(dtype: DType, len: usize, random: &mut Random) -> Vec<u8> {
    let count = len / dtype.block_len();
    let mut bytes: Vec<u8> = (0..count * dtype.block_bytes()).map(|_| random.bits() as u8).collect();
    let (halves, exponent): (&[usize], u16) = match dtype {
        DType::Q2K => (&[80, 82], 8),
        DType::Q3K => (&[108], 6),
        DType::Q4K => (&[0, 2], 3),
        DType::Q5K => (&[0, 2], 2),
        _ => (&[208], 1),
    };
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for at in halves {
            let half = exponent << 10 | (random.bits() as u16 & 0x3ff);
            block[*at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
    }
    bytes
}

fn case(
    name: impl Into<String>,
    tolerance: f32,
    build: impl for<'g> Fn(&'g GraphBuilder, &dyn Fn(usize) -> Var<'g>, &MakerOf<'g>) -> Var<'g>,
) -> Case {
    let name = name.into();
    let g = GraphBuilder::new();
    let seed = name.bytes().fold(7u64, |seed, b| seed.wrapping_mul(31).wrapping_add(u64::from(b)));
    let maker = MakerOf(Maker { g: &g, random: Random::new(seed).into() });
    let out = build(&g, &|cols| maker.0.rows(cols), &maker);
    let graph = g.finish(&[out]).unwrap_or_else(|e| panic!("{name}: {e}"));
    let kv = KvLayout { layers: 1, kv_heads: 1, head_dim: 32, dtype: DType::F32 };
    Case { name, tolerance, exact: tolerance.min(EXACT), graph, kv }
}

/// Keeps the maker's type out of the closures' signatures.
struct MakerOf<'g>(Maker<'g>);

/// The attention of a case: heads, key/value heads, elements of a head.
#[derive(Clone, Copy)]
struct Heads(usize, usize, usize);

fn attention_case(name: &str, heads: Heads, kv: DType, window: Option<usize>, softcap: Option<f32>) -> Case {
    let Heads(q, k, d) = heads;
    let tolerance = match kv {
        DType::F32 => 2e-5,
        DType::F16 | DType::BF16 => 2e-4,
        _ => 2e-3,
    };
    let mut case = case(format!("attention {name} {kv}"), tolerance, move |g, rows, _| {
        let rope = Rope { head_dim: d, pairs: RopePairs::Halves, magnitude: 1.0 };
        let freqs: Vec<f32> = (0..d / 2).map(|i| 1.0 / (1.0 + i as f32)).collect();
        let freqs = g.constant("freqs", &freqs);
        let spec = Attention {
            layer: 0,
            heads: q,
            kv_heads: k,
            head_dim: d,
            scale: 1.0 / (d as f32).sqrt(),
            window,
            softcap,
        };
        let keys = rows(k * d).rope(rope, g.positions(), freqs);
        rows(q * d).rope(rope, g.positions(), freqs).attention(keys.kv_write(rows(k * d), 0), spec)
    });
    // The last bit of a stored key may differ, whatever the arithmetic.
    case.exact = tolerance;
    case.kv = KvLayout { layers: 1, kv_heads: k, head_dim: d, dtype: kv };
    case
}

/// A layer's attention with everything before it, as models write it.
fn qkv_case(name: &str, heads: Heads, kv: DType, pairs: RopePairs, types: [DType; 3]) -> Case {
    let Heads(q, k, d) = heads;
    let quantized = types.iter().any(|t| t.is_quantized());
    // A score moves by what all elements of a query and a key are off by.
    let exact = match kv {
        DType::F32 => 1e-4,
        DType::F16 => 2e-3,
        _ => 2e-2,
    };
    let tolerance = if quantized { 0.2 } else { exact };
    let mut case = case(format!("qkv {name} {kv}"), tolerance, move |g, rows, m| {
        let cols = if quantized { 256 } else { 75 };
        let rope = Rope { head_dim: d, pairs, magnitude: 1.1 };
        let freqs = g.constant("freqs", &(0..d / 2).map(|i| 0.9f32.powi(i as i32)).collect::<Vec<_>>());
        let spec = Attention {
            layer: 0,
            heads: q,
            kv_heads: k,
            head_dim: d,
            scale: 0.02 / (d as f32).sqrt(),
            window: None,
            softcap: None,
        };
        let x = rows(cols).rms_norm(m.0.vector(cols), 1e-6);
        let [q, k, v] = [(q, types[0]), (k, types[1]), (k, types[2])]
            .map(|(heads, dtype)| x.linear(m.0.matrix(dtype, heads * d, cols)) + m.0.vector(heads * d));
        let keys = k.rope(rope, g.positions(), freqs);
        q.rope(rope, g.positions(), freqs).attention(keys.kv_write(v, 0), spec)
    });
    case.exact = exact;
    case.kv = KvLayout { layers: 1, kv_heads: k, head_dim: d, dtype: kv };
    case
}

fn qkv_cases() -> Vec<Case> {
    let (floats, mixed) = ([DType::F32, DType::F16, DType::BF16], [DType::Q4K, DType::Q8_0, DType::Q6K]);
    let (halves, interleaved) = (RopePairs::Halves, RopePairs::Interleaved);
    let mut cases = Vec::new();
    for kv in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        cases.push(qkv_case("halves", Heads(4, 2, 32), kv, halves, floats));
        cases.push(qkv_case("interleaved", Heads(3, 1, 64), kv, interleaved, floats));
    }
    cases.push(qkv_case("quantised", Heads(4, 2, 32), DType::F16, halves, mixed));
    cases.push(qkv_case("ragged heads", Heads(3, 1, 26), DType::F32, halves, floats));
    cases.push(qkv_case("ragged pairs", Heads(3, 1, 26), DType::F32, interleaved, floats));
    cases
}

/// Every operation in its forms.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for f in [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu, Unary::Sigmoid] {
        cases.push(case(format!("{f:?}"), 3e-6, move |_, rows, _| rows(37).scale(4.0).unary(f)));
    }
    cases.push(case("embed f16", 0.0, |g, _, m| m.0.matrix(DType::F16, VOCAB, 35).embed(g.tokens())));
    for dtype in DType::all().filter(|t| t.is_quantized()) {
        cases.push(case(format!("embed {dtype}"), 0.0, move |g, _, m| {
            m.0.matrix(dtype, VOCAB, 512).embed(g.tokens())
        }));
    }
    cases.push(case("select rows", 0.0, |g, rows, _| rows(9).select_rows(g.output_rows())));
    cases.push(case("slice", 0.0, |_, rows, _| rows(40).slice(7, 21)));
    cases.push(case("add", 0.0, |_, rows, _| rows(33) + rows(33)));
    cases.push(case("multiply", 0.0, |_, rows, _| rows(33) * rows(33)));
    cases.push(case("subtract", 0.0, |_, rows, _| rows(33) - rows(33)));
    // A sigmoid is never near zero; its own error is in the quotient.
    cases.push(case("divide", 1e-5, |_, rows, _| rows(33) / rows(33).unary(Unary::Sigmoid)));
    cases.push(case("divide all by one row", 1e-5, |_, rows, m| {
        rows(65) / m.0.vector(65).unary(Unary::Sigmoid)
    }));
    cases.push(case("add to itself", 0.0, |_, rows, _| {
        let x = rows(18);
        x + x
    }));
    cases.push(case("add one row to all", 0.0, |_, rows, m| rows(65) + m.0.vector(65)));
    cases.push(case("multiply all by one row", 0.0, |_, rows, m| rows(65) * m.0.vector(65)));
    cases.push(case("scale", 0.0, |_, rows, _| rows(31).scale(-0.75)));
    cases.push(case("softcap", 1e-5, |_, rows, _| rows(31).scale(20.0).softcap(7.0)));
    cases.push(case("softmax", 2e-6, |_, rows, _| rows(77).scale(9.0).softmax()));
    for cols in [1, 64, 577] {
        cases.push(case(format!("rms norm {cols}"), 1e-5, move |_, rows, m| {
            rows(cols).rms_norm(m.0.vector(cols), 1e-5)
        }));
    }
    cases.push(case("rms norm of huge values", 1e-5, |_, rows, m| {
        rows(48).scale(1e19).rms_norm(m.0.vector(48), 1e-5)
    }));
    for (name, pairs) in [("halves", RopePairs::Halves), ("interleaved", RopePairs::Interleaved)] {
        for rotated in [24, 10] {
            cases.push(case(format!("rope {name} {rotated} of 24"), 1e-5, move |g, rows, _| {
                let freqs: Vec<f32> = (0..rotated / 2).map(|i| 0.9f32.powi(i)).collect();
                let rope = Rope { head_dim: 24, pairs, magnitude: 1.1 };
                rows(72).rope(rope, g.positions(), g.constant("freqs", &freqs))
            }));
        }
    }
    cases.extend(linear_cases());
    for kv in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        cases.push(attention_case("grouped", Heads(6, 2, 64), kv, None, None));
    }
    cases.push(attention_case("odd heads", Heads(3, 3, 26), DType::F32, None, None));
    cases.push(attention_case("one kv head", Heads(5, 1, 80), DType::F16, None, None));
    cases.push(attention_case("window", Heads(4, 2, 32), DType::F32, Some(5), None));
    cases.push(attention_case("window of one", Heads(2, 2, 16), DType::F32, Some(1), None));
    cases.push(attention_case("window past a block", Heads(2, 1, 16), DType::F32, Some(33), None));
    cases.push(attention_case("softcap", Heads(2, 2, 48), DType::F32, None, Some(3.0)));
    cases.extend(qkv_cases());
    cases
}

/// Attention over contexts that a device may split, for [`check_long`].
pub fn long() -> Vec<Case> {
    let cases = [
        attention_case("long, odd heads", Heads(3, 1, 26), DType::F32, None, None),
        attention_case("long, one kv head", Heads(2, 1, 64), DType::F16, None, Some(2.0)),
        attention_case("long, window", Heads(2, 1, 32), DType::Q8_0, Some(1060), None),
    ];
    // Averages of a thousand values are small, and so is what they are off by.
    cases.into_iter().map(|case| Case { exact: case.exact.min(1e-4), ..case }).collect()
}

/// Matrix products of every weight type, plain and in the fused forms fusion makes of them.
fn linear_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.push(case("linear of a weight", 1e-5, |_, _, m| {
        m.0.vector(40).linear(m.0.matrix(DType::F32, 9, 40))
    }));
    for dtype in DType::all().filter(|t| t.is_float() || t.is_quantized()) {
        let cols = if dtype.is_float() { 75 } else { 512 };
        // 8-bit activations are off by up to 1/254 of their block's largest value each.
        let tolerance = if dtype.is_float() { 5e-5 } else { 0.12 };
        for rows in [1, 33] {
            cases.push(case(format!("linear {dtype} {rows}"), tolerance, move |_, x, m| {
                x(cols).linear(m.0.matrix(dtype, rows, cols))
            }));
        }
        cases.push(case(format!("norm, linear, bias {dtype}"), tolerance, move |_, x, m| {
            x(cols).rms_norm(m.0.vector(cols), 1e-6).linear(m.0.matrix(dtype, 20, cols)) + m.0.vector(20)
        }));
        cases.push(case(format!("linear, bias, residual {dtype}"), tolerance, move |_, x, m| {
            x(20) + (x(cols).linear(m.0.matrix(dtype, 20, cols)) + m.0.vector(20))
        }));
        // A gate multiplies two sums, each off by as much.
        cases.push(case(format!("gated {dtype}"), tolerance * 4.0, move |_, x, m| {
            let n = x(cols).rms_norm(m.0.vector(cols), 1e-6);
            n.linear(m.0.matrix(dtype, 48, cols)).unary(Unary::Silu) * n.linear(m.0.matrix(dtype, 48, cols))
        }));
    }
    for act in [Unary::Gelu, Unary::GeluTanh, Unary::Relu] {
        cases.push(case(format!("gated by {act:?}, mixed types"), 0.12, move |_, x, m| {
            let n = x(64);
            n.linear(m.0.matrix(DType::Q8_0, 40, 64)).unary(act) * n.linear(m.0.matrix(DType::F16, 40, 64))
        }));
    }
    cases
}

/// Runs a case on a backend, plain and fused, and compares every output of every step with the reference.
pub fn check(backend: &dyn Backend, case: &Case) -> Result<(), String> {
    check_within(backend, case, case.tolerance)
}

/// The same for a backend whose activations are `F32` throughout.
pub fn check_exact(backend: &dyn Backend, case: &Case) -> Result<(), String> {
    check_within(backend, case, case.exact)
}

/// The same over contexts of more than a thousand tokens.
pub fn check_long(backend: &dyn Backend, case: &Case) -> Result<(), String> {
    let mut expected = Reference::new().compile(&case.graph, case.kv).map_err(|e| e.to_string())?;
    let mut found = backend.compile(&case.graph, case.kv).map_err(|e| e.to_string())?;
    compare(expected.as_mut(), found.as_mut(), &[1090, 1, 3], case.exact)
}

fn check_within(backend: &dyn Backend, case: &Case, tolerance: f32) -> Result<(), String> {
    let fused = rewrite::fuse(&case.graph).map_err(|e| e.to_string())?;
    let mut expected = Reference::new().compile(&case.graph, case.kv).map_err(|e| e.to_string())?;
    for graph in [&case.graph, &fused] {
        let mut found = backend.compile(graph, case.kv).map_err(|e| e.to_string())?;
        for steps in [&[1usize, 1, 33][..], &[40, 1, 5], &[3, 29, 1]] {
            compare(expected.as_mut(), found.as_mut(), steps, tolerance)?;
        }
    }
    Ok(())
}

/// Two sequences side by side: the first takes these steps, the second takes two tokens in each.
fn compare(
    expected: &mut dyn Program,
    found: &mut dyn Program,
    steps: &[usize],
    tolerance: f32,
) -> Result<(), String> {
    let capacity = (steps.iter().sum::<usize>() + 2 * steps.len()).div_ceil(BLOCK_TOKENS) as u32;
    // Blocks in no particular order.
    let first: Vec<u32> = (0..capacity).rev().map(|i| 2 * i + 1).collect();
    let second: Vec<u32> = (0..capacity).map(|i| 2 * i).collect();
    let blocks = 2 * capacity as usize;
    expected.reserve_blocks(blocks).and_then(|()| found.reserve_blocks(blocks)).map_err(|e| e.to_string())?;
    let (mut past, mut random, mut peak) = ((0, 0), Random::new(3), 0f32);
    for len in steps {
        let n = len + 2;
        let tokens: Vec<u32> = (0..n).map(|_| random.below(VOCAB) as u32).collect();
        let positions: Vec<u32> =
            (past.0..past.0 + len).chain(past.1..past.1 + 2).map(|p| p as u32).collect();
        let sequences = [
            SequenceSpan { tokens: 0..*len, past: past.0, blocks: &first },
            SequenceSpan { tokens: *len..n, past: past.1, blocks: &second },
        ];
        let outputs = [n as u32 - 1, 0, (n / 2) as u32];
        let step = Step { tokens: &tokens, positions: &positions, sequences: &sequences, outputs: &outputs };
        expected.run(&step).and_then(|_| found.run(&step)).map_err(|e| e.to_string())?;
        let (a, b) = (expected.output(0), found.output(0));
        if a.len() != b.len() || a.is_empty() {
            return Err(format!("{} values instead of {}", b.len(), a.len()));
        }
        let worst = crate::golden::max_diff(a, b);
        if worst.is_nan() || worst > tolerance {
            return Err(format!("off by {worst} in a step of {n} tokens"));
        }
        peak = a.iter().fold(peak, |peak, x| peak.max(x.abs()));
        past = (past.0 + len, past.1 + 2);
    }
    // Were the results as small as the tolerance, anything would pass.
    if peak <= 8.0 * tolerance {
        return Err(format!("results of at most {peak} prove nothing at a tolerance of {tolerance}"));
    }
    Ok(())
}

/// The kinds of operation the table exercises, plain or fused.
pub fn covered() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for case in all() {
        let fused = rewrite::fuse(&case.graph).ok();
        for graph in [Some(&case.graph), fused.as_ref()].into_iter().flatten() {
            names.extend(graph.nodes().iter().map(|n| &n.op).filter(|op| !op.is_source()).map(Op::name));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}
