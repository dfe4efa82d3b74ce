//! Whether a device computes what it should, and as fast as it should: small models with known answers, made here.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use metallic_core::reference::Reference;
use metallic_core::{
    Attention, BLOCK_TOKENS, Backend, BackendError, Bytes, CompileOptions, DType, Graph, GraphBuilder,
    Program, Rope, RopePairs, SequenceSpan, Shape, StateId, Step, TensorType, Unary, Var, Wanted, Weight,
    quant,
};

use crate::bench::{Kind, Test, measure};
use crate::model::LOGITS;

/// The types of weights that are tried.
pub const TYPES: [DType; 5] = [DType::F32, DType::F16, DType::Q8_0, DType::Q4_0, DType::Q4K];

/// Tokens of the prompt: some more than fill the tiles of a matrix product.
const PROMPT: usize = 70;
/// Tokens after it, one by one.
const ANSWER: usize = 3;

/// How close a device has to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// It computes in 32 bits.
    Full,
    /// It rounds activations to halfs somewhere.
    Halfs,
    /// It rounds activations to 8 bits where weights have few.
    Bytes,
}

impl Exactness {
    /// Of a device by its kind, as it is opened without options.
    pub fn of(kind: &str, exact: bool) -> Exactness {
        match kind {
            "cpu" if !exact => Exactness::Bytes,
            "cuda" => Exactness::Halfs,
            _ => Exactness::Full,
        }
    }

    /// The largest error, as a part of the largest number.
    fn tolerance(self, weights: DType) -> f32 {
        match self {
            Exactness::Full => 2e-4,
            Exactness::Bytes if weights.is_quantized() => 4e-2,
            // Weights of halfs are multiplied by halfs.
            Exactness::Halfs | Exactness::Bytes => 4e-3,
        }
    }
}

/// What came of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The type of its weights.
    pub weights: DType,
    /// What was computed: `a prompt`, `an answer`.
    pub what: &'static str,
    /// The largest error, as a part of the largest number; infinite where a number is none.
    pub error: f32,
    /// What it may be.
    pub tolerance: f32,
}

impl Outcome {
    /// Whether the answers are right.
    pub fn passed(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// Runs a small model of each of [`TYPES`] on a device, with keys and values stored as `kv`, and compares what it says with the reference.
pub fn run(backend: &dyn Backend, exactness: Exactness, kv: DType) -> Result<Vec<Outcome>, BackendError> {
    let mut outcomes = Vec::new();
    for weights in TYPES {
        let graph = Dims::SMALL.decoder(weights)?;
        let kv = CompileOptions::kv(kv);
        let expected = answers(Reference::new().compile(&graph, kv)?.as_mut())?;
        let found = answers(backend.compile(&graph, kv)?.as_mut())?;
        for ((what, expected), (_, found)) in expected.iter().zip(&found) {
            let tolerance = exactness.tolerance(weights);
            outcomes.push(Outcome { weights, what, error: error(expected, found), tolerance });
        }
    }
    Ok(outcomes)
}

/// The largest difference, as a part of the largest expected number.
fn error(expected: &[f32], found: &[f32]) -> f32 {
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
    let differences = expected.iter().zip(found).map(|(e, f)| (e - f).abs() / largest);
    let worst = differences.fold(0.0, |most: f32, x| if x.is_nan() { f32::INFINITY } else { most.max(x) });
    if expected.len() == found.len() { worst } else { f32::INFINITY }
}

/// Logits of a prompt, and of tokens after it.
fn answers(program: &mut dyn Program) -> Result<[(&'static str, Vec<f32>); 2], BackendError> {
    let blocks: Vec<u32> = (0..(PROMPT + ANSWER).div_ceil(BLOCK_TOKENS) as u32).collect();
    program.reserve_blocks(blocks.len())?;
    program.reserve_slots(1)?;
    let ids: Vec<u32> = (0..PROMPT + ANSWER).map(|i| ((i * 37 + 11) % Dims::SMALL.vocab) as u32).collect();
    let mut feed = |past: usize, count: usize| {
        let positions: Vec<u32> = (past as u32..(past + count) as u32).collect();
        let step = Step {
            tokens: &ids[past..past + count],
            positions: &positions,
            sequences: &[SequenceSpan { tokens: 0..count, past, blocks: &blocks, near: &[], slot: 0 }],
            outputs: &[count as u32 - 1],
            wanted: Wanted::only(LOGITS),
            ..Step::default()
        };
        program.run(&step)?;
        Ok::<_, BackendError>(program.output(LOGITS).to_vec())
    };
    let prompt = feed(0, PROMPT)?;
    let mut answer = Vec::new();
    for index in 0..ANSWER {
        answer.extend(feed(PROMPT + index, 1)?);
    }
    Ok([("a prompt", prompt), ("an answer", answer)])
}

/// How fast a device makes tokens, and which part that is of what its memory allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Bytes of the weights of the model that was tried.
    pub weight_bytes: u64,
    /// Tokens a second: the median.
    pub tokens_per_second: f64,
    /// Bytes read a second.
    pub bytes_per_second: f64,
    /// Bytes that the device reads in a second where it does nothing else.
    pub peak: f64,
}

impl Speed {
    /// The part of the peak.
    pub fn share(&self) -> f64 {
        self.bytes_per_second / self.peak.max(1.0)
    }
}

/// Seconds that a step of the model should take at best: so long that starting it does not count, and that it is larger than what
/// processors keep beside their cores.
const STEP: f64 = 25e-3;
/// Bytes of weights at least and at most.
const BYTES: (f64, f64) = (64e6, 1.5e9);

/// Measures a device for about so long, with a model of random weights (`Q8_0`) that is as large as its memory is fast. `None` for devices
/// of which a share means nothing.
pub fn speed(backend: &dyn Backend, time: Duration) -> Result<Option<Speed>, BackendError> {
    let Some(peaks) = backend.peaks()? else { return Ok(None) };
    let room = backend.info().memory_bytes.map_or(f64::INFINITY, |bytes| bytes as f64 / 4.0);
    let wanted = (peaks.read * STEP).clamp(BYTES.0, BYTES.1).min(room);
    let dims = Dims::of_bytes(wanted);
    let graph = dims.decoder(DType::Q8_0)?;
    let weight_bytes = graph.weights().iter().map(|weight| weight.data.len() as u64).sum();
    let mut program = backend.compile(&graph, CompileOptions::default())?;
    let test = Test { kind: Kind::Decode, tokens: 16, depth: 0, sequences: 1 };
    let once = measure(program.as_mut(), dims.vocab, test, 1)?;
    let repetitions = (time.as_secs_f64() / once.seconds.max(1e-6)).clamp(3.0, 200.0) as usize;
    let measured = measure(program.as_mut(), dims.vocab, test, repetitions)?;
    let tokens_per_second = measured.median();
    let bytes = measured.stats.bytes_read as f64 / (test.tokens * repetitions) as f64;
    let bytes_per_second = bytes * tokens_per_second;
    Ok(Some(Speed { weight_bytes, tokens_per_second, bytes_per_second, peak: peaks.read }))
}

/// Sizes of a decoder.
#[derive(Clone, Copy, Debug)]
struct Dims {
    hidden: usize,
    head_dim: usize,
    heads: usize,
    kv_heads: usize,
    ffn: usize,
    vocab: usize,
    layers: usize,
}

impl Dims {
    /// Blocks of 256 numbers go into its rows.
    const SMALL: Dims =
        Dims { hidden: 256, head_dim: 64, heads: 4, kv_heads: 2, ffn: 512, vocab: 96, layers: 2 };

    /// One whose `Q8_0` weights have about so many bytes.
    fn of_bytes(bytes: f64) -> Dims {
        let hidden = if bytes > 500e6 { 4096 } else { 1024 };
        let dims = Dims {
            hidden,
            head_dim: 128,
            heads: hidden / 128,
            kv_heads: hidden / 512,
            ffn: hidden * 3,
            vocab: 4096,
            layers: 1,
        };
        let layer = (2 * hidden * hidden + hidden * hidden / 2 + 3 * hidden * dims.ffn) as f64 * 34.0 / 32.0;
        Dims { layers: ((bytes / layer).round() as usize).max(1), ..dims }
    }

    /// Outputs are those of a model. Matrices of one size share their bytes.
    fn decoder(self, weights: DType) -> Result<Graph, BackendError> {
        let g = GraphBuilder::new();
        let made = Made { g: &g, known: RefCell::default() };
        let Dims { hidden, head_dim, heads, kv_heads, ffn, vocab, layers } = self;
        let matrix = |layer: usize, name: &str, rows, cols| {
            made.matrix(format!("blk.{layer}.{name}.weight"), weights, rows, cols)
        };
        let norm = |name: &str| made.ones(name, hidden);
        let freqs: Vec<f32> =
            (0..head_dim / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
        let freqs = g.constant("freqs", &freqs);
        let rope = Rope { head_dim, pairs: RopePairs::Halves, magnitude: 1.0 };
        let table = made.matrix("token_embd.weight".to_owned(), DType::F32, vocab, hidden);
        let mut x = table.embed(g.tokens());
        for layer in 0..layers {
            let n = x.rms_norm(norm(&format!("blk.{layer}.attn_norm.weight")), 1e-5);
            let rotated = |name, heads: usize| {
                n.linear(matrix(layer, name, heads * head_dim, hidden)).rope(rope, g.positions(), freqs)
            };
            let (q, k) = (rotated("attn_q", heads), rotated("attn_k", kv_heads));
            let v = n.linear(matrix(layer, "attn_v", kv_heads * head_dim, hidden));
            let (state, scale) = (StateId(layer), (head_dim as f32).sqrt().recip());
            let attention = Attention {
                state,
                heads,
                kv_heads,
                head_dim,
                value_dim: head_dim,
                scale,
                window: None,
                softcap: None,
                sinks: false,
            };
            let attended = q.attention(k.kv_write(v, state, kv_heads), attention, None);
            let h = x + attended.linear(matrix(layer, "attn_output", hidden, heads * head_dim));
            let n = h.rms_norm(norm(&format!("blk.{layer}.ffn_norm.weight")), 1e-5);
            let gate = n.linear(matrix(layer, "ffn_gate", ffn, hidden)).unary(Unary::Silu);
            let inner = gate * n.linear(matrix(layer, "ffn_up", ffn, hidden));
            x = h + inner.linear(matrix(layer, "ffn_down", hidden, ffn));
        }
        let last = x.select_rows(g.output_rows());
        let head = made.matrix("output.weight".to_owned(), weights, vocab, hidden);
        let logits = last.rms_norm(norm("output_norm.weight"), 1e-5).linear(head);
        g.finish(&[logits, logits.sample(), last]).map_err(|error| BackendError::from(error.error))
    }
}

/// Weights by chance, the same in each run.
struct Made<'g> {
    g: &'g GraphBuilder,
    known: RefCell<HashMap<(DType, usize, usize), Bytes>>,
}

impl<'g> Made<'g> {
    fn ones(&self, name: &str, len: usize) -> Var<'g> {
        self.g.constant(name, &vec![1.0; len])
    }

    fn matrix(&self, name: String, dtype: DType, rows: usize, cols: usize) -> Var<'g> {
        let ty = TensorType::new(dtype, Shape::matrix(rows, cols));
        let mut known = self.known.borrow_mut();
        let data =
            known.entry((dtype, rows, cols)).or_insert_with(|| encoded(dtype, rows, cols).into()).clone();
        self.g.weight(Weight { name, ty, data })
    }
}

/// Rows of numbers whose squares add up to about one. Rows repeat: what matters is that each kernel reads them all.
fn encoded(dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    const DIFFERENT: usize = 61;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ (rows * 31 + cols) as u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let scale = (12.0 / cols as f32).sqrt();
    let row_bytes = dtype.bytes_for(cols).unwrap_or(0);
    let mut bytes = vec![0; row_bytes * rows.min(DIFFERENT)];
    for row in bytes.chunks_exact_mut(row_bytes.max(1)) {
        let values: Vec<f32> = (0..cols).map(|_| next() * scale).collect();
        // The length fits: both are of the same number of columns.
        let _ = quant::quantize(dtype, &values, row);
    }
    bytes.iter().copied().cycle().take(row_bytes * rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use metallic_cpu::{Cpu, CpuOptions};

    #[test]
    fn the_processor_passes_and_says_how_near_it_comes() {
        for exact in [false, true] {
            let cpu = Cpu::new(CpuOptions::default().threads(1).exact(exact)).unwrap();
            let outcomes = run(&cpu, Exactness::of("cpu", exact), DType::F32).unwrap();
            assert_eq!(outcomes.len(), 2 * TYPES.len());
            for outcome in &outcomes {
                assert!(outcome.passed(), "{outcome:?}");
                let rounds = !exact && outcome.weights.is_quantized();
                assert_eq!(outcome.error > 1e-3, rounds, "rounding of activations shows: {outcome:?}");
            }
        }
    }

    #[test]
    fn a_device_that_computes_nothing_fails() {
        let null = crate::Device::Null.open(1).unwrap();
        let outcomes = run(null.as_ref(), Exactness::Bytes, DType::F32).unwrap();
        assert!(outcomes.iter().all(|outcome| !outcome.passed()), "{outcomes:?}");
    }

    #[test]
    fn no_number_and_another_count_are_as_wrong_as_can_be() {
        assert_eq!(error(&[1.0, -4.0], &[1.0, -3.0]), 0.25);
        assert_eq!(error(&[1.0], &[f32::NAN]), f32::INFINITY);
        assert_eq!(error(&[1.0, 2.0], &[1.0]), f32::INFINITY);
    }

    #[test]
    fn speed_is_a_share_of_what_memory_allows() {
        let cpu = crate::Device::Cpu.open(1).unwrap();
        let speed = speed(cpu.as_ref(), Duration::from_millis(200)).unwrap().unwrap();
        assert!(speed.weight_bytes as f64 >= 0.8 * BYTES.0 && speed.tokens_per_second > 0.0, "{speed:?}");
        // Every weight but the table of the embedding is read for each token, and little else.
        let read = speed.bytes_per_second / speed.tokens_per_second / speed.weight_bytes as f64;
        assert!((0.7..1.1).contains(&read), "{speed:?}");
        assert!((0.01..1.5).contains(&speed.share()), "{speed:?}");
        let null = crate::Device::Null.open(1).unwrap();
        assert_eq!(super::speed(null.as_ref(), Duration::ZERO).unwrap(), None);
    }
}
