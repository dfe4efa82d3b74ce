//! Steps over a paged cache for the tests of attention, and what must come out of them.

use metallic_core::quant::{dequantize, quantize};
use metallic_core::{Attention, BLOCK_TOKENS, DType, StateId};

use super::AttentionSpec;
use crate::kernels::harness::{Data, as_f32s, f32s, run, u32s};
use crate::kernels::{Slot, Stages, StepTable, TILE_TOKENS};
use crate::step::{StepCounts, StepShape};

/// Plain attention of 6 query heads over 2 key/value heads of 64.
pub(crate) const GROUPED: Attention = Attention {
    state: StateId(0),
    heads: 6,
    kv_heads: 2,
    head_dim: 64,
    value_dim: 64,
    scale: 0.125,
    window: None,
    softcap: None,
    sinks: false,
};

/// A step: sequences of `(past, tokens)` over a cache whose blocks are in no order.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) attention: Attention,
    pub(crate) kv: DType,
    pub(crate) sequences: Vec<(usize, usize)>,
    /// A token that sees nothing stands before the others.
    pub(crate) blind: bool,
    pub(crate) sinks: Option<Vec<f32>>,
    /// Factor on the queries.
    pub(crate) strength: f32,
}

impl Scene {
    /// Values are of the keys' size.
    pub(crate) fn new(attention: Attention, kv: DType, sequences: &[(usize, usize)]) -> Scene {
        let attention = Attention { value_dim: attention.head_dim, ..attention };
        Scene { attention, kv, sequences: sequences.to_vec(), blind: false, sinks: None, strength: 1.0 }
    }

    fn tokens(&self) -> usize {
        usize::from(self.blind) + self.sequences.iter().map(|s| s.1).sum::<usize>()
    }

    pub(crate) fn spec(&self) -> AttentionSpec {
        let lengths = || self.sequences.iter().map(|(past, tokens)| past + tokens);
        AttentionSpec {
            attention: self.attention,
            shape: StepShape {
                tokens: self.tokens(),
                outputs: 1,
                tiles: self.tables().tiles.len() / 4,
                visible: lengths().max().unwrap_or(0),
                ..StepShape::default()
            },
            kv: self.kv,
            sinks: self.sinks.as_ref().map(|_| Slot::Input(2)),
        }
    }

    pub(crate) fn counts(&self) -> StepCounts {
        StepCounts {
            tokens: self.tokens(),
            tiles: self.tables().tiles.len() / 4,
            seen: self.sequences.iter().flat_map(|(past, tokens)| past + 1..past + tokens + 1).sum(),
            tiles_see: self.tables().tiles.chunks(4).map(|t| (t[3] + t[1] - 1) as usize).sum(),
            sequences: self.sequences.len(),
            held: self.sequences.iter().map(|(past, tokens)| past + tokens).sum(),
        }
    }

    fn tables(&self) -> Tables {
        let total: usize = self.sequences.iter().map(|(p, n)| (p + n).div_ceil(BLOCK_TOKENS)).sum();
        // Every block of a cache of twice the size has one owner, far from its neighbours.
        let mut free = (0..2 * total).map(|i| ((i * 7 + 3) % (2 * total).max(1)) as u32);
        let stride_hits_all = !(2 * total).is_multiple_of(7);
        let (mut rows, mut tiles, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        let mut token = 0;
        if self.blind {
            rows.extend([0, 0]);
            token = 1;
        }
        for (past, count) in &self.sequences {
            let table = blocks.len();
            for i in 0..*count {
                rows.extend([table as u32, (past + i + 1) as u32]);
            }
            for first in (0..*count).step_by(TILE_TOKENS) {
                let here = TILE_TOKENS.min(count - first);
                tiles.extend([token + first, here, table, past + first + 1].map(|n| n as u32));
            }
            token += count;
            for i in 0..(past + count).div_ceil(BLOCK_TOKENS) {
                let block = if stride_hits_all { free.next() } else { None };
                blocks.push(block.unwrap_or((2 * total - 1 - table - i) as u32));
            }
        }
        Tables { rows, tiles, blocks, total: 2 * total }
    }

    fn queries(&self) -> Vec<f32> {
        let n = self.tokens() * self.attention.heads * self.attention.head_dim;
        (0..n).map(|i| noise(i, 1) * 2.0 * self.strength).collect()
    }

    /// The cache of rows of `dim`: poison where nobody wrote, and what the written rows read as, by `(sequence, index, head)`.
    fn cache(&self, dim: usize, seed: usize) -> (Vec<u8>, Vec<f32>) {
        let (a, tables) = (&self.attention, self.tables());
        let row_bytes = dim / self.kv.block_len() * self.kv.block_bytes();
        let mut bytes = vec![0xFF; tables.total * a.kv_heads * BLOCK_TOKENS * row_bytes];
        let mut numbers = Vec::new();
        let mut table = 0;
        for (sequence, (past, count)) in self.sequences.iter().enumerate() {
            for index in 0..past + count {
                let block = tables.blocks[table + index / BLOCK_TOKENS] as usize;
                for head in 0..a.kv_heads {
                    let salt = ((sequence * 10007 + index) * a.kv_heads + head) * dim;
                    let row: Vec<f32> = (0..dim).map(|i| noise(salt + i, seed)).collect();
                    let at = ((block * a.kv_heads + head) * BLOCK_TOKENS + index % BLOCK_TOKENS) * row_bytes;
                    let stored = &mut bytes[at..at + row_bytes];
                    quantize(self.kv, &row, stored).unwrap();
                    let mut back = vec![0.0; dim];
                    dequantize(self.kv, stored, &mut back).unwrap();
                    numbers.extend(back);
                }
            }
            table += (past + count).div_ceil(BLOCK_TOKENS);
        }
        (bytes, numbers)
    }

    /// The formula, in f64.
    pub(crate) fn expected(&self) -> Vec<f32> {
        let (a, q) = (&self.attention, self.queries());
        let (d, dv) = (a.head_dim, a.value_dim);
        let (keys, values) = (self.cache(d, 2).1, self.cache(dv, 3).1);
        let mut out = vec![0.0; usize::from(self.blind) * a.heads * dv];
        let (mut base, mut token) = (0, usize::from(self.blind));
        for (past, count) in &self.sequences {
            for i in 0..*count {
                let end = past + i + 1;
                let begin = a.window.map_or(0, |w| end.saturating_sub(w));
                for head in 0..a.heads {
                    let query = &q[(token * a.heads + head) * d..][..d];
                    let at = |index: usize| (base + index) * a.kv_heads + head / (a.heads / a.kv_heads);
                    let scores: Vec<f64> = (begin..end)
                        .map(|j| dot(query, &keys[at(j) * d..][..d]) * f64::from(a.scale))
                        .map(|s| a.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh()))
                        .collect();
                    let sink = self.sinks.as_ref().map(|s| f64::from(s[head]));
                    let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - top).exp()).sum();
                    let mut row = vec![0f64; dv];
                    for (j, s) in (begin..end).zip(&scores) {
                        let weight = (s - top).exp() / sum;
                        for (row, v) in row.iter_mut().zip(&values[at(j) * dv..][..dv]) {
                            *row += weight * f64::from(*v);
                        }
                    }
                    out.extend(row.iter().map(|x| *x as f32));
                }
                token += 1;
            }
            base += past + count;
        }
        out
    }

    /// What the stages make of it; `None` without clang.
    pub(crate) fn run(&self, stages: &Stages) -> Option<Vec<f32>> {
        let tables = self.tables();
        let Attention { heads, head_dim, value_dim, .. } = self.attention;
        let (q, keys, values) = (self.queries(), self.cache(head_dim, 2).0, self.cache(value_dim, 3).0);
        let mut scratch: Vec<Data> = stages.scratch.iter().map(|bytes| Data::Room(*bytes)).collect();
        let mut out = Vec::new();
        for stage in &stages.stages {
            let args: Vec<Data> = stage
                .slots()
                .iter()
                .map(|bound| match &bound.slot {
                    Slot::Input(0) => f32s(&q),
                    Slot::Input(_) => f32s(self.sinks.as_deref().unwrap_or_default()),
                    Slot::Keys => Data::Bytes(keys.clone()),
                    Slot::Values => Data::Bytes(values.clone()),
                    Slot::Step(StepTable::Rows) => u32s(&tables.rows),
                    Slot::Step(StepTable::Tiles) => u32s(&tables.tiles),
                    Slot::Step(_) => u32s(&tables.blocks),
                    Slot::Output => Data::Room(self.tokens() * heads * value_dim * 4),
                    Slot::Scratch(i) => scratch[*i].clone(),
                    Slot::Unused => Data::Unused,
                    other => panic!("attention has no {other:?}"),
                })
                .collect();
            let found = run(&stage.launch, &args)?;
            for (bound, bytes) in stage.slots().iter().zip(found) {
                match &bound.slot {
                    Slot::Scratch(i) => scratch[*i] = Data::Bytes(bytes),
                    Slot::Output => out = as_f32s(&bytes),
                    _ => {}
                }
            }
        }
        Some(out)
    }

    /// Compares the two.
    pub(crate) fn check(&self, stages: &Stages, tolerance: f32) {
        let Some(found) = self.run(stages) else { return };
        let expected = self.expected();
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = (found - expected).abs();
            assert!(off <= tolerance, "{self:?}: element {i} is {found}, not {expected}");
        }
    }
}

struct Tables {
    rows: Vec<u32>,
    tiles: Vec<u32>,
    blocks: Vec<u32>,
    total: usize,
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Numbers in -1..1 that look random.
pub(crate) fn noise(i: usize, seed: usize) -> f32 {
    let mut x =
        (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed as u64 * 0x1234_5678_9ABC_DEF1);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x >> 40) as f32 / (1u32 << 23) as f32) - 1.0
}
