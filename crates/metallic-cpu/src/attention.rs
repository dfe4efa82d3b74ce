//! Attention in one pass over the cache, block by block, with a running softmax.
//!
//! Blocks are cut at fixed positions of the sequence and taken in order, so a token's result does not depend on
//! how its step was cut or batched.

use metallic_core::{Attention, BLOCK_TOKENS, Step};

use crate::cache::Cache;
use crate::simd::{Isa, Team, accumulate_rows, dot_rows, exp_in_place, scale};

/// Tokens of one task: neighbours read the same blocks while they are warm.
const TILE_TOKENS: usize = 16;

/// Some neighbouring tokens of one sequence.
#[derive(Clone, Copy)]
struct Tile {
    span: usize,
    /// First token in the step, and how many.
    start: usize,
    len: usize,
}

/// Buffers that are kept between steps.
#[derive(Default)]
pub(crate) struct Scratch {
    tiles: Vec<Tile>,
    /// By task: `[TILE_TOKENS, head_dim]` of results.
    results: Vec<f32>,
}

/// What one attention reads besides its scratch.
pub(crate) struct Inputs<'a> {
    pub(crate) isa: Isa,
    pub(crate) team: &'a Team,
    pub(crate) cache: &'a Cache,
    pub(crate) step: &'a Step<'a>,
    /// `[tokens, heads * head_dim]`
    pub(crate) q: &'a [f32],
}

/// `out [tokens, heads * head_dim]`
pub(crate) fn attend(a: &Attention, inputs: &Inputs<'_>, scratch: &mut Scratch, out: &mut [f32]) {
    let Scratch { tiles, results } = scratch;
    tiles.clear();
    for (span, sequence) in inputs.step.sequences.iter().enumerate() {
        // From the end: the last tiles have the longest past, and long tasks go first.
        let starts = sequence.tokens.clone().step_by(TILE_TOKENS).rev();
        tiles.extend(starts.map(|start| Tile {
            span,
            start,
            len: TILE_TOKENS.min(sequence.tokens.end - start),
        }));
    }
    let chunk = TILE_TOKENS * a.head_dim;
    let needed = tiles.len() * a.heads * chunk;
    if results.len() < needed {
        results.resize(needed, 0.0);
    }
    let tiles = &*tiles;
    inputs.team.for_chunks(&mut results[..needed], chunk, |task, result| {
        let (tile, head) = (tiles[task / a.heads], task % a.heads);
        for (i, result) in result.chunks_exact_mut(a.head_dim).take(tile.len).enumerate() {
            attend_one(a, inputs, (tile.span, tile.start + i, head), result);
        }
    });
    let row = a.heads * a.head_dim;
    for (t, tile) in tiles.iter().enumerate() {
        for head in 0..a.heads {
            let result = &results[(t * a.heads + head) * chunk..][..chunk];
            for (i, result) in result.chunks_exact(a.head_dim).take(tile.len).enumerate() {
                out[(tile.start + i) * row + head * a.head_dim..][..a.head_dim].copy_from_slice(result);
            }
        }
    }
}

/// One head of one token.
fn attend_one(
    a: &Attention,
    inputs: &Inputs<'_>,
    (span, token, head): (usize, usize, usize),
    out: &mut [f32],
) {
    let Inputs { isa, cache, step, .. } = *inputs;
    let span = &step.sequences[span];
    let last = span.past + token - span.tokens.start;
    let first = a.window.map_or(0, |window| (last + 1).saturating_sub(window));
    let q = &inputs.q[(token * a.heads + head) * a.head_dim..][..a.head_dim];
    let kv_head = head / (a.heads / a.kv_heads);
    let stride = cache.layout().row_bytes();

    out.fill(0.0);
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0f32);
    for block in first / BLOCK_TOKENS..=last / BLOCK_TOKENS {
        let base = block * BLOCK_TOKENS;
        let (from, to) = (first.max(base) - base, (last + 1).min(base + BLOCK_TOKENS) - base);
        let rows = cache.head(a.layer, span.blocks[block], kv_head);
        let mut scores = [0f32; BLOCK_TOKENS];
        let scores = &mut scores[..to - from];
        dot_rows(isa, cache.kind(), (&rows.keys[from * stride..], stride), q, scores);
        for s in &mut *scores {
            *s *= a.scale;
            if let Some(cap) = a.softcap {
                *s = cap * (*s / cap).tanh();
            }
        }
        let block_max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if block_max > max {
            let shrink = (max - block_max).exp();
            sum *= shrink;
            scale(isa, shrink, out);
            max = block_max;
        }
        for s in &mut *scores {
            *s -= max;
        }
        exp_in_place(isa, scores);
        sum += scores.iter().sum::<f32>();
        accumulate_rows(isa, cache.kind(), (&rows.values[from * stride..], stride), scores, out);
    }
    scale(isa, if sum == 0.0 { 0.0 } else { 1.0 / sum }, out);
}
