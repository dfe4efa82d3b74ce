//! How a long command list becomes several command buffers. The system stops a command buffer that keeps the GPU for
//! seconds, and the screen stands still before that.

use std::ops::Range;

use crate::command::{Command, CommandList};

/// How much one command buffer may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bound {
    pub(crate) bytes: f64,
    pub(crate) work: f64,
}

/// About half a second of the smallest GPU of the family: 70 GB/s, 1.3 TFLOP/s, two of which make a multiply-add.
pub(crate) const BOUND: Bound = Bound { bytes: 32e9, work: 3.25e11 };

/// Command buffers of a submission at most.
pub(crate) const MOST_RUNS: usize = 512;

/// Command buffers that a queue holds, submissions of several threads together. The system lets a thread that wants one
/// more wait for as long as the GPU takes, which no bound of a wait ends.
pub(crate) const QUEUE: usize = 4 * MOST_RUNS;

/// The part of a bound that a command takes; 1 is all of it.
fn share(command: &Command, bound: &Bound) -> f64 {
    let (read, written) = command.traffic();
    let work = command.dispatch().map_or(0, |dispatch| dispatch.launch.work);
    ((read + written) as f64 / bound.bytes).max(work as f64 / bound.work)
}

/// Runs of commands, one for each command buffer. Every run has a command; a command over the bound is alone. Runs are
/// [`MOST_RUNS`] at most: a list that would be more has longer ones.
pub(crate) fn split(list: &CommandList, bound: &Bound) -> Vec<Range<usize>> {
    let mut most = 1.0;
    loop {
        let runs = runs_within(list, bound, most);
        if runs.len() <= MOST_RUNS {
            return runs;
        }
        most *= 2.0;
    }
}

/// Runs of `most` bounds each.
fn runs_within(list: &CommandList, bound: &Bound, most: f64) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let (mut start, mut held) = (0, 0.0);
    for (index, command) in list.commands().iter().enumerate() {
        let more = share(command, bound);
        if index > start && held + more > most {
            runs.push(start..index);
            (start, held) = (index, 0.0);
        }
        held += more;
    }
    if start < list.len() {
        runs.push(start..list.len());
    }
    runs
}

/// Spans of GPU time as (begin, end) in seconds, as one length: what overlaps counts once, a pause not at all.
pub(crate) fn busy(mut spans: Vec<(f64, f64)>) -> Option<std::time::Duration> {
    spans.retain(|(begin, end)| begin.is_finite() && end.is_finite() && *begin > 0.0 && end >= begin);
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut total, mut until) = (0.0, f64::NEG_INFINITY);
    for (begin, end) in &spans {
        total += (end - begin.max(until)).max(0.0);
        until = end.max(until);
    }
    if spans.is_empty() { None } else { std::time::Duration::try_from_secs_f64(total).ok() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use metallic_core::{Attention, DType, Unary};

    use super::*;
    use crate::command::{Access, Dispatch, Region};
    use crate::gpu::{BufferId, PipelineId};
    use crate::kernels::attention::scene::GROUPED;
    use crate::kernels::attention::{self, AttentionSpec};
    use crate::kernels::project::{Part, Projection, plan_tiles, plan_vectors};
    use crate::kernels::{
        Arg, Constants, Family, Kernel, Launch, Moved, Params, Slot, SlotUse, Stages, reads, writes,
    };
    use crate::step::{StepCounts, StepShape};
    use crate::threadgroup::tests::LIMITS;

    const FAMILY: Family = Family { name: "t", params: &[], uses: &[], text: "", kernels: &[] };
    const ARGS: &[Arg] = &[reads("x", 1), reads("w", 1), writes("out", 1)];

    /// A product of `[m, k]` and `[n, k]`, the second of `bits` an element.
    fn product(m: usize, n: usize, k: usize, bits: usize) -> Command {
        let launch = Launch {
            kernel: Kernel { family: &FAMILY, function: "f", constants: Constants::NONE, args: ARGS },
            params: Params::of_words([0]),
            groups: [1; 3],
            threads: [1; 3],
            threadgroup_bytes: 0,
            work: (m * n * k) as u64,
            bytewise: false,
        };
        let region = |id, len| Region::whole(BufferId(id), len);
        let bindings =
            [region(0, m * k * 4).read(), region(1, n * k * bits / 8).read(), region(2, m * n * 4).write()];
        Command::Dispatch(Dispatch::new("t", PipelineId(0), &launch, &bindings).unwrap())
    }

    fn list(commands: impl IntoIterator<Item = Command>) -> CommandList {
        let mut list = CommandList::new();
        for command in commands {
            list.push(command);
        }
        list
    }

    #[test]
    fn decode_of_a_large_model_is_one_command_buffer() {
        // 32 layers of 7 products of 4096 × 6000: 5.5 G weights.
        let step = list((0..32 * 7).map(|_| product(1, 6000, 4096, 5)));
        assert_eq!(split(&step, &BOUND).len(), 1);
    }

    #[test]
    fn prefill_of_a_large_model_is_cut_into_pieces_below_a_second() {
        let step = list((0..32 * 7).map(|_| product(512, 6000, 4096, 5)));
        let runs = split(&step, &BOUND);
        assert!(runs.len() > 8, "{}", runs.len());
        let each = 2.0 * 512.0 * 6000.0 * 4096.0;
        for run in &runs {
            assert!(run.len() as f64 * each < 1.3e12, "{run:?} takes more than a second");
        }
        assert_eq!(runs[0].start, 0);
        assert!(runs.windows(2).all(|w| w[0].end == w[1].start));
        assert_eq!(runs.last().unwrap().end, step.len());
    }

    /// The launches of an operation. Buffers are small: what counts is what plans say of the bytes they move.
    fn commands(stages: &Stages, counts: &StepCounts) -> Vec<Command> {
        let region = Region::whole(BufferId(0), 256);
        let bytes = |moved: Moved| moved.bytes(counts).unwrap_or(256);
        let bind = |SlotUse { slot, moved, .. }: &SlotUse, arg: &Arg| match slot {
            Slot::Unused => region.bind(Access::Unused),
            _ if arg.access == Access::Read => region.read().touching(bytes(*moved)),
            _ => region.write().touching(bytes(*moved)),
        };
        let stages = stages.stages.iter().map(|stage| {
            let args = stage.launch.kernel.args;
            let bindings: Vec<_> =
                stage.slots().iter().zip(args).map(|(slot, arg)| bind(slot, arg)).collect();
            Command::Dispatch(Dispatch::new("t", PipelineId(0), &stage.launch, &bindings).unwrap())
        });
        stages.collect()
    }

    /// The layers of Qwen2.5-0.5B in a step of `tokens` tokens that end a context of `context`.
    fn qwen(tokens: usize, context: usize, kv: DType) -> CommandList {
        let tiles = tokens.div_ceil(32);
        let shape = StepShape { tokens, outputs: 1, tiles, visible: context, ..StepShape::default() };
        let counts = StepCounts {
            tokens,
            tiles,
            seen: (context - tokens + 1..=context).sum(),
            tiles_see: (context - tokens..context).step_by(32).map(|first| (first + 32).min(context)).sum(),
            sequences: 1,
            held: context,
        };
        let attention = Attention { heads: 14, kv_heads: 2, ..GROUPED };
        let spec = AttentionSpec { attention, shape, kv, sinks: None };
        let project = |cols: u32, rows: [u32; 3], gate| {
            let part = |rows| Part { dtype: DType::Q4_0, rows, weight: Slot::Input(1), bias: None };
            let parts = rows.map(|rows| (rows > 0).then(|| part(rows)));
            let (norm, residual, x) = (Some((1e-6, Slot::Input(2))), None, Slot::Input(0));
            let projection = Projection {
                op: "t",
                tokens: tokens as u32,
                cols,
                parts,
                x,
                norm,
                residual,
                gate,
                fine: false,
            };
            let plan = if tokens > 8 { plan_tiles } else { plan_vectors };
            commands(&plan(&projection, &LIMITS).unwrap(), &counts)
        };
        let layer = [
            project(896, [896, 128, 128], None),
            commands(&attention::plan(&spec, &LIMITS).unwrap(), &counts),
            project(896, [896, 0, 0], None),
            project(896, [4864, 4864, 0], Some(Unary::Silu)),
            project(4864, [896, 0, 0], None),
        ];
        list((0..24).flat_map(|_| layer.concat()))
    }

    fn work(commands: &[Command]) -> f64 {
        let each = commands.iter().map(|c| if let Command::Dispatch(d) = c { d.launch.work } else { 0 });
        each.sum::<u64>() as f64
    }

    #[test]
    fn attention_over_a_long_context_is_cut_by_its_arithmetic_whatever_the_cache_is_made_of() {
        // As if every token saw as much as the last one.
        let seen: usize = 512 * 32768;
        let weights = 896 * (896 + 2 * 128 + 896 + 3 * 4864);
        let needed = 24 * (2 * 14 * 64 * seen + 512 * weights);
        for kv in [DType::F16, DType::Q8_0] {
            let step = qwen(512, 32768, kv);
            assert_eq!(work(step.commands()), needed as f64, "{kv}");
            let runs = split(&step, &BOUND);
            let works: Vec<f64> = runs.iter().map(|run| work(&step.commands()[run.clone()])).collect();
            assert!(works.len() >= 3 && works.iter().all(|work| *work <= BOUND.work), "{kv}: {works:?}");
            assert!(works.len() <= 4, "no more than it takes: {works:?}");
        }
    }

    #[test]
    fn a_decode_step_over_a_long_context_stays_one_command_buffer() {
        for kv in [DType::F16, DType::Q8_0, DType::F32] {
            assert_eq!(split(&qwen(1, 32768, kv), &BOUND).len(), 1, "{kv}");
        }
    }

    #[test]
    fn a_command_over_the_bound_is_alone_and_an_empty_list_has_no_command_buffer() {
        let small = Bound { bytes: 100.0, work: f64::MAX };
        let copy = |n| {
            let region = Region::whole(BufferId(0), n);
            Command::Copy { from: region, to: Region::whole(BufferId(1), n) }
        };
        let commands = list([copy(10), copy(500), copy(10), copy(10)]);
        assert_eq!(split(&commands, &small), [0..1, 1..2, 2..4]);
        assert!(split(&CommandList::new(), &small).is_empty());
    }

    #[test]
    fn a_queue_has_room_for_every_command_buffer_of_a_submission() {
        type Sizes = (fn(usize) -> usize, &'static str);
        let small = Bound { bytes: 100.0, work: f64::MAX };
        let copies = |count: usize, bytes: fn(usize) -> usize| {
            list((0..count).map(|index| {
                let bytes = bytes(index);
                Command::Copy {
                    from: Region::whole(BufferId(0), bytes),
                    to: Region::whole(BufferId(1), bytes),
                }
            }))
        };
        let sizes: [Sizes; 4] = [
            (|_| 500, "all over the bound"),
            (|index| if index % 2 == 0 { 1 } else { 50 }, "one that fits and one that does not"),
            (|index| 26 + index % 7, "one to a bound"),
            (|index| if index == 0 { 1_000_000 } else { 30 }, "one that is longer than all others"),
        ];
        for (bytes, what) in sizes {
            for count in [MOST_RUNS, MOST_RUNS + 1, 3 * MOST_RUNS, 9001] {
                let commands = copies(count, bytes);
                let runs = split(&commands, &small);
                assert!(runs.len() <= MOST_RUNS && runs.len() > MOST_RUNS / 4, "{what}: {}", runs.len());
                assert!(runs.iter().all(|run| !run.is_empty()), "{what}");
                assert!(runs.windows(2).all(|w| w[0].end == w[1].start), "{what}");
                assert_eq!((runs[0].start, runs[runs.len() - 1].end), (0, count), "{what}");
            }
        }
        assert_eq!(
            split(&copies(MOST_RUNS, |_| 500), &small).len(),
            MOST_RUNS,
            "no longer than they must be"
        );
        const { assert!(QUEUE > MOST_RUNS) };
    }

    #[test]
    fn time_is_the_union_of_the_spans() {
        let total = busy(vec![(5.0, 6.0), (1.0, 2.0), (1.5, 3.0), (1.6, 1.7)]).unwrap();
        assert!((total.as_secs_f64() - 3.0).abs() < 1e-9, "{total:?}");
        assert_eq!(busy(vec![(2.0, 2.0)]), Some(Duration::ZERO));
        assert_eq!(busy(vec![(0.0, 0.0)]), None, "work that failed has no times");
        assert_eq!(busy(vec![(3.0, 1.0), (f64::NAN, 1.0)]), None);
    }
}
