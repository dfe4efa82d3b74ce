//! Attention in one pass over the cache, block by block, with a running softmax.
//!
//! Blocks and segments of them are cut at fixed positions of the sequence and put together in order, so a token's
//! result does not depend on how its step was cut, batched or shared among threads.

use std::ops::Range;

use metallic_core::{Attention, BLOCK_TOKENS, BackendError, SequenceSpan, Step};

use crate::exec::grow;
use crate::kept::Kept;
use crate::simd::{KvBlock, Seen, Tile, TileShape};
use crate::{Processor, no_room};

/// Queries of a task: neighbours read the same blocks while they are warm.
const TILE_QUERIES: usize = 48;
/// Tokens of a task, where a key/value head has few queries.
const TILE_TOKENS: usize = 16;
/// Queries up to which the segments of a tile are tasks of their own.
const FEW_QUERIES: usize = 16;
/// Blocks whose results are made apart, then put together.
const SEGMENT: usize = 8;
const SEGMENT_TOKENS: usize = SEGMENT * BLOCK_TOKENS;
/// Tasks of few queries that one thread has at most one after another: each asks for what the next one reads, which no memory
/// brings in time of itself.
const MOST_TOGETHER: usize = 16;
/// Such runs of tasks that a thread has at least, so that threads end at the same time.
const RUNS: usize = 8;
/// Tokens of a task that puts results together.
const JOINED_TOKENS: usize = 16;

/// Some neighbouring tokens of one sequence, and one key/value head.
struct Part {
    span: usize,
    kv_head: usize,
    /// First token in the step.
    start: usize,
    shape: TileShape,
    /// Elements of the memory of each of its tasks.
    len: usize,
    /// Its tasks, one after another.
    tasks: Range<usize>,
}

/// Segments one thread goes through for a part.
struct Task {
    part: usize,
    segments: Range<usize>,
}

/// Buffers that are kept between steps.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The heads of a tile one after another.
    parts: Vec<Part>,
    /// By token: its part with the first head.
    part_of: Vec<usize>,
    tasks: Vec<Task>,
    /// Where the memory of each task ends.
    ends: Vec<usize>,
    /// Tasks that one thread has one after another, but for the last few; where the memory of all of those ends.
    together: usize,
    run_ends: Vec<usize>,
    memory: Vec<f32>,
}

/// What one attention reads besides its scratch.
pub(crate) struct Inputs<'a> {
    pub(crate) p: Processor<'a>,
    pub(crate) kept: &'a Kept,
    pub(crate) step: &'a Step<'a>,
    /// `[tokens, heads * head_dim]`
    pub(crate) q: &'a [f32],
    /// `[heads]`, or none.
    pub(crate) sinks: &'a [f32],
}

/// `out [tokens, heads * value_dim]`; returns the bytes of keys and values read.
pub(crate) fn attend(
    a: &Attention,
    inputs: &Inputs<'_>,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<u64, BackendError> {
    scratch.plan(a, inputs)?;
    let Scratch { parts, part_of, tasks, ends, together, run_ends, memory } = scratch;
    let needed = ends.last().copied().unwrap_or(0);
    grow(memory, needed)?;
    let (parts, tasks, ends, together) = (&*parts, &*tasks, &*ends, *together);
    let Processor { isa, team } = inputs.p;
    team.for_pieces(&mut memory[..needed], run_ends, |run, mut memory| {
        let mut own = tasks.iter().skip(run * together).take(together).peekable();
        while let Some(Task { part, segments }) = own.next() {
            let part = &parts[*part];
            let (of_task, rest) = memory.split_at_mut(part.len);
            memory = rest;
            let next = own.peek().and_then(|next| first_block(a, inputs, &parts[next.part], &next.segments));
            attend_part(a, inputs, (part, segments, next), of_task);
        }
    });
    let (memory, d) = (&*memory, a.value_dim.max(1));
    let row = a.heads * d;
    team.for_chunks(out, JOINED_TOKENS * row, |chunk, out| {
        for (i, out) in out.chunks_exact_mut(row).enumerate() {
            let token = chunk * JOINED_TOKENS + i;
            for (head, out) in out.chunks_exact_mut(d).enumerate() {
                let group = a.heads / a.kv_heads;
                let part = &parts[part_of[token] + head / group];
                let query = (token - part.start) * group + head % group;
                out.fill(0.0);
                let mut seen = Seen { top: f32::NEG_INFINITY, total: 0.0, sums: out };
                for task in part.tasks.clone() {
                    let results = &memory[ends[task] - results_len(&part.shape)..ends[task]];
                    let result = &results[query * (d + 2)..][..d + 2];
                    seen.add(isa, &Seen { top: result[0], total: result[1], sums: &result[2..] });
                }
                // Last, so that the sum of the others is the same however it was cut.
                if let Some(sink) = inputs.sinks.get(head) {
                    seen.add_sink(isa, *sink);
                }
                seen.finish(isa);
            }
        }
    });
    let seen = |past: usize| past.min(a.window.unwrap_or(usize::MAX));
    let tokens: usize = inputs.step.sequences.iter().map(|span| seen(span.kv_len())).sum();
    Ok(inputs.kept.token_bytes(a.state) * tokens as u64)
}

/// Tokens that the step's tokens look at, each its own.
pub(crate) fn looks(a: &Attention, step: &Step<'_>) -> u64 {
    let window = a.window.unwrap_or(usize::MAX);
    let of_span = |span: &SequenceSpan<'_>| -> usize {
        (1..=span.tokens.len()).map(|token| (span.past + token).min(window)).sum()
    };
    step.sequences.iter().map(of_span).sum::<usize>() as u64
}

/// Elements of the results at the end of a task's memory: by query top, total and sums.
fn results_len(shape: &TileShape) -> usize {
    shape.queries() * (shape.value_dim + 2)
}

/// Elements of a task's memory: the tile's, then those of its results, which are fewer.
fn task_len(shape: &TileShape) -> Option<usize> {
    let tile = shape.memory()?;
    tile.checked_add(results_len(shape))
}

impl Scratch {
    fn plan(&mut self, a: &Attention, inputs: &Inputs<'_>) -> Result<(), BackendError> {
        let Scratch { parts, part_of, tasks, ends, together, run_ends, .. } = self;
        parts.clear();
        tasks.clear();
        ends.clear();
        part_of.clear();
        part_of.resize(inputs.step.tokens.len(), 0);
        let group = a.heads / a.kv_heads;
        let tile = (TILE_QUERIES / group).clamp(1, TILE_TOKENS);
        for (index, span) in inputs.step.sequences.iter().enumerate() {
            // From the end: the last tiles have the longest past, and long tasks go first.
            for start in span.tokens.clone().step_by(tile).rev() {
                let shape = TileShape {
                    kind: inputs.kept.kind,
                    head_dim: a.head_dim,
                    value_dim: a.value_dim,
                    tokens: tile.min(span.tokens.end - start),
                    group,
                    position: span.past + start - span.tokens.start,
                    window: a.window,
                    softcap: a.softcap,
                };
                part_of[start..start + shape.tokens].fill(parts.len());
                let positions = shape.first(0)..shape.position + shape.tokens;
                let segments = positions.start / SEGMENT_TOKENS..positions.end.div_ceil(SEGMENT_TOKENS);
                let len = task_len(&shape).ok_or_else(|| no_room("attention", usize::MAX))?;
                let each = if shape.queries() <= FEW_QUERIES { 1 } else { segments.len() };
                for kv_head in 0..a.kv_heads {
                    let first = tasks.len();
                    for from in segments.clone().step_by(each) {
                        tasks.push(Task { part: parts.len(), segments: from..from + each });
                        let end = ends.last().copied().unwrap_or(0_usize).checked_add(len);
                        ends.push(end.ok_or_else(|| no_room("attention", usize::MAX))?);
                    }
                    parts.push(Part { span: index, kv_head, start, shape, len, tasks: first..tasks.len() });
                }
            }
        }
        // Tasks of many queries are long, and the longest go first.
        let few = parts.iter().all(|part| part.shape.queries() <= FEW_QUERIES);
        let fair = if few { tasks.len() / (inputs.p.team.threads() * RUNS) } else { 1 };
        *together = fair.clamp(1, MOST_TOGETHER);
        run_ends.clear();
        run_ends.extend(ends.chunks(*together).filter_map(|run| run.last()));
        Ok(())
    }
}

/// Blocks of a part.
fn blocks(shape: &TileShape) -> Range<usize> {
    shape.first(0) / BLOCK_TOKENS..(shape.position + shape.tokens).div_ceil(BLOCK_TOKENS)
}

/// What a task reads first.
fn first_block<'a>(
    a: &Attention,
    inputs: &Inputs<'a>,
    part: &Part,
    segments: &Range<usize>,
) -> Option<KvBlock<'a>> {
    let table = inputs.step.sequences[part.span].table(inputs.kept.is_near(a.state));
    let block = blocks(&part.shape).start.max(segments.start * SEGMENT);
    table.get(block).map(|block| inputs.kept.head(a.state, *block, part.kv_head))
}

/// The segments of one task of a part, and what is read after it.
fn attend_part(
    a: &Attention,
    inputs: &Inputs<'_>,
    (part, segments, next): (&Part, &Range<usize>, Option<KvBlock<'_>>),
    memory: &mut [f32],
) {
    let Inputs { p: Processor { isa, .. }, kept, step, .. } = *inputs;
    let (shape, d, row) = (part.shape, a.head_dim, a.value_dim + 2);
    let table = step.sequences[part.span].table(kept.is_near(a.state));
    let (memory, results) = memory.split_at_mut(memory.len() - results_len(&shape));
    let mut tile = Tile::new(shape, memory);
    for query in 0..shape.queries() {
        let (token, head) =
            (part.start + query / shape.group, part.kv_head * shape.group + query % shape.group);
        tile.set(query, &inputs.q[(token * a.heads + head) * d..][..d], a.scale);
    }
    for result in results.chunks_exact_mut(row) {
        result.fill(0.0);
        result[0] = f32::NEG_INFINITY;
    }
    let blocks = blocks(&shape);
    let last = blocks.end.min(segments.end * SEGMENT) - 1;
    for segment in segments.clone() {
        let of_segment = segment * SEGMENT..(segment + 1) * SEGMENT;
        for block in blocks.start.max(of_segment.start)..blocks.end.min(of_segment.end) {
            let head = |block: usize| kept.head(a.state, table[block], part.kv_head);
            let after = if block < last { Some(head(block + 1)) } else { next };
            let own = head(block);
            tile.attend(isa, block, (own, after.unwrap_or(own)));
        }
        for (query, result) in results.chunks_exact_mut(row).enumerate() {
            let [top, total, sums @ ..] = result else { continue };
            let mut seen = Seen { top: *top, total: *total, sums };
            seen.add(isa, &tile.seen(query));
            (*top, *total) = (seen.top, seen.total);
        }
        tile.clear();
    }
}

#[cfg(test)]
mod tests {
    use metallic_core::{DType, GraphBuilder, SequenceSpan, Shape, StateId, StateLayout, TensorType, Weight};

    use super::*;
    use crate::kept::{KvRows, Rows};
    use crate::simd::{Isa, Team};

    const TOKENS: usize = 700;
    const ATTENTION: Attention = Attention {
        state: StateId(0),
        heads: 6,
        kv_heads: 2,
        head_dim: 24,
        value_dim: 20,
        scale: 0.3,
        window: None,
        softcap: None,
        sinks: false,
    };

    /// What one layer of this attention keeps, in `F16`.
    fn kept(a: &Attention) -> Kept {
        let g = GraphBuilder::new();
        let rows = |name: &str, cols: usize| {
            let ty = TensorType::f32(Shape::matrix(1, cols));
            g.weight(Weight { name: name.to_owned(), ty, data: vec![0; 4 * cols].into() }).embed(g.tokens())
        };
        let [k, v] = [("k", a.head_dim), ("v", a.value_dim)].map(|(name, dim)| rows(name, a.kv_heads * dim));
        let stored = k.kv_write(v, a.state, a.kv_heads);
        let graph = g.finish(&[stored]).unwrap();
        let mut kept = Kept::new(StateLayout::of(&graph, DType::F16).unwrap()).unwrap();
        kept.reserve_blocks(metallic_core::Blocks::both(60)).unwrap();
        kept
    }

    /// `[TOKENS, cols]` of numbers that differ from place to place.
    fn numbers(cols: usize, seed: f32) -> Vec<f32> {
        (0..TOKENS * cols).map(|i| (i as f32 * 0.377 + seed + (i / cols) as f32 * 1.3).sin() * 2.0).collect()
    }

    /// Results of all tokens, in steps of `step` tokens beside another sequence of one token a step.
    fn run(a: &Attention, threads: usize, step: usize) -> Vec<f32> {
        let (row, out_row) = (a.heads * a.head_dim, a.heads * a.value_dim);
        let (k_row, v_row) = (a.kv_heads * a.head_dim, a.kv_heads * a.value_dim);
        let (q, k, v) = (numbers(row, 0.0), numbers(k_row, 1.0), numbers(v_row, 2.0));
        let sinks = [0.5, -1.0, 4.0, f32::NEG_INFINITY, 0.0, 1.0];
        let team = Team::new(threads).unwrap();
        let p = Processor { isa: Isa::detect(), team: &team };
        let mut kept = kept(a);
        // Blocks in no particular order, over several slabs.
        let blocks: Vec<u32> = (0..22).map(|i| i * 7 % 23 * 2).collect();
        let other: Vec<u32> = (0..22).map(|i| 59 - 2 * i).collect();
        let mut scratch = Scratch::default();
        let mut out = Vec::new();
        for (turn, past) in (0..TOKENS).step_by(step).enumerate() {
            let n = step.min(TOKENS - past);
            let sequences = [
                SequenceSpan { tokens: 0..1, past: turn, blocks: &other, near: &[], slot: 0 },
                SequenceSpan { tokens: 1..n + 1, past, blocks: &blocks, near: &[], slot: 0 },
            ];
            // Attention reads nothing of tokens but their number.
            let tokens = vec![0; n + 1];
            let step = Step { tokens: &tokens, positions: &tokens, sequences: &sequences, ..Step::default() };
            let at = |token: usize| past + token.saturating_sub(1);
            let of_step = |all: &[f32], row: usize| -> Vec<f32> {
                (0..=n).flat_map(|token| all[at(token) * row..][..row].to_vec()).collect()
            };
            let [q, k, v] = [(&q, row), (&k, k_row), (&v, v_row)].map(|(all, row)| of_step(all, row));
            let rows = KvRows {
                keys: Rows { data: &k, stride: k_row, at: 0 },
                values: Rows { data: &v, stride: v_row, at: 0 },
            };
            kept.store(p, a.state, &step, &rows);
            let mut results = vec![f32::NAN; (n + 1) * out_row];
            let sinks = if a.sinks { &sinks[..] } else { &[] };
            let inputs = Inputs { p, kept: &kept, step: &step, q: &q, sinks };
            attend(a, &inputs, &mut scratch, &mut results).unwrap();
            out.extend_from_slice(&results[out_row..]);
        }
        out
    }

    #[test]
    fn tokens_look_back_as_far_as_their_window() {
        let span =
            |tokens: Range<usize>, past| SequenceSpan { tokens, past, blocks: &[], near: &[], slot: 0 };
        let sequences = [span(0..3, 4), span(3..4, 0)];
        let step = Step { sequences: &sequences, ..Step::default() };
        assert_eq!(looks(&ATTENTION, &step), 5 + 6 + 7 + 1);
        assert_eq!(looks(&Attention { window: Some(6), ..ATTENTION }, &step), 5 + 6 + 6 + 1);
    }

    #[test]
    fn a_long_past_gives_the_same_bits_in_every_chunking_and_with_any_number_of_threads() {
        for (window, sinks) in [(None, true), (Some(300), false)] {
            let a = Attention { window, sinks, ..ATTENTION };
            let whole = run(&a, 1, TOKENS);
            assert!(whole.iter().all(|x| x.is_finite()));
            for (threads, step) in [(3, TOKENS), (1, 1), (2, 1), (2, 5), (3, 37), (2, 256)] {
                let same = run(&a, threads, step) == whole;
                assert!(same, "{window:?}, {threads} threads, steps of {step}");
            }
        }
    }

    #[test]
    fn a_long_past_is_the_softmax_of_all_of_it() {
        let a = ATTENTION;
        let found = run(&a, 2, 100);
        let (q, k, v) = (numbers(6 * 24, 0.0), numbers(2 * 24, 1.0), numbers(2 * 20, 2.0));
        for (token, head) in [(0, 0), (255, 1), (256, 2), (257, 3), (512, 4), (699, 5)] {
            let (q, kv_head) = (&q[(token * 6 + head) * 24..][..24], head / 3);
            let dot = |p: usize| -> f64 {
                let k = &k[p * 48 + kv_head * 24..][..24];
                q.iter()
                    .zip(k)
                    .map(|(q, k)| f64::from(*q) * f64::from(half::f16::from_f32(*k).to_f32()))
                    .sum()
            };
            let weights: Vec<f64> = (0..=token).map(|p| (dot(p) * 0.3).exp()).collect();
            for i in 0..20 {
                let value = |p: usize| half::f16::from_f32(v[p * 40 + kv_head * 20 + i]).to_f64();
                let sum: f64 = weights.iter().enumerate().map(|(p, w)| w * value(p)).sum();
                let expected = sum / weights.iter().sum::<f64>();
                let found = f64::from(found[(token * 6 + head) * 20 + i]);
                assert!(
                    (found - expected).abs() < 1e-5,
                    "token {token}, head {head}: {found} for {expected}"
                );
            }
        }
    }
}
