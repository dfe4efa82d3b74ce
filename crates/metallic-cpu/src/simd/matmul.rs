//! Matrix products over packed weights: one token at memory speed, many tokens from registers.
//!
//! An output element is summed in the same order however many tokens and threads take part, so its
//! bits do not depend on either.

use std::marker::PhantomData;

use super::activations::{Activations, Grain};
use super::isa::Isa;
use super::kernels::{Block, Kernel, MAX_BLOCK, Place};
use super::math;
use super::pack::{Lines, PackedMatrix, TILE};
use super::team::Team;

/// Tasks of a thread, of few tokens and of many: few go at the memory's speed, which short runs do not reach.
const TASKS: [usize; 2] = [6, 12];
/// So many tokens are many.
const MANY_TOKENS: usize = 32;

/// The activation of a gated product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
}

/// The left-hand side of a product.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the formulas say what the fields are")]
pub enum Factors<'a> {
    /// `y = W x`.
    Plain(&'a PackedMatrix),
    /// `y = act(gate x) * (up x)`; both matrices have one shape.
    Gated { gate: &'a PackedMatrix, up: &'a PackedMatrix, act: Gate },
}

impl Factors<'_> {
    /// Asks the memory for a part of a tile, where there is such a tile: from, to, of how many.
    fn ask(&self, isa: Isa, tile: usize, (from, to, all): (usize, usize, usize)) {
        let part = |lines: &Lines| {
            if tile < lines.tiles() {
                let bytes = lines.tile(tile);
                math::ask(isa, &bytes[bytes.len() * from / all..bytes.len() * to / all]);
            }
        };
        let of = |w: &PackedMatrix| [&w.values, &w.scales].into_iter().for_each(part);
        match self {
            Factors::Plain(w) => of(w),
            Factors::Gated { gate, up, .. } => [gate, up].into_iter().for_each(|w| of(w)),
        }
    }

    fn first(&self) -> &PackedMatrix {
        match self {
            Factors::Plain(matrix) => matrix,
            Factors::Gated { gate, .. } => gate,
        }
    }
}

/// A borrowed output matrix that the threads of a team write together, each its own columns.
#[derive(Debug)]
pub struct SharedOut<'a> {
    data: *mut f32,
    len: usize,
    stride: usize,
    /// Columns of a row this one may write.
    width: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: only `matmul` writes through it, at places no two of its tasks share.
unsafe impl Sync for SharedOut<'_> {}
// SAFETY: it stands for a `&mut [f32]`.
unsafe impl Send for SharedOut<'_> {}

impl<'a> SharedOut<'a> {
    /// Row `t` begins at `t * stride`; rows may be apart.
    pub fn new(data: &'a mut [f32], stride: usize) -> Self {
        SharedOut { data: data.as_mut_ptr(), len: data.len(), stride, width: stride, borrow: PhantomData }
    }

    /// Outputs side by side in each row of one matrix: the first `widths[0]` columns, the next `widths[1]`, …
    pub fn side_by_side<const N: usize>(data: &'a mut [f32], widths: [usize; N]) -> [Self; N] {
        let sum = widths.iter().try_fold(0usize, |sum, width| sum.checked_add(*width));
        assert!(sum.is_some(), "columns beyond the address space");
        let (base, len, stride) = (data.as_mut_ptr(), data.len(), sum.unwrap_or(0));
        let mut from = 0;
        // No two parts share a column, and `row` keeps each within its own.
        widths.map(|width| {
            let (data, len) = (base.wrapping_add(from.min(len)), len.saturating_sub(from));
            from += width;
            SharedOut { data, len, stride, width, borrow: PhantomData }
        })
    }

    /// `count` elements of a row; in bounds of the borrowed matrix.
    fn row(&self, token: usize, from: usize, count: usize) -> *mut [f32] {
        let at = token.checked_mul(self.stride).and_then(|at| at.checked_add(from)).unwrap_or(usize::MAX);
        let end = at.saturating_add(count);
        let inside = from.checked_add(count).is_some_and(|to| to <= self.width) && end <= self.len;
        assert!(inside, "an output beyond its matrix");
        // The sum is in bounds, so it wraps nowhere.
        std::ptr::slice_from_raw_parts_mut(self.data.wrapping_add(at), count)
    }
}

/// One product: `out[t] = W x[t] + bias + residual`.
#[derive(Debug)]
pub struct Matmul<'a> {
    /// `[n, k]`.
    pub weights: Factors<'a>,
    /// `[tokens, k]`.
    pub x: Activations<'a>,
    /// `[n]`, added to the product (of a gated one: to its result).
    pub bias: Option<&'a [f32]>,
    /// `[tokens, n]`, added last.
    pub residual: Option<&'a [f32]>,
    /// `[tokens, n]`.
    pub out: SharedOut<'a>,
}

impl Matmul<'_> {
    fn check(&self) {
        let (w, tokens) = (self.weights.first(), self.x.rows());
        if let Factors::Gated { gate, up, .. } = self.weights {
            let same = gate.rows() == up.rows() && gate.cols() == up.cols();
            assert!(same, "gate {gate:?} and up {up:?} differ");
            assert_eq!(gate.is_quantized(), up.is_quantized(), "gate {gate:?} and up {up:?} differ");
        }
        assert_eq!(self.x.cols(), w.cols(), "activations for {w:?}");
        assert_eq!(matches!(self.x, Activations::Q8 { .. }), w.is_quantized(), "activations for {w:?}");
        if let Activations::Q8 { grain: Grain::Half, .. } = self.x {
            let all = match self.weights {
                Factors::Plain(w) => [w; 2],
                Factors::Gated { gate, up, .. } => [gate, up],
            };
            assert!(all.iter().all(|w| w.takes() == Grain::Half), "activations of halves for {all:?}");
        }
        if let Activations::F32 { values, cols } = self.x {
            assert_eq!(values.len(), tokens * cols, "activations that do not fill rows");
        }
        assert!(self.bias.is_none_or(|b| b.len() == w.rows()), "a bias for {w:?}");
        assert!(self.residual.is_none_or(|r| r.len() == tokens * w.rows()), "a residual for {w:?}");
        let last = tokens
            .checked_sub(1)
            .map_or(Some(0), |last| last.checked_mul(self.out.stride)?.checked_add(w.rows()));
        let last = last.unwrap_or(usize::MAX);
        assert!(self.out.width >= w.rows() && self.out.len >= last, "an output for {w:?}");
    }

    /// How the work is cut: tasks are `tiles.div_ceil(tile_part) × tokens.div_ceil(token_part)`.
    fn cut(&self, threads: usize) -> Cut {
        let (w, tokens) = (self.weights.first(), self.x.rows());
        let tiles = w.tiles();
        // Activations of a part stay in the second-level cache while the tiles pass.
        let token_part = (512 * 1024 / w.cols().max(1)).next_multiple_of(8).clamp(8, 512);
        let token_parts = tokens.div_ceil(token_part);
        // Several tasks a thread even out their ends; a task of a single token reads 32 KiB or more.
        let wanted = tiles * token_parts / (threads * TASKS[usize::from(tokens >= MANY_TOKENS)]);
        let tile_bytes = w.bytes() / tiles.max(1);
        let least = (32 * 1024 / tile_bytes.max(1) / tokens.max(1)).max(1);
        let fair = tiles.div_ceil(threads).max(1);
        let tile_part = wanted.max(least).min(fair);
        Cut { tile_part, tile_parts: tiles.div_ceil(tile_part), token_part, token_parts }
    }
}

#[derive(Clone, Copy)]
struct Cut {
    tile_part: usize,
    tile_parts: usize,
    token_part: usize,
    token_parts: usize,
}

/// One task: tiles and tokens from, to.
#[derive(Clone, Copy)]
struct Part {
    tiles: (usize, usize),
    tokens: (usize, usize),
    /// The tile this thread is likely to have next; there may be none.
    next: usize,
}

/// Computes all `products` in one fork-join of `team`. Allocates nothing.
pub fn matmul(isa: Isa, team: &Team, products: &mut [Matmul<'_>]) {
    products.iter().for_each(Matmul::check);
    let products = &*products;
    let threads = team.threads();
    let tasks = |p: &Matmul<'_>| {
        let cut = p.cut(threads);
        cut.tile_parts * cut.token_parts
    };
    let total = products.iter().map(tasks).sum();
    team.run(total, &|task| {
        let mut task = task;
        for product in products {
            let cut = product.cut(threads);
            let own = cut.tile_parts * cut.token_parts;
            if task >= own {
                task -= own;
                continue;
            }
            let (tile, token) = (task % cut.tile_parts, task / cut.tile_parts);
            let span = |i: usize, part: usize, all: usize| (i * part, all.min((i + 1) * part));
            let part = Part {
                tiles: span(tile, cut.tile_part, product.weights.first().tiles()),
                tokens: span(token, cut.token_part, product.x.rows()),
                next: (tile + threads) * cut.tile_part,
            };
            // SAFETY: `check` passed; parts of different tasks have no output element in common, and
            // `&mut` products keep everyone else away.
            unsafe { compute(isa, product, part) };
            return;
        }
    });
}

/// # Safety
/// `product` was checked; no other thread uses the outputs of `part`.
unsafe fn compute(isa: Isa, product: &Matmul<'_>, part: Part) {
    let first = product.weights.first();
    let rows = first.rows();
    let kernel = Kernel::of(isa, first);
    // Kernels write all that is read of them.
    let (mut y, mut g): (Block, Block) = ([[0.0; TILE]; MAX_BLOCK], [[0.0; TILE]; MAX_BLOCK]);
    let tokens = part.tokens.1 - part.tokens.0;
    for tile in part.tiles.0..part.tiles.1 {
        let next = if tile + 1 < part.tiles.1 { tile + 1 } else { part.next };
        let mut token = part.tokens.0;
        while token < part.tokens.1 {
            let count = kernel.fitting(part.tokens.1 - token);
            // The first tokens to meet a tile bring what is not there yet from memory. While many meet it, each few ask for a part of
            // the tile that follows: memory would be asked for all of it at once, and idle for the rest of the time.
            let at = Place { tile, token, count, ahead: token == part.tokens.0 };
            if count < tokens {
                let done = token - part.tokens.0;
                product.weights.ask(isa, next, (done, done + count, tokens));
            }
            match product.weights {
                Factors::Plain(w) => kernel.run(w, at, &product.x, &mut y),
                Factors::Gated { gate, up, act } => {
                    kernel.run(gate, at, &product.x, &mut g);
                    Kernel::of(isa, up).run(up, at, &product.x, &mut y);
                    math::gated(isa, act, g[..count].as_flattened(), y[..count].as_flattened_mut());
                }
            }
            let from = tile * TILE;
            let width = TILE.min(rows - from);
            for (i, y) in y.iter().enumerate().take(count) {
                // SAFETY: in bounds by `row`; this task alone has these columns of this token (caller).
                let out = unsafe { &mut *product.out.row(token + i, from, width) };
                finish(product, (token + i) * rows + from, from, y, out);
            }
            token += count;
        }
    }
}

/// The end of an output row piece: bias, residual, store.
#[inline(always)]
fn finish(product: &Matmul<'_>, at: usize, from: usize, y: &[f32; TILE], out: &mut [f32]) {
    let mut y = *y;
    if let Some(bias) = product.bias {
        for (y, b) in y.iter_mut().zip(&bias[from..from + out.len()]) {
            *y += b;
        }
    }
    if let Some(residual) = product.residual {
        for (y, r) in y.iter_mut().zip(&residual[at..at + out.len()]) {
            *y += r;
        }
    }
    if out.len() == TILE {
        out.copy_from_slice(&y);
    } else {
        out.copy_from_slice(&y[..out.len()]);
    }
}
