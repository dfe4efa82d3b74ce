//! Flash attention over the paged cache: rows for few tokens, tiles for many.

use metallic_core::{Attention, BLOCK_TOKENS, DType};

use super::rope::{KV, KV_ALIGN, kv_type};
use super::{
    COMMON, Constants, Launch, Moved, Slot, Stage, Stages, attention_head, attention_heads, attention_merge,
    attention_tiles, attention_units, family, work,
};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::step::StepShape;
use crate::tuning::Tuning;

kernel_params! {
    /// One threadgroup per (part of the query heads of a key/value head, token, split). A part has at most `part` heads, a
    /// split at most `span` cache blocks; `round` heads are brought together at a time. No window: `window` is the largest number.
    AttentionParams {
        heads: u32, kv_heads: u32, window: u32, scale: f32, softcap: f32,
        part: u32, span: u32, splits: u32, round: u32,
    }
}

/// What every form of attention shares.
pub(crate) const ATTEND: (&str, &str) = ("attend.metal", include_str!("attend.metal"));

family! {
    "attention" (AttentionParams) uses COMMON, KV, ATTEND;
    "attention_decode_1", "attention_decode_2", "attention_decode_3", "attention_decode_4",
    "attention_decode_6", "attention_decode_8", "attention_decode_odd_1", "attention_decode_odd_4" {
        reads q: 4, keys: KV_ALIGN, values: KV_ALIGN, rows: 8, blocks: 4, sinks: 4; writes out: 4, stats: 8
    }
}

pub(crate) const MAX_HEAD_DIM: usize = 256;
/// Query heads a threadgroup can serve, by kernel; heads that are no whole number of vectors have fewer kernels.
const WIDE: (&str, &[u32]) = ("attention_decode", &[1, 2, 3, 4, 6, 8]);
const ODD: (&str, &[u32]) = ("attention_decode_odd", &[1, 4]);

/// Attention of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionSpec {
    pub(crate) attention: Attention,
    pub(crate) shape: StepShape,
    pub(crate) kv: DType,
    /// One more score a head that takes its share of the softmax and gives no value: `F32 [heads]`.
    pub(crate) sinks: Option<Slot>,
}

impl AttentionSpec {
    /// Refuses what no kernel takes; the constants all forms of attention share.
    pub(crate) fn constants(&self) -> Result<Constants, GpuError> {
        let a = &self.attention;
        if a.kv_heads == 0 || a.heads == 0 || !a.heads.is_multiple_of(a.kv_heads) {
            return Err(unsupported(format!("{} query heads for {} key/value heads", a.heads, a.kv_heads)));
        }
        kv_type("attention", self.kv, a.value_dim)?;
        let kv = kv_type("attention", self.kv, a.head_dim)?;
        let (softcap, sinks) = (u32::from(a.softcap.is_some()), u32::from(self.sinks.is_some()));
        Ok(Constants::of([kv, a.head_dim as u32, softcap, sinks]))
    }

    /// The same for fused kernels, which take values of the keys' size alone.
    pub(crate) fn fused_constants(&self) -> Result<Constants, GpuError> {
        let Attention { head_dim, value_dim, .. } = self.attention;
        if head_dim != value_dim {
            return Err(unsupported(format!("keys of {head_dim} beside values of {value_dim}, fused")));
        }
        if head_dim > MAX_HEAD_DIM {
            return Err(unsupported(format!("heads of {head_dim}, fused; at most {MAX_HEAD_DIM}")));
        }
        self.constants()
    }

    /// Window, scale and cap as kernels see them.
    pub(crate) fn numbers(&self) -> (u32, f32, f32) {
        let window = self.attention.window.map_or(u32::MAX, |w| u32::try_from(w).unwrap_or(u32::MAX));
        (window, self.attention.scale, self.attention.softcap.unwrap_or(1.0))
    }

    pub(crate) fn params(&self, part: u32, split: Split, round: u32) -> AttentionParams {
        let (window, scale, softcap) = self.numbers();
        let (heads, kv_heads) = (self.attention.heads as u32, self.attention.kv_heads as u32);
        let Split { span, splits, .. } = split;
        AttentionParams { heads, kv_heads, window, scale, softcap, part, span, splits, round }
    }

    /// Most tokens a token of the step looks at.
    pub(crate) fn reach(&self) -> usize {
        self.shape.visible.min(self.attention.window.unwrap_or(usize::MAX))
    }

    /// The keys, or values, of `dim` elements that the step's tokens look at, where each head's are read by `readers`
    /// threadgroups; by tiles of queries, a token is looked at once for all their own.
    pub(crate) fn seen(&self, dim: usize, readers: usize, tiles: bool) -> Moved {
        let a = &self.attention;
        let row = dim / self.kv.block_len() * self.kv.block_bytes();
        Moved::Seen { row: row * a.kv_heads, readers, window: a.window, tiles }
    }

    /// Multiply-adds of the queries with the keys at most, or of the weights with the values, of `dim` elements.
    pub(crate) fn half_work(&self, dim: usize) -> u64 {
        work([self.reach(), self.shape.tokens, self.attention.heads, dim])
    }

    pub(crate) fn sinks(&self) -> Slot {
        self.sinks.unwrap_or(Slot::Unused)
    }
}

fn unsupported(reason: String) -> GpuError {
    GpuError::unsupported("attention", reason)
}

/// Plans attention: `(q [tokens, heads * head_dim], receipt) -> [tokens, heads * head_dim]`.
pub(crate) fn plan(spec: &AttentionSpec, limits: &Limits) -> Result<Stages, GpuError> {
    // Query tiles pay where their simdgroups, of 8 rows each, do not stand empty.
    let full = spec.shape.tokens >= limits.tuning.query_rows as usize * spec.shape.tiles.max(1);
    if full && attention_units::fits(spec, limits) {
        return attention_units::plan(spec, limits);
    }
    if full && attention_tiles::fits(spec, limits) {
        attention_tiles::plan(spec, limits)
    } else {
        rows(spec, limits)
    }
}

/// How the query heads of one key/value head are shared out: threadgroups, heads of each, and the room of their kernel.
/// `apart`: each has a threadgroup of its own.
fn parts(per_kv: u32, apart: bool, rooms: &[u32]) -> (u32, u32, u32) {
    let most = if apart { 1 } else { rooms.last().copied().unwrap_or(1) };
    let parts = per_kv.div_ceil(most).max(1);
    let part = per_kv.div_ceil(parts);
    (parts, part, rooms.iter().copied().find(|room| *room >= part).unwrap_or(most))
}

/// How the cache blocks of a row are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) simdgroups: u32,
    /// Cache blocks of a split at most.
    pub(crate) span: u32,
    /// Splits of every row.
    pub(crate) splits: u32,
}

/// Shares `blocks` cache blocks out where `groups` threadgroups stand side by side anyway. A row within a threadgroup's
/// reach stays whole; a longer one is split as long as that brings idle parts of the GPU to work.
fn split(blocks: u32, groups: u32, limits: &Limits) -> Split {
    let blocks = blocks.max(1);
    let Tuning { attention_reach, attention_span, attention_simdgroups, .. } = limits.tuning;
    let splits = if blocks <= attention_reach {
        1
    } else {
        let idle = limits.busy() / attention_simdgroups.max(1) / groups.max(1);
        idle.clamp(1, blocks.div_ceil(attention_span.max(1)))
    };
    let span = blocks.div_ceil(splits);
    Split { simdgroups: span.min(attention_simdgroups), span, splits: blocks.div_ceil(span) }
}

/// Most cache blocks that so many neighbouring tokens lie in.
pub(crate) fn blocks_of(reach: usize, windowed: bool) -> u32 {
    // A window may begin anywhere in a block.
    let slack = if windowed { BLOCK_TOKENS - 1 } else { 0 };
    (reach + slack).div_ceil(BLOCK_TOKENS) as u32
}

/// Threadgroup memory of the rows' kernel: how many heads are brought together at a time, and floats in all.
fn memory(simdgroups: u32, room: u32, head_dim: u32, limits: &Limits) -> Option<(u32, u32)> {
    let floats = limits.threadgroup_memory / 4;
    let head = (3 * simdgroups * room).next_multiple_of(4);
    let pass = room * head_dim + 2 * simdgroups * room * 32;
    let quads = head_dim / 4;
    let copies = if head_dim.is_multiple_of(8) && quads < 32 { 32 / quads } else { 1 };
    let one = simdgroups * copies * head_dim;
    // What the pass needs is there anyway; half the memory is no loss either, a second threadgroup still fits beside.
    let budget = floats.checked_sub(head)?;
    let round = (pass.max(budget / 2) / one).clamp(1, room);
    // Metal takes multiples of 16 bytes.
    let work = pass.max(round * one).next_multiple_of(4);
    (work <= budget).then_some((round, head + work))
}

/// What the splits of a row leave: their sums, and the softmax of each.
const SUMS: Slot = Slot::Scratch(0);
const STATS: Slot = Slot::Scratch(1);

/// Rows by rows: one pass over the cache for every token.
fn rows(spec: &AttentionSpec, limits: &Limits) -> Result<Stages, GpuError> {
    let constants = spec.fused_constants()?;
    let a = &spec.attention;
    let (heads, kv_heads, tokens) = (a.heads as u32, a.kv_heads as u32, spec.shape.tokens as u32);
    let head_dim = a.head_dim as u32;
    let (name, rooms) = if a.head_dim.is_multiple_of(8) { WIDE } else { ODD };
    let blocks = blocks_of(spec.reach(), a.window.is_some());
    // Where a row is short, many cores read its keys once more rather than stand still.
    let Tuning { attention_reach, heads_apart, .. } = limits.tuning;
    let apart = blocks <= attention_reach && heads.saturating_mul(tokens) <= heads_apart * limits.cores();
    if !apart && attention_heads::fits(spec, limits) {
        let (parts, part, _) = parts(heads / kv_heads, false, &[attention_heads::ROOM]);
        let groups = kv_heads * parts;
        let split = attention_heads::split(blocks, groups.saturating_mul(tokens), a.head_dim, limits);
        let params = spec.params(part, split, 0);
        let groups = [groups, tokens, split.splits];
        let launch = attention_heads::launch(spec, params, groups, split, limits)?;
        launch.check(limits)?;
        return with_merge(spec, launch, parts, split.splits, limits);
    }
    if apart && attention_head::fits(spec, limits) {
        return attention_head::plan(spec, blocks, limits);
    }
    let (parts, part, room) = parts(heads / kv_heads, apart, rooms);
    let kernel = FAMILY.kernel(&format!("{name}_{room}"), constants);
    let groups = kv_heads * parts;
    let mut split = split(blocks, groups.saturating_mul(tokens), limits);
    split.simdgroups = split.simdgroups.min(limits.max_threads / limits.simd_width.max(1)).max(1);
    let (round, floats) = loop {
        match memory(split.simdgroups, room, head_dim, limits) {
            Some(found) => break found,
            None if split.simdgroups > 1 => split.simdgroups -= 1,
            None => {
                let most = u64::from(limits.threadgroup_memory);
                let found = u64::from(room * (head_dim + 67)) * 4;
                let what = "bytes of threadgroup memory";
                return Err(GpuError::Launch { kernel: kernel.function, what, found, most });
            }
        }
    };
    let (groups, threads) = ([groups, tokens, split.splits], [split.simdgroups * 32, 1, 1]);
    let launch = Launch {
        threadgroup_bytes: floats * 4,
        work: spec.half_work(a.head_dim).saturating_mul(2),
        ..kernel.launch(spec.params(part, split, round).params(), groups, threads)
    };
    with_merge(spec, launch, parts, split.splits, limits)
}

/// Attention by a launch that reads each key so many times, and what brings the splits of rows together where there are some.
#[allow(clippy::large_types_passed_by_value)] // It is moved through.
fn with_merge(
    spec: &AttentionSpec,
    launch: Launch,
    readers: u32,
    splits: u32,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    let a = &spec.attention;
    let (tokens, whole) = (spec.shape.tokens, splits == 1);
    let (sinks, out, stats) =
        if whole { (spec.sinks(), Slot::Output, Slot::Unused) } else { (Slot::Unused, SUMS, STATS) };
    let slots = [Slot::Input(0), Slot::Keys, Slot::Values, Slot::ROWS, Slot::BLOCKS, sinks, out, stats];
    let seen = spec.seen(a.head_dim, readers as usize, false);
    let stage = Stage::new(launch, slots).moving(1, seen).moving(2, seen);
    if whole {
        return Ok(stage.into());
    }
    let partial = tokens * a.heads * splits as usize;
    let merge = attention_merge::launch(spec, splits, limits)?;
    let merged = [SUMS, STATS, spec.sinks(), Slot::Output];
    Ok(Stages {
        stages: vec![stage, Stage::new(merge, merged)],
        scratch: vec![partial * a.head_dim * 4, partial * 8],
    })
}

#[cfg(test)]
pub(crate) mod scene;
#[cfg(test)]
mod tests;
