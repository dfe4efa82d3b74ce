//! Attention of tiles against softmax in f64.

use half::{bf16, f16};
use metallic_core::BLOCK_TOKENS;

use crate::simd::kv::{GROUP, GROUP_BYTES, SCALES_BYTES};
use crate::simd::tests::Random;
use crate::simd::{Isa, KvBlock, KvType, Seen, Tile, TileShape, store_key, store_value};

/// A sequence in the cache: what was stored, and what came of it.
struct Kept {
    kind: KvType,
    head_dim: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl Kept {
    /// `len` random positions; unwritten places of the last block hold NaN or nonsense.
    fn new(isa: Isa, kind: KvType, head_dim: usize, len: usize) -> Kept {
        let mut random = Random(11);
        let bytes = kind.block_bytes(head_dim);
        let all = vec![0xff; len.div_ceil(BLOCK_TOKENS) * bytes];
        let mut kept = Kept { kind, head_dim, keys: all.clone(), values: all };
        for position in 0..len {
            kept.put(isa, position, &random.floats(head_dim), &random.floats(head_dim));
        }
        kept
    }

    fn put(&mut self, isa: Isa, position: usize, key: &[f32], value: &[f32]) {
        let bytes = self.kind.block_bytes(self.head_dim);
        let (at, position) = (position / BLOCK_TOKENS * bytes, position % BLOCK_TOKENS);
        store_key(isa, self.kind, key, position, &mut self.keys[at..at + bytes]);
        store_value(isa, self.kind, value, position, &mut self.values[at..at + bytes]);
    }

    fn block(&self, block: usize) -> KvBlock<'_> {
        let bytes = self.kind.block_bytes(self.head_dim);
        let range = block * bytes..(block + 1) * bytes;
        KvBlock { keys: &self.keys[range.clone()], values: &self.values[range] }
    }

    /// Column `i` of a position, read back from the bytes the slow way.
    fn at(&self, keys: bool, position: usize, i: usize) -> f64 {
        let block = self.block(position / BLOCK_TOKENS);
        let (bytes, p) = (if keys { block.keys } else { block.values }, position % BLOCK_TOKENS);
        let index = |i: usize, columns: usize| if keys { i * BLOCK_TOKENS + p } else { p * columns + i };
        let two = |at: usize| [bytes[at], bytes[at + 1]];
        let plain = index(i, self.head_dim);
        match self.kind {
            KvType::F32 => f64::from(f32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[4 * plain + byte]))),
            KvType::F16 => f16::from_le_bytes(two(2 * plain)).to_f64(),
            KvType::BF16 => bf16::from_le_bytes(two(2 * plain)).to_f64(),
            KvType::Q8_0 => {
                let group = i / GROUP * GROUP_BYTES;
                let scale = f16::from_le_bytes(two(group + 2 * p)).to_f64();
                scale * f64::from(bytes[group + SCALES_BYTES + index(i % GROUP, GROUP)] as i8)
            }
        }
    }

    /// The formula, in f64.
    fn expected(&self, shape: &TileShape, token: usize, q: &[f32], scale: f32) -> Vec<f64> {
        let positions: Vec<usize> = (shape.first(token)..=shape.position + token).collect();
        let score = |p: &usize| {
            let dot: f64 = (0..q.len()).map(|i| self.at(true, *p, i) * f64::from(q[i])).sum();
            let score = dot * f64::from(scale);
            shape.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let scores: Vec<f64> = positions.iter().map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        let sum = |i| positions.iter().zip(&weights).map(|(p, w)| w * self.at(false, *p, i)).sum::<f64>();
        (0..q.len()).map(|i| sum(i) / total).collect()
    }
}

const SCALE: f32 = 0.7;

/// Results of a tile, `[queries, head_dim]`.
fn run(isa: Isa, shape: TileShape, kept: &Kept, q: &[f32]) -> Vec<f32> {
    let mut memory = vec![f32::NAN; shape.memory().unwrap()];
    let mut tile = Tile::new(shape, &mut memory);
    for (query, q) in q.chunks_exact(shape.head_dim).enumerate() {
        tile.set(query, q, SCALE);
    }
    for block in 0..(shape.position + shape.tokens).div_ceil(BLOCK_TOKENS) {
        tile.attend(isa, block, (kept.block(block), kept.block(0)));
    }
    let mut out = vec![0.0; q.len()];
    for (query, out) in out.chunks_exact_mut(shape.head_dim).enumerate() {
        let mut seen = Seen { top: f32::NEG_INFINITY, total: 0.0, sums: out };
        seen.add(isa, &tile.seen(query));
        seen.finish(isa);
    }
    out
}

/// Checks a tile against f64, and each of its tokens alone against the tile, bit for bit.
fn check(isa: Isa, shape: TileShape, kept: &Kept) {
    let (d, per_token) = (shape.head_dim, shape.group * shape.head_dim);
    let mut random = Random(12 + shape.position as u64);
    let q: Vec<f32> = random.floats(shape.queries() * d).iter().map(|q| q * 2.0).collect();
    let together = run(isa, shape, kept, &q);
    for (query, (found, q)) in together.chunks(d).zip(q.chunks(d)).enumerate() {
        let expected = kept.expected(&shape, query / shape.group, q, SCALE);
        for (found, expected) in found.iter().zip(expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-5, "{isa:?} {shape:?} query {query}: {found} for {expected}");
        }
    }
    for token in 0..shape.tokens {
        let alone = TileShape { tokens: 1, position: shape.position + token, ..shape };
        let range = token * per_token..(token + 1) * per_token;
        assert_eq!(run(isa, alone, kept, &q[range.clone()]), together[range], "{isa:?} {shape:?} {token}");
    }
    for head in 0..shape.group {
        let alone = TileShape { group: 1, ..shape };
        let of_head =
            |x: &[f32]| x.chunks(d).skip(head).step_by(shape.group).flatten().copied().collect::<Vec<_>>();
        assert_eq!(run(isa, alone, kept, &of_head(&q)), of_head(&together), "{isa:?} {shape:?} head {head}");
    }
}

#[test]
fn tiles_of_every_type_and_head_match_f64_and_their_queries_alone() {
    for isa in Isa::available() {
        for kind in KvType::ALL {
            for head_dim in [1usize, 15, 16, 24, 26, 32, 48, 64, 80, 96, 128, 256] {
                if kind == KvType::Q8_0 && !head_dim.is_multiple_of(GROUP) {
                    continue;
                }
                let kept = Kept::new(isa, kind, head_dim, 75);
                for group in [1, 3, 4, 7] {
                    let shape = TileShape {
                        kind,
                        head_dim,
                        value_dim: head_dim,
                        tokens: 5,
                        group,
                        position: 62,
                        window: None,
                        softcap: None,
                    };
                    check(isa, shape, &kept);
                }
            }
        }
    }
}

#[test]
fn tiles_across_block_borders_with_windows_and_caps_match_f64() {
    for isa in Isa::available() {
        for kind in [KvType::F32, KvType::Q8_0] {
            let kept = Kept::new(isa, kind, 32, 110);
            for position in [0, 1, 15, 27, 31, 32, 33, 60, 63, 64, 95] {
                for tokens in [1, 2, 11] {
                    for window in [None, Some(1), Some(5), Some(32), Some(33), Some(40)] {
                        for softcap in [None, Some(0.9)] {
                            let shape = TileShape {
                                kind,
                                head_dim: 32,
                                value_dim: 32,
                                tokens,
                                group: 2,
                                position,
                                window,
                                softcap,
                            };
                            check(isa, shape, &kept);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_was_seen_of_two_parts_adds_up_and_nothing_adds_nothing() {
    for isa in Isa::available() {
        let shape = TileShape {
            kind: KvType::F16,
            head_dim: 40,
            value_dim: 40,
            tokens: 1,
            group: 1,
            position: 90,
            window: None,
            softcap: None,
        };
        let kept = Kept::new(isa, KvType::F16, 40, 91);
        let q = Random(13).floats(40);
        let mut sums = vec![0.0; 40];
        let mut seen = Seen { top: f32::NEG_INFINITY, total: 0.0, sums: sums.as_mut_slice() };
        let mut memory = vec![0.0; shape.memory().unwrap()];
        let mut tile = Tile::new(shape, &mut memory);
        tile.set(0, &q, SCALE);
        for block in 0..3 {
            tile.attend(isa, block, (kept.block(block), kept.block(0)));
            seen.add(isa, &tile.seen(0));
            tile.clear();
            seen.add(isa, &tile.seen(0));
        }
        seen.finish(isa);
        for (found, expected) in sums.iter().zip(kept.expected(&shape, 0, &q, SCALE)) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{isa:?}: {found} for {expected}");
        }
    }
}

#[test]
fn a_nan_reaches_those_that_see_it_and_nobody_else() {
    for isa in Isa::available() {
        for kind in KvType::ALL {
            let mut row = [0.5; 32];
            row[3] = f32::NAN;
            for (key, value) in [([0.5; 32], row), (row, [0.5; 32])] {
                let mut kept = Kept::new(isa, kind, 32, 70);
                kept.put(isa, 66, &key, &value);
                let shape = TileShape {
                    kind,
                    head_dim: 32,
                    value_dim: 32,
                    tokens: 5,
                    group: 2,
                    position: 64,
                    window: None,
                    softcap: None,
                };
                let out = run(isa, shape, &kept, &[0.25; 10 * 32]);
                for (query, out) in out.chunks(32).enumerate() {
                    let sees = 64 + query / 2 >= 66;
                    assert_eq!(out[3].is_nan(), sees, "{isa:?} {kind:?} query {query}");
                    assert!(sees || out.iter().all(|x| x.is_finite()), "{isa:?} {kind:?} query {query}");
                }
            }
        }
    }
}

#[test]
fn scores_too_small_for_a_number_give_zeros_and_large_ones_the_greatest() {
    for isa in Isa::available() {
        let mut kept = Kept::new(isa, KvType::F32, 16, 40);
        let shape = TileShape {
            kind: KvType::F32,
            head_dim: 16,
            value_dim: 16,
            tokens: 1,
            group: 1,
            position: 39,
            window: None,
            softcap: None,
        };
        kept.put(isa, 35, &[9.0; 16], &[2.5; 16]);
        assert_eq!(run(isa, shape, &kept, &[1e4; 16]), [2.5; 16], "{isa:?}");
        for position in 0..40 {
            kept.put(isa, position, &[f32::NEG_INFINITY; 16], &[1.0; 16]);
        }
        assert_eq!(run(isa, shape, &kept, &[1.0; 16]), [0.0; 16], "{isa:?}");
    }
}

#[test]
fn blocks_keep_what_is_stored_wherever_it_is_put() {
    let mut random = Random(14);
    for isa in Isa::available() {
        for kind in KvType::ALL {
            let head_dim = if kind == KvType::Q8_0 { 64 } else { 37 };
            let mut kept = Kept::new(isa, kind, head_dim, 64);
            let rows: Vec<[Vec<f32>; 2]> =
                (0..64).map(|_| [random.floats(head_dim), random.floats(head_dim)]).collect();
            for position in (0..64).rev() {
                kept.put(isa, position, &rows[position][0], &rows[position][1]);
            }
            for (position, [key, value]) in rows.iter().enumerate() {
                for i in 0..head_dim {
                    let found = [kept.at(true, position, i), kept.at(false, position, i)];
                    for (found, x) in found.iter().zip([key[i], value[i]]) {
                        assert!((found - f64::from(x)).abs() <= 0.005, "{isa:?} {kind:?}: {found} for {x}");
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "for heads of 48 in Q8_0")]
fn a_head_of_partial_groups_is_refused() {
    store_key(Isa::Portable, KvType::Q8_0, &[0.0; 48], 0, &mut [0; GROUP_BYTES]);
}

#[test]
#[should_panic(expected = "keys of 64 and values of 2048 bytes")]
fn a_block_of_another_size_is_refused() {
    let shape = TileShape {
        kind: KvType::F32,
        head_dim: 16,
        value_dim: 16,
        tokens: 1,
        group: 1,
        position: 0,
        window: None,
        softcap: None,
    };
    let mut memory = vec![0.0; shape.memory().unwrap()];
    let block = KvBlock { keys: &[0; 64], values: &[0; 2048] };
    Tile::new(shape, &mut memory).attend(Isa::detect(), 0, (block, block));
}

#[test]
fn tiles_whose_memory_cannot_be_counted_have_none() {
    let shape = |head_dim, value_dim, tokens, group| TileShape {
        kind: KvType::F32,
        head_dim,
        value_dim,
        tokens,
        group,
        position: 0,
        window: None,
        softcap: None,
    };
    assert_eq!(shape(17, 16, 2, 3).memory(), Some(6 * (32 + 16 + 32 + 3)));
    let most = usize::MAX;
    for (head_dim, value_dim, tokens, group) in [
        (most, 1, 1, 1),
        (1, most - 3, 1, 1),
        (most / 2, most / 2, 1, 1),
        (1, 1, most / 2, 3),
        (64, 64, most / 64, 1),
    ] {
        let shape = shape(head_dim, value_dim, tokens, group);
        assert_eq!(shape.memory(), None, "{shape:?}");
    }
}
