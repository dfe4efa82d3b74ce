//! Attention of a tile of queries over one block of the cache, with a running softmax.
//!
//! Scores and weighted sums are one product, rows of broadcast numbers times a matrix that lies in the cache as the
//! lanes want it. Every sum of a query is made in an order that depends on its own positions alone, so its bits do
//! not depend on the queries beside it.

mod kernel;
#[cfg(test)]
mod tests;

use metallic_core::BLOCK_TOKENS;

use super::isa::{Isa, dispatch};
use super::kv::{GROUP, KvType};
use kernel::attend_body;

/// One head's keys and values of one block, as `store_key` and `store_value` leave them.
#[derive(Clone, Copy, Debug)]
pub struct KvBlock<'a> {
    /// [`KvType::block_bytes`] of them.
    pub keys: &'a [u8],
    /// As many for heads of values.
    pub values: &'a [u8],
}

/// What the queries of a tile have in common.
#[derive(Clone, Copy, Debug)]
pub struct TileShape {
    /// How the cache keeps keys and values.
    pub kind: KvType,
    /// Elements of a query's and a key's head.
    pub head_dim: usize,
    /// Elements of a value's head.
    pub value_dim: usize,
    /// Neighbouring tokens.
    pub tokens: usize,
    /// Query heads of a token that read this key/value head.
    pub group: usize,
    /// Position of the first token; each sees itself and what came before,
    pub position: usize,
    /// as far back as this, itself counted.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
}

impl TileShape {
    /// Queries of the tile: token by token, head by head.
    pub fn queries(&self) -> usize {
        self.tokens * self.group
    }

    /// Elements of a query in memory: whole vectors.
    fn q_row(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Elements of a result in memory: whole vectors.
    fn sum_row(&self) -> usize {
        self.value_dim.next_multiple_of(16)
    }

    /// The first position a token of the tile sees.
    pub fn first(&self, token: usize) -> usize {
        self.window.map_or(0, |window| (self.position + token + 1).saturating_sub(window))
    }

    /// The positions of block `block` that `token` sees, counted from the block's first: from, to.
    fn seen(&self, token: usize, block: usize) -> (usize, usize) {
        let base = block * BLOCK_TOKENS;
        let to = (self.position + token + 1).saturating_sub(base).min(BLOCK_TOKENS);
        (self.first(token).saturating_sub(base).min(to), to)
    }

    /// f32s a [`Tile`] needs; `None` for more than this machine can count, which 32 bits soon are.
    pub fn memory(&self) -> Option<usize> {
        let queries = self.tokens.checked_mul(self.group)?;
        let [q_row, sum_row] = [self.head_dim, self.value_dim].map(|dim| dim.checked_next_multiple_of(16));
        let each = q_row?.checked_add(sum_row?)?.checked_add(BLOCK_TOKENS + 3)?;
        queries.checked_mul(each)
    }
}

/// Queries and what they have seen so far: for each the greatest score, the sum of the weights, and the
/// weighted sum of values, weights being `exp(score - greatest)`.
#[derive(Debug)]
pub struct Tile<'a> {
    shape: TileShape,
    /// `[queries, q_row]`
    q: &'a mut [f32],
    /// `[queries, sum_row]`
    sums: &'a mut [f32],
    /// Scores, then weights, of one block: `[queries, 32]`
    weights: &'a mut [f32],
    /// `[queries]`, as are the next.
    tops: &'a mut [f32],
    totals: &'a mut [f32],
    /// What the last block made of earlier weights.
    shrinks: &'a mut [f32],
}

impl<'a> Tile<'a> {
    /// A tile in `memory`, of [`TileShape::memory`] elements; queries are what was there, nothing is seen.
    pub fn new(shape: TileShape, memory: &'a mut [f32]) -> Tile<'a> {
        // Every size below is a part of this one, so none of them wraps either.
        assert_eq!(Some(memory.len()), shape.memory(), "memory of {shape:?}");
        let n = shape.queries();
        let (q, rest) = memory.split_at_mut(n * shape.q_row());
        let (sums, rest) = rest.split_at_mut(n * shape.sum_row());
        let (weights, rest) = rest.split_at_mut(n * BLOCK_TOKENS);
        let (tops, rest) = rest.split_at_mut(n);
        let (totals, shrinks) = rest.split_at_mut(n);
        let mut tile = Tile { shape, q, sums, weights, tops, totals, shrinks };
        tile.clear();
        tile
    }

    /// Sets a query, times `scale`.
    pub fn set(&mut self, query: usize, q: &[f32], scale: f32) {
        assert_eq!(q.len(), self.shape.head_dim, "elements of a query");
        let row = &mut self.q[query * self.shape.q_row()..][..self.shape.q_row()];
        for (to, from) in row.iter_mut().zip(q) {
            *to = from * scale;
        }
    }

    /// Forgets what was seen.
    pub fn clear(&mut self) {
        self.sums.fill(0.0);
        self.tops.fill(f32::NEG_INFINITY);
        self.totals.fill(0.0);
    }

    /// What a query has seen.
    pub fn seen(&self, query: usize) -> Seen<&[f32]> {
        let sums = &self.sums[query * self.shape.sum_row()..][..self.shape.value_dim];
        Seen { top: self.tops[query], total: self.totals[query], sums }
    }

    /// Attends to block `block` of the sequence, and asks the memory for the one that comes next (or any).
    pub fn attend(&mut self, isa: Isa, block: usize, (kv, next): (KvBlock<'_>, KvBlock<'_>)) {
        let TileShape { kind, head_dim, value_dim, .. } = self.shape;
        let fits = |bytes: &[u8], dim: usize| {
            (kind != KvType::Q8_0 || dim.is_multiple_of(GROUP)) && bytes.len() == kind.block_bytes(dim)
        };
        assert!(
            fits(kv.keys, head_dim) && fits(kv.values, value_dim),
            "keys of {} and values of {} bytes for {:?}",
            kv.keys.len(),
            kv.values.len(),
            self.shape
        );
        let tile = self;
        dispatch!(isa, attend_body(tile: &mut Tile<'_>, block: usize, kv: KvBlock<'_>, next: KvBlock<'_>));
    }
}

/// What a query has seen of some positions.
#[derive(Clone, Copy, Debug)]
pub struct Seen<S> {
    /// The greatest score; `-inf` where nothing was seen.
    pub top: f32,
    /// The sum of the weights.
    pub total: f32,
    /// The weighted sum of values: `[value_dim]`.
    pub sums: S,
}

impl Seen<&mut [f32]> {
    /// Adds what was seen of later positions.
    pub fn add(&mut self, isa: Isa, later: &Seen<&[f32]>) {
        let nothing = |top: f32, total: f32| top == f32::NEG_INFINITY && total == 0.0;
        if nothing(later.top, later.total) {
            return;
        }
        if nothing(self.top, self.total) {
            (self.top, self.total) = (later.top, later.total);
            self.sums.copy_from_slice(later.sums);
            return;
        }
        let top = if later.top > self.top { later.top } else { self.top };
        let base = finite(top);
        let factors = [(self.top - base).exp(), (later.top - base).exp()];
        self.total = self.total * factors[0] + later.total * factors[1];
        self.top = top;
        super::scale(isa, factors[0], self.sums);
        super::axpy(isa, factors[1], later.sums, self.sums);
    }

    /// Adds a score without a value.
    pub fn add_sink(&mut self, isa: Isa, score: f32) {
        if score == f32::NEG_INFINITY {
            return;
        }
        let top = if score > self.top { score } else { self.top };
        let factors = [self.top, score].map(|top_of| (top_of - top).exp());
        self.total = self.total * factors[0] + factors[1];
        self.top = top;
        super::scale(isa, factors[0], self.sums);
    }

    /// Divides by the sum of the weights; nothing seen gives zeros.
    pub fn finish(self, isa: Isa) {
        super::scale(isa, if self.total == 0.0 { 0.0 } else { 1.0 / self.total }, self.sums);
    }
}

/// What scores are measured from: not from `-inf`, which is no distance from itself.
#[inline(always)]
fn finite(top: f32) -> f32 {
    if top == f32::NEG_INFINITY { 0.0 } else { top }
}
