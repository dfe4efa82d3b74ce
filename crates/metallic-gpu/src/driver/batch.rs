//! How a long command list becomes several command buffers. The system stops a command buffer that keeps the GPU for
//! seconds, and the screen stands still before that.

use std::ops::Range;

use crate::command::{Access, Command, CommandList};

/// How much one command buffer may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bound {
    /// Bytes moved.
    pub(crate) bytes: f64,
    /// Arithmetic, see [`arithmetic`].
    pub(crate) arithmetic: f64,
}

/// About half a second of the smallest GPU of the family: 70 GB/s, 1.3 TFLOP/s.
pub(crate) const BOUND: Bound = Bound { bytes: 32e9, arithmetic: 1e12 };

/// An estimate of the arithmetic of a command, from the bytes it touches: for a product of matrices
/// `[m, k] × [k, n] -> [m, n]` the root of the three sizes' product is `m·k·n`, times 3 to 8 for bytes instead of
/// elements. It counts element-wise work on many tokens too high, which costs a command buffer more and nothing else.
fn arithmetic(command: &Command) -> f64 {
    let Command::Dispatch(dispatch) = command else { return 0.0 };
    let (mut reads, mut write) = ([0f64; 2], 0f64);
    for (_, binding) in dispatch.bindings() {
        let bytes = binding.footprint as f64;
        if matches!(binding.access, Access::Read | Access::ReadWrite) {
            let smaller = usize::from(reads[1] < reads[0]);
            reads[smaller] = reads[smaller].max(bytes);
        }
        if matches!(binding.access, Access::Write | Access::ReadWrite) {
            write = write.max(bytes);
        }
    }
    (reads[0].max(1.0) * reads[1].max(1.0) * write.max(1.0)).sqrt()
}

/// The part of a bound that a command takes; 1 is all of it.
fn share(command: &Command, bound: &Bound) -> f64 {
    let (read, written) = command.traffic();
    ((read + written) as f64 / bound.bytes).max(arithmetic(command) / bound.arithmetic)
}

/// Runs of commands, one for each command buffer. Every run has a command; a command over the bound is alone.
pub(crate) fn split(list: &CommandList, bound: &Bound) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let (mut start, mut held) = (0, 0.0);
    for (index, command) in list.commands().iter().enumerate() {
        let more = share(command, bound);
        if index > start && held + more > 1.0 {
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

    use super::*;
    use crate::command::{Dispatch, Region};
    use crate::gpu::{BufferId, PipelineId};
    use crate::kernels::{Arg, Constants, Family, Kernel, Launch, Params, reads, writes};

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
    fn arithmetic_of_a_product_is_the_product_of_its_sides() {
        for (m, n, k) in [(1, 4096, 4096), (512, 11008, 4096), (33, 64, 100)] {
            let exact = (m * n * k) as f64;
            for bits in [4, 8, 16, 32] {
                let found = arithmetic(&product(m, n, k, bits)) / exact;
                assert!((2.8..8.1).contains(&found), "{m} {n} {k} {bits}: {found}");
            }
        }
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

    #[test]
    fn a_command_over_the_bound_is_alone_and_an_empty_list_has_no_command_buffer() {
        let small = Bound { bytes: 100.0, arithmetic: f64::MAX };
        let copy = |n| {
            let region = Region::whole(BufferId(0), n);
            Command::Copy { from: region, to: Region::whole(BufferId(1), n) }
        };
        let commands = list([copy(10), copy(500), copy(10), copy(10)]);
        assert_eq!(split(&commands, &small), [0..1, 1..2, 2..4]);
        assert!(split(&CommandList::new(), &small).is_empty());
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
