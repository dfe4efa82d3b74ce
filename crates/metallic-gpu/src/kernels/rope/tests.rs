use metallic_core::quant::{dequantize, quantize};
use metallic_core::{BLOCK_TOKENS, DType, Rope, RopePairs};

use super::super::Moved;
use super::super::harness::{Data, as_f32s, f32s, run, u32s};
use super::super::typed::tests::{FLOATS, data, floats, room, rounded};
use super::*;
use crate::threadgroup::tests::LIMITS;

const PLAIN: Rope = Rope { head_dim: 64, pairs: RopePairs::Halves, magnitude: 1.0 };

fn numbers(n: usize, seed: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.731 + seed).sin() * 2.5).collect()
}

/// The formula, in f64.
fn rotate(rope: &Rope, row: &mut [f32], position: u32, freqs: &[f32]) {
    for head in row.chunks_mut(rope.head_dim) {
        for (i, freq) in freqs.iter().enumerate() {
            let (a, b) = match rope.pairs {
                RopePairs::Halves => (i, i + freqs.len()),
                RopePairs::Interleaved => (2 * i, 2 * i + 1),
            };
            let (sin, cos) = (f64::from(position) * f64::from(*freq)).sin_cos();
            let (x, y, m) = (f64::from(head[a]), f64::from(head[b]), f64::from(rope.magnitude));
            head[a] = ((x * cos - y * sin) * m) as f32;
            head[b] = ((x * sin + y * cos) * m) as f32;
        }
    }
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| if a.is_nan() { f32::NAN } else { (a - b).abs() })
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

#[test]
fn every_position_to_the_end_of_a_long_context_is_turned_exactly() {
    let freqs: Vec<f32> = (0..32).map(|i| 10000f32.powf(-(i as f32) / 32.0)).collect();
    let positions = [0u32, 1, 2, 1000, 4095, 32768, 131_071, 131_072, 1_000_003];
    let tokens = positions.len();
    let x = numbers(tokens * 64, 0.0);
    let stages = rope(DType::F32, &PLAIN, (tokens as u32, 64), 32, &LIMITS).unwrap();
    let args = [f32s(&x), u32s(&positions), f32s(&freqs), Data::Room(x.len() * 4)];
    let Some(found) = run(&stages.stages[0].launch, &args) else { return };
    let mut expected = x;
    for (row, position) in expected.chunks_mut(64).zip(positions) {
        rotate(&PLAIN, row, position, &freqs);
    }
    let off = worst(&as_f32s(&found[3]), &expected);
    assert!(off < 1.5e-6, "off by {off}");
}

#[test]
fn frequencies_of_any_size_and_sign_are_taken() {
    let freqs =
        [1e-30f32, 0.0, 1.9999999, 2.5, 1000.0, -0.37, 1e-5, 3.5e-8, 100_000.0, f32::MIN_POSITIVE / 4.0];
    let rope_spec = Rope { head_dim: 20, pairs: RopePairs::Interleaved, magnitude: 1.0 };
    let positions = [7u32, 65_537];
    let x = numbers(40, 0.3);
    let stages = rope(DType::F32, &rope_spec, (2, 20), 10, &LIMITS).unwrap();
    let args = [f32s(&x), u32s(&positions), f32s(&freqs), Data::Room(160)];
    let Some(found) = run(&stages.stages[0].launch, &args) else { return };
    let mut expected = x;
    for (row, position) in expected.chunks_mut(20).zip(positions) {
        rotate(&rope_spec, row, position, &freqs);
    }
    let off = worst(&as_f32s(&found[3]), &expected);
    assert!(off < 2e-6, "off by {off}");
}

#[test]
fn pairs_in_both_layouts_and_partial_rotations_agree_with_the_formula() {
    for pairs in [RopePairs::Halves, RopePairs::Interleaved] {
        for rotated in [24usize, 10] {
            let spec = Rope { head_dim: 24, pairs, magnitude: 1.1 };
            let freqs: Vec<f32> = (0..rotated / 2).map(|i| 0.9f32.powi(i as i32)).collect();
            let positions = [3u32, 0, 77];
            let x = numbers(3 * 72, 1.0);
            let stages = rope(DType::F32, &spec, (3, 72), rotated as u32 / 2, &LIMITS).unwrap();
            let args = [f32s(&x), u32s(&positions), f32s(&freqs), Data::Room(x.len() * 4)];
            let Some(found) = run(&stages.stages[0].launch, &args) else { return };
            let mut expected = x;
            for (row, position) in expected.chunks_mut(72).zip(positions) {
                rotate(&spec, row, position, &freqs);
            }
            let off = worst(&as_f32s(&found[3]), &expected);
            assert!(off < 1e-6, "{pairs:?} {rotated}: off by {off}");
        }
    }
}

#[test]
fn rows_of_every_type_are_rotated_and_rounded_once() {
    let (spec, freqs, positions) = (Rope { head_dim: 10, ..PLAIN }, [1.0, 0.5, 0.25, 0.125], [5, 9]);
    for dtype in FLOATS {
        let x = numbers(60, 2.0);
        let stages = rope(dtype, &spec, (2, 30), 4, &LIMITS).unwrap();
        let args = [data(dtype, &x), u32s(&positions), f32s(&freqs), room(dtype, 60)];
        let Some(found) = run(&stages.stages[0].launch, &args) else { return };
        let mut expected = rounded(dtype, &x);
        for (row, position) in expected.chunks_mut(30).zip(positions) {
            rotate(&spec, row, position, &freqs);
        }
        let tolerance = match dtype {
            DType::F32 => 1e-6,
            DType::F16 => 2e-3,
            _ => 2e-2,
        };
        assert!(worst(&floats(dtype, &found[3]), &expected) < tolerance, "{dtype}");
    }
}

pub(crate) fn kv_rows(dtype: DType, kv_heads: usize, head_dim: usize, tokens: u32) -> KvRows {
    KvRows { dtype, kv_heads, head_dim, value_dim: head_dim, tokens }
}

/// A cache of 6 blocks and two sequences in it: tokens at indices 31, 32 and 97, and one at index 0.
struct Cache {
    kv: KvRows,
    rows: Vec<u32>,
    blocks: Vec<u32>,
}

impl Cache {
    fn new(dtype: DType, kv_heads: usize, head_dim: usize) -> Cache {
        let kv = kv_rows(dtype, kv_heads, head_dim, 4);
        Cache { kv, rows: vec![0, 32, 0, 33, 0, 98, 4, 1], blocks: vec![3, 1, 5, 4, 0] }
    }

    /// Bytes of a row of so many elements.
    fn row_bytes(&self, dim: usize) -> usize {
        dim / self.kv.dtype.block_len() * self.kv.dtype.block_bytes()
    }

    fn bytes(&self, dim: usize) -> usize {
        6 * BLOCK_TOKENS * self.kv.kv_heads * self.row_bytes(dim)
    }

    /// What the cache holds after rows of heads of `d` were stored; the rest keeps the harness's pattern.
    fn expected(&self, rows: &[f32], d: usize) -> Vec<u8> {
        let mut bytes = vec![0xCD; self.bytes(d)];
        let row_bytes = self.row_bytes(d);
        for (token, row) in rows.chunks(self.kv.kv_heads * d).enumerate() {
            let (table, index) = (self.rows[2 * token] as usize, self.rows[2 * token + 1] as usize - 1);
            let block = self.blocks[table + index / BLOCK_TOKENS] as usize;
            for (head, row) in row.chunks(d).enumerate() {
                let at = (block * self.kv.kv_heads + head) * BLOCK_TOKENS + index % BLOCK_TOKENS;
                quantize(self.kv.dtype, row, &mut bytes[at * row_bytes..][..row_bytes]).unwrap();
            }
        }
        bytes
    }

    fn numbers(&self, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; bytes.len() / self.kv.dtype.block_bytes() * self.kv.dtype.block_len()];
        dequantize(self.kv.dtype, bytes, &mut out).unwrap();
        out
    }
}

const KV_TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];

#[test]
fn keys_and_values_are_stored_to_the_bit_as_the_reference_rounds_them() {
    for (dtype, kv_heads, [head_dim, value_dim]) in KV_TYPES.map(|t| (t, 2, [64; 2])).into_iter().chain([
        (DType::F32, 3, [26; 2]),
        (DType::F16, 1, [80; 2]),
        (DType::BF16, 2, [16; 2]),
        (DType::F16, 2, [30, 47]),
        (DType::Q8_0, 2, [96, 32]),
    ]) {
        let mut cache = Cache::new(dtype, kv_heads, head_dim);
        cache.kv.value_dim = value_dim;
        let n = 4 * kv_heads * head_dim;
        let mut k = numbers(n, 0.1);
        // Halves between two levels of a block of 8 bits.
        k[..32.min(n)].fill(0.5);
        k[..6].copy_from_slice(&[127.0, 1.5, 2.5, -0.5, -1.5, -2.5]);
        // Zeros, values of one size, tiny and huge ones.
        let n = 4 * kv_heads * value_dim;
        let mut v: Vec<f32> = numbers(n, 0.7).iter().map(|x| x * 1e-3).collect();
        v[..32.min(n)].fill(0.0);
        v[n - 8..].copy_from_slice(&[6e4, -1e-7, 0.5, 1.5, 2.5, -2.5, 1e-30, -0.0]);
        let stages = kv_write(&cache.kv, &LIMITS).unwrap();
        let [keys, values] = [head_dim, value_dim].map(|dim| Data::Room(cache.bytes(dim)));
        let args = [f32s(&k), f32s(&v), u32s(&cache.rows), u32s(&cache.blocks), keys, values];
        let Some(found) = run(&stages.stages[0].launch, &args) else { return };
        assert!(found[4] == cache.expected(&k, head_dim), "{dtype} keys");
        assert!(found[5] == cache.expected(&v, value_dim), "{dtype} values");
    }
}

#[test]
fn queries_are_returned_keys_and_values_stored_in_one_pass() {
    let layouts = [
        (DType::F32, 3, 1, 64, 32),
        (DType::F16, 2, 2, 80, 20),
        (DType::BF16, 1, 1, 26, 13),
        (DType::Q8_0, 6, 2, 96, 48),
    ];
    for (dtype, heads, kv_heads, head_dim, rotated) in layouts {
        for pairs in [RopePairs::Halves, RopePairs::Interleaved] {
            // All that are said, fewer, none.
            for count in [rotated, rotated / 2, 0] {
                for norm in [None, Some(1e-5f32)] {
                    fused_case((dtype, heads, kv_heads), (head_dim, pairs, count), norm, 1.0);
                }
            }
        }
    }
}

#[test]
fn heads_of_values_whose_squares_are_no_floats_are_normalised() {
    for size in [1e16, 1e25, 1.3e38] {
        fused_case((DType::F32, 2, 1), (64, RopePairs::Halves, 20), Some(1e-5), size);
    }
}

fn fused_case(
    (dtype, heads, kv_heads): (DType, usize, usize),
    (d, layout, pairs): (usize, RopePairs, usize),
    norm: Option<f32>,
    size: f32,
) {
    let cache = Cache::new(dtype, kv_heads, d);
    let spec = Rope { head_dim: d, pairs: layout, magnitude: 1.2 };
    let freqs: Vec<f32> = (0..pairs).map(|i| 0.8f32.powi(i as i32)).collect();
    let positions = [31u32, 32, 33, 0];
    let cols = (heads + 2 * kv_heads) * d;
    let qkv: Vec<f32> = numbers(4 * cols, 0.9).iter().map(|x| x * size).collect();
    let weights = [numbers(d, 3.0), numbers(d, 4.0)];
    let head_norm = norm.map(|eps| HeadNorm { eps, q: Slot::Input(3), k: Slot::Input(4) });
    let way = RopeKv {
        rope: &spec,
        kv: cache.kv,
        heads: heads as u32,
        pairs: pairs as u32,
        positions: Slot::Input(1),
        freqs: Slot::Input(2),
        norm: head_norm,
    };
    let stage = rope_kv_write(&way, Slot::Input(0), &LIMITS).unwrap();
    let weight = |i: usize| if norm.is_some() { f32s(&weights[i]) } else { Data::Unused };
    let room = Data::Room(cache.bytes(d));
    let args = [
        f32s(&qkv),
        u32s(&positions),
        f32s(&freqs),
        weight(0),
        weight(1),
        u32s(&cache.rows),
        u32s(&cache.blocks),
        Data::Room(4 * heads * d * 4),
        room.clone(),
        room,
    ];
    let Some(found) = run(&stage.launch, &args) else { return };
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    for (row, position) in qkv.chunks(cols).zip(positions) {
        let mut row = row.to_vec();
        if let Some(eps) = norm {
            for (i, head) in row[..(heads + kv_heads) * d].chunks_mut(d).enumerate() {
                let mean = head.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / d as f64;
                let unit = 1.0 / (mean + f64::from(eps)).sqrt();
                for (x, w) in head.iter_mut().zip(&weights[usize::from(i >= heads)]) {
                    *x = (f64::from(*x) * unit * f64::from(*w)) as f32;
                }
            }
        }
        rotate(&spec, &mut row[..(heads + kv_heads) * d], position, &freqs);
        q.extend_from_slice(&row[..heads * d]);
        k.extend_from_slice(&row[heads * d..(heads + kv_heads) * d]);
        v.extend_from_slice(&row[(heads + kv_heads) * d..]);
    }
    let off = worst(&as_f32s(&found[7]), &q);
    assert!(off < 3e-6, "{dtype}, {layout:?} {pairs}, norm {norm:?}: queries off by {off}");
    assert!(found[9] == cache.expected(&v, d), "{dtype} values");
    // A rotated key may lie a rounding of f32 away from the formula's, and so a level of the cache's type.
    let tolerance = match dtype {
        DType::F32 => 3e-6,
        DType::F16 => 5e-3,
        _ => 0.07,
    };
    let (stored, expected) = (cache.numbers(&found[8]), cache.numbers(&cache.expected(&k, d)));
    let touched: Vec<(f32, f32)> =
        stored.iter().copied().zip(expected).filter(|(a, b)| !(a.is_nan() && b.is_nan())).collect();
    let (a, b): (Vec<f32>, Vec<f32>) = touched.into_iter().unzip();
    let off = worst(&a, &b);
    assert!(off <= tolerance, "{dtype}, {layout:?} {pairs}, norm {norm:?}: keys off by {off}");
}

#[test]
fn shapes_that_no_kernel_takes_are_refused_by_name() {
    let error = kv_write(&kv_rows(DType::Q8_0, 2, 48, 1), &LIMITS).unwrap_err().to_string();
    assert!(error.contains("Q8_0") && error.contains("48"), "{error}");
    let error = rope(DType::F32, &PLAIN, (1, 64), 33, &LIMITS).unwrap_err().to_string();
    assert!(error.contains("33 frequencies"), "{error}");
    let error = rope(DType::U32, &PLAIN, (1, 64), 8, &LIMITS).unwrap_err().to_string();
    assert!(error.contains("U32"), "{error}");
}

#[test]
fn a_write_counts_the_rows_it_stores_and_not_the_cache() {
    let kv = KvRows { value_dim: 32, ..kv_rows(DType::Q8_0, 3, 64, 5) };
    let stages = kv_write(&kv, &LIMITS).unwrap();
    let touched: Vec<Moved> = stages.stages[0].slots()[3..].iter().map(|bound| bound.moved).collect();
    assert_eq!(touched, [20, 5 * 3 * 68, 5 * 3 * 34].map(Moved::Bytes));
}
