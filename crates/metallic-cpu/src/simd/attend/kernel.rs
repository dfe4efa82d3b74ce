//! The inner loops of attention: scores, weights, weighted sums.

use metallic_core::BLOCK_TOKENS;

use super::{KvBlock, Tile, finite};
use crate::simd::format::{BF16, Element, F16, F32, I8};
use crate::simd::kv::{GROUP, GROUP_BYTES, KvType, SCALES_BYTES};
use crate::simd::lanes::Lanes;
use crate::simd::math::exp;

/// Whether numbers are times a scale of their group: bytes are those of q8_0.
const fn scaled<E: Element>() -> bool {
    E::SIZE == 1
}

/// Rows of broadcast numbers times a matrix of the cache.
#[derive(Clone, Copy)]
struct Product {
    /// Row `r` begins at `r * row`.
    a: *const f32,
    row: usize,
    /// `[depth][columns]`, lines `line` bytes apart.
    b: *const u8,
    line: usize,
    depth: usize,
    /// Bytes from `b` to the same place of the next block, which is asked for meanwhile: blocks lie apart, and the
    /// processor looks no further than a page.
    ahead: isize,
}

impl Product {
    /// `Σ a[r][k] * b[k]`, even and odd `k` apart, then together.
    ///
    /// # Safety
    /// The caller has the features of `L`; `a` has `R` rows of `depth` numbers, `b` `depth` lines with `16 V`
    /// numbers from column `from` on.
    #[inline(always)]
    unsafe fn sums<L: Lanes, E: Element, const R: usize, const V: usize>(
        self,
        from: usize,
    ) -> [[L::F; V]; R] {
        // SAFETY: `k < depth`, for which the caller vouches.
        unsafe {
            let b = self.b.add(from * E::SIZE);
            let mut chains = [[[L::splat(0.0); V]; R]; 2];
            let mut k = 0;
            while k + 2 <= self.depth {
                for c in 0..2 {
                    self.step::<L, E, R, V>(b, k + c, &mut chains[c]);
                }
                k += 2;
            }
            if k < self.depth {
                self.step::<L, E, R, V>(b, k, &mut chains[0]);
            }
            let [mut sums, odd] = chains;
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = L::add(sums[r][v], odd[r][v]);
                }
            }
            sums
        }
    }

    /// # Safety
    /// As [`Product::sums`], with `k < depth`.
    #[inline(always)]
    unsafe fn step<L: Lanes, E: Element, const R: usize, const V: usize>(
        self,
        b: *const u8,
        k: usize,
        sums: &mut [[L::F; V]; R],
    ) {
        // SAFETY: by the caller.
        unsafe {
            let mut line = [L::splat(0.0); V];
            let at = b.add(k * self.line);
            for part in 0..(16 * V * E::SIZE).div_ceil(64) {
                L::prefetch(at.wrapping_offset(self.ahead).wrapping_add(64 * part));
            }
            for v in 0..V {
                line[v] = E::load::<L>(at.add(16 * v * E::SIZE));
            }
            for r in 0..R {
                let a = L::splat(*self.a.add(r * self.row + k));
                for v in 0..V {
                    sums[r][v] = L::fma(a, line[v], sums[r][v]);
                }
            }
        }
    }
}

/// Something done for a few queries at a time.
trait Rows {
    /// # Safety
    /// The caller has the features of `L`, and `R` queries from `query` on are in the tile.
    unsafe fn run<L: Lanes, E: Element, const R: usize>(&self, query: usize);
}

/// # Safety
/// The caller has the features of `L`; the queries are in the tile of `rows`.
#[inline(always)]
unsafe fn by_rows<L: Lanes, E: Element>((from, to): (usize, usize), rows: &impl Rows) {
    let mut at = from;
    while at < to {
        let count = L::PANEL_ROWS.min(to - at);
        // SAFETY: by the caller; `count` queries are left.
        unsafe {
            match count {
                6 if L::PANEL_ROWS >= 6 => rows.run::<L, E, 6>(at),
                5 if L::PANEL_ROWS >= 5 => rows.run::<L, E, 5>(at),
                4 if L::PANEL_ROWS >= 4 => rows.run::<L, E, 4>(at),
                3 if L::PANEL_ROWS >= 3 => rows.run::<L, E, 3>(at),
                2 if L::PANEL_ROWS >= 2 => rows.run::<L, E, 2>(at),
                _ => rows.run::<L, E, 1>(at),
            }
        }
        at += count;
    }
}

/// Scores of a block: `out [queries, 32] = q · keys`.
struct Scores {
    q: *const f32,
    row: usize,
    head_dim: usize,
    keys: *const u8,
    out: *mut f32,
    /// As in [`Product`].
    ahead: isize,
}

impl Scores {
    /// Scores of 16 `V` positions from `from` on.
    ///
    /// # Safety
    /// As [`Rows::run`].
    #[inline(always)]
    unsafe fn part<L: Lanes, E: Element, const R: usize, const V: usize>(&self, query: usize, from: usize) {
        // SAFETY: `head_dim` elements of `R` queries and as many lines of 32 keys; rows of 32 scores.
        unsafe {
            let line = BLOCK_TOKENS * E::SIZE;
            let a = self.q.add(query * self.row);
            let mut total = [[L::splat(0.0); V]; R];
            if scaled::<E>() {
                for group in 0..self.head_dim / GROUP {
                    let scales = self.keys.add(group * GROUP_BYTES);
                    let (a, b) = (a.add(group * GROUP), scales.add(SCALES_BYTES));
                    let product = Product { a, row: self.row, b, line, depth: GROUP, ahead: self.ahead };
                    let sums = product.sums::<L, E, R, V>(from);
                    for v in 0..V {
                        let scale = L::load_f16(scales.add(2 * (from + 16 * v)));
                        for r in 0..R {
                            total[r][v] = L::fma(sums[r][v], scale, total[r][v]);
                        }
                    }
                }
            } else {
                let product =
                    Product { a, row: self.row, b: self.keys, line, depth: self.head_dim, ahead: self.ahead };
                total = product.sums::<L, E, R, V>(from);
            }
            for r in 0..R {
                for v in 0..V {
                    L::store(total[r][v], self.out.add((query + r) * BLOCK_TOKENS + from + 16 * v));
                }
            }
        }
    }
}

impl Rows for Scores {
    #[inline(always)]
    unsafe fn run<L: Lanes, E: Element, const R: usize>(&self, query: usize) {
        // SAFETY: by the caller; two halves are a block.
        unsafe {
            if L::PANEL_WIDE || R == 1 {
                self.part::<L, E, R, 2>(query, 0);
            } else {
                self.part::<L, E, R, 1>(query, 0);
                self.part::<L, E, R, 1>(query, 16);
            }
        }
    }
}

/// Weighted sums of a block's values: `sums [queries, row] = sums * shrink + weights · values`, over the positions
/// `seen`, the same for all queries.
struct Weighted {
    weights: *const f32,
    seen: (usize, usize),
    values: *const u8,
    /// Bytes between the values of two positions.
    line: usize,
    /// Columns, a multiple of 16.
    columns: usize,
    sums: *mut f32,
    row: usize,
    shrinks: *const f32,
    /// As in [`Product`].
    ahead: isize,
}

impl Weighted {
    /// Sums of 16 `V` columns from `from` on; `from` counts in `values` as in `sums`.
    ///
    /// # Safety
    /// As [`Rows::run`]; `weights` has `R` rows of 32, and `values` lines for all positions seen.
    #[inline(always)]
    unsafe fn part<L: Lanes, E: Element, const R: usize, const V: usize>(
        &self,
        query: usize,
        (weights, values): (*const f32, *const u8),
        (from, to): (usize, usize),
    ) {
        // SAFETY: positions seen are below 32, columns within rows of values and sums (caller).
        unsafe {
            let (first, end) = self.seen;
            let (a, b) = (weights.add(first), values.add(first * self.line));
            let product =
                Product { a, row: BLOCK_TOKENS, b, line: self.line, depth: end - first, ahead: self.ahead };
            let sums = product.sums::<L, E, R, V>(from);
            for r in 0..R {
                let shrink = L::splat(*self.shrinks.add(query + r));
                for v in 0..V {
                    let at = self.sums.add((query + r) * self.row + to + 16 * v);
                    L::store(L::fma(L::load(at), shrink, sums[r][v]), at);
                }
            }
        }
    }

    /// # Safety
    /// As [`Weighted::part`], for all of `columns`.
    #[inline(always)]
    unsafe fn all<L: Lanes, E: Element, const R: usize>(
        &self,
        query: usize,
        (weights, values): (*const f32, *const u8),
        (columns, to): (usize, usize),
    ) {
        // SAFETY: parts are within the columns.
        unsafe {
            let mut at = 0;
            if L::PANEL_WIDE || R == 1 {
                while at + 32 <= columns {
                    self.part::<L, E, R, 2>(query, (weights, values), (at, to + at));
                    at += 32;
                }
            }
            while at < columns {
                self.part::<L, E, R, 1>(query, (weights, values), (at, to + at));
                at += 16;
            }
        }
    }
}

impl Rows for Weighted {
    #[inline(always)]
    unsafe fn run<L: Lanes, E: Element, const R: usize>(&self, query: usize) {
        // SAFETY: by the caller; a group of q8_0 holds the scales of 32 positions before its values.
        unsafe {
            let weights = self.weights.add(query * BLOCK_TOKENS);
            if !scaled::<E>() {
                self.all::<L, E, R>(query, (weights, self.values), (self.columns, 0));
                return;
            }
            for group in 0..self.columns / GROUP {
                let scales = self.values.add(group * GROUP_BYTES);
                let mut scaled = [[0.0; BLOCK_TOKENS]; R];
                for half in [0, 16] {
                    let scale = L::load_f16(scales.add(2 * half));
                    for r in 0..R {
                        let weight = L::load(weights.add(r * BLOCK_TOKENS + half));
                        L::store(L::mul(weight, scale), scaled[r].as_mut_ptr().add(half));
                    }
                }
                let from = (scaled.as_ptr().cast(), scales.add(SCALES_BYTES));
                self.all::<L, E, R>(query, from, (GROUP, group * GROUP));
            }
        }
    }
}

/// # Safety
/// The caller has the features of `L`; `kv` has the bytes of a block of the tile's shape.
#[inline(always)]
pub(super) unsafe fn attend_body<L: Lanes>(
    tile: &mut Tile<'_>,
    block: usize,
    kv: KvBlock<'_>,
    next: KvBlock<'_>,
) {
    // SAFETY: features and bytes by the caller.
    unsafe {
        match tile.shape.kind {
            KvType::F32 => attend_as::<L, F32>(tile, block, kv, next),
            KvType::F16 => attend_as::<L, F16>(tile, block, kv, next),
            KvType::BF16 => attend_as::<L, BF16>(tile, block, kv, next),
            KvType::Q8_0 => attend_as::<L, I8>(tile, block, kv, next),
        }
    }
}

/// # Safety
/// As [`attend_body`], for a cache of `E`.
#[inline(always)]
unsafe fn attend_as<L: Lanes, E: Element>(
    tile: &mut Tile<'_>,
    block: usize,
    kv: KvBlock<'_>,
    next: KvBlock<'_>,
) {
    let shape = tile.shape;
    let (group, value_dim) = (shape.group, shape.value_dim);
    // Tokens that see something of the block are neighbours.
    let sees = |token: &usize| shape.seen(*token, block).0 < shape.seen(*token, block).1;
    let Some(first) = (0..shape.tokens).find(sees) else { return };
    let end = (first..shape.tokens).find(|token| !sees(token)).unwrap_or(shape.tokens);

    let scores = Scores {
        q: tile.q.as_ptr(),
        row: shape.q_row(),
        head_dim: shape.head_dim,
        keys: kv.keys.as_ptr(),
        out: tile.weights.as_mut_ptr(),
        ahead: distance(kv.keys, next.keys),
    };
    // SAFETY: the tile has all these queries, and the keys were checked.
    unsafe { by_rows::<L, E>((first * group, end * group), &scores) };
    for token in first..end {
        let seen = shape.seen(token, block);
        for query in token * group..(token + 1) * group {
            let weights = tile.weights.as_chunks_mut::<BLOCK_TOKENS>().0;
            let state = (&mut tile.tops[query], &mut tile.totals[query]);
            tile.shrinks[query] = weigh::<L>(&mut weights[query], seen, shape.softcap, state);
        }
    }

    // Columns after the last whole vector, filled up with zeros: [32, 16]
    let whole = value_dim / 16 * 16;
    let rest = value_dim - whole;
    let mut tail = [[0u8; 64]; BLOCK_TOKENS];
    if rest > 0 {
        for (tail, values) in tail.iter_mut().zip(kv.values.chunks_exact(value_dim * E::SIZE)) {
            tail[..rest * E::SIZE].copy_from_slice(&values[whole * E::SIZE..]);
        }
    }
    let mut token = first;
    while token < end {
        let seen = shape.seen(token, block);
        let mut same = token + 1;
        while same < end && shape.seen(same, block) == seen {
            same += 1;
        }
        let mut sums = Weighted {
            weights: tile.weights.as_ptr(),
            seen,
            values: kv.values.as_ptr(),
            line: if scaled::<E>() { GROUP } else { value_dim * E::SIZE },
            columns: whole,
            sums: tile.sums.as_mut_ptr(),
            row: shape.sum_row(),
            shrinks: tile.shrinks.as_ptr(),
            ahead: distance(kv.values, next.values),
        };
        // SAFETY: the tile has these queries, and the values were checked; the tail has rows of 64 bytes.
        unsafe {
            by_rows::<L, E>((token * group, same * group), &sums);
            if rest > 0 {
                sums.values = tail.as_ptr().cast();
                (sums.line, sums.columns, sums.ahead) = (64, 16, 0);
                sums.sums = sums.sums.add(whole);
                by_rows::<L, E>((token * group, same * group), &sums);
            }
        }
        token = same;
    }
}

/// From one block to another, for hints alone.
#[inline(always)]
fn distance(from: &[u8], to: &[u8]) -> isize {
    to.as_ptr().addr().wrapping_sub(from.as_ptr().addr()).cast_signed()
}

/// Makes the scores of a block weights: `exp(score - top)` for the positions seen, zero elsewhere. What earlier
/// weights are to be multiplied with.
#[inline(always)]
fn weigh<L: Lanes>(
    scores: &mut [f32; BLOCK_TOKENS],
    (from, to): (usize, usize),
    softcap: Option<f32>,
    (top, total): (&mut f32, &mut f32),
) -> f32 {
    if let Some(cap) = softcap {
        let inverse = 1.0 / cap;
        for s in &mut *scores {
            // tanh x = 1 - 2 / (exp(2 x) + 1)
            *s = cap * (1.0 - 2.0 / (exp::<L>(2.0 * (*s * inverse)) + 1.0));
        }
    }
    if (from, to) != (0, BLOCK_TOKENS) {
        for (i, s) in scores.iter_mut().enumerate() {
            *s = if i >= from && i < to { *s } else { f32::NEG_INFINITY };
        }
    }
    let mut tops = *scores;
    for width in [16, 8, 4, 2, 1] {
        for i in 0..width {
            tops[i] = if tops[i + width] > tops[i] { tops[i + width] } else { tops[i] };
        }
    }
    // With a NaN among the scores any top will do: its weight makes everything NaN.
    let here = tops[0];
    let mut shrink = 1.0;
    if here > *top {
        shrink = exp::<L>(*top - here);
        *top = here;
    }
    let base = finite(*top);
    let mut sums = [0.0; BLOCK_TOKENS];
    for (s, sum) in scores.iter_mut().zip(&mut sums) {
        *s = exp::<L>(*s - base);
        *sum = *s;
    }
    for width in [16, 8, 4, 2, 1] {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    *total = *total * shrink + sums[0];
    shrink
}
