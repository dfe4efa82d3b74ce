//! A command list as a driver encodes it: runs of dispatches, each run a command buffer.

use std::borrow::Cow;

use super::batch::{self, Bound};
use crate::command::{Command, CommandList, Dispatch};
use crate::error::GpuError;
use crate::gpu::{Limits, PipelineId};
use crate::kernels::{Call, Kernel, transfer};

/// One dispatch of a run.
#[derive(Clone, Debug)]
pub(crate) struct Step<'l> {
    /// The place of its command in the list.
    pub(crate) command: usize,
    /// Whether everything before it in the run must be done first.
    pub(crate) barrier: bool,
    pub(crate) dispatch: Cow<'l, Dispatch>,
    /// What a library does in the place of the dispatch.
    pub(crate) call: Option<Call>,
}

/// Cuts a list into runs, and turns copies and fills into dispatches of the pipelines that `ready` gives for their
/// kernels. The first step of a run needs no barrier: command buffers wait for what they share.
pub(crate) fn runs<'l>(
    list: &'l CommandList,
    limits: &Limits,
    bound: &Bound,
    ready: &dyn Fn(&Kernel) -> Result<PipelineId, GpuError>,
) -> Result<Vec<Vec<Step<'l>>>, GpuError> {
    let mut commands = list.iter().enumerate();
    let mut runs = Vec::new();
    for run in batch::split(list, bound) {
        let mut steps: Vec<Step<'l>> = Vec::with_capacity(run.len());
        let mut barrier = false;
        for (index, (before, command)) in commands.by_ref().take(run.len()) {
            barrier |= before;
            match command {
                Command::Dispatch(dispatch)
                | Command::Gemm { dispatch, .. }
                | Command::Graph { dispatch, .. } => {
                    let (dispatch, call) = (Cow::Borrowed(dispatch), command.call());
                    steps.push(Step { command: index, barrier, dispatch, call });
                    barrier = false;
                }
                Command::Copy { .. } | Command::Fill { .. } => {
                    // An empty one leaves its barrier to the next.
                    for piece in transfer::plan(command, limits)? {
                        let pipeline = ready(&piece.launch.kernel)?;
                        let label = if piece.bindings.len() > 1 { "copy" } else { "fill" };
                        let dispatch = Dispatch::new(label, pipeline, &piece.launch, &piece.bindings)?;
                        let dispatch = Cow::Owned(dispatch);
                        steps.push(Step { command: index, barrier, dispatch, call: None });
                        barrier = false;
                    }
                }
            }
        }
        if let Some(first) = steps.first_mut() {
            first.barrier = false;
            runs.push(steps);
        }
    }
    Ok(runs)
}

/// Runs in which what a library does stands alone: it has encoders of its own, so that its time is that of its run.
pub(crate) fn apart(runs: Vec<Vec<Step<'_>>>) -> Vec<Vec<Step<'_>>> {
    let mut shorter: Vec<Vec<Step<'_>>> = Vec::with_capacity(runs.len());
    for run in runs {
        let mut open = false;
        for mut step in run {
            let alone = step.call.is_some();
            if let Some(last) = shorter.last_mut().filter(|_| open && !alone) {
                last.push(step);
            } else {
                step.barrier = false;
                shorter.push(vec![step]);
            }
            open = !alone;
        }
    }
    shorter
}

#[cfg(test)]
mod tests {
    use metallic_core::DType;

    use super::*;
    use crate::command::Region;
    use crate::gpu::BufferId;
    use crate::kernels::Gemm;
    use crate::threadgroup::tests::LIMITS;

    fn ready(kernel: &Kernel) -> Result<PipelineId, GpuError> {
        let index = transfer::FAMILY.functions().position(|(name, _)| name == kernel.function);
        index.map(|i| PipelineId(i as u32)).ok_or(GpuError::Missing(kernel.function.to_owned()))
    }

    fn list(commands: &[Command]) -> CommandList {
        let mut list = CommandList::new();
        for command in commands {
            list.push(*command);
        }
        list
    }

    fn region(id: u32, offset: usize, len: usize) -> Region {
        Region::whole(BufferId(id), 1 << 20).slice(offset, len).unwrap()
    }

    /// For each run, for each step: barrier, pipeline.
    fn shape(list: &CommandList, bytes: f64) -> Vec<Vec<(bool, u32)>> {
        let bound = Bound { bytes, work: f64::MAX };
        let runs = runs(list, &LIMITS, &bound, &ready).unwrap();
        runs.iter().map(|run| run.iter().map(|s| (s.barrier, s.dispatch.pipeline.0)).collect()).collect()
    }

    #[test]
    fn barriers_stand_where_the_list_says_and_not_at_the_start_of_a_run() {
        let fill = Command::Fill { to: region(0, 0, 32), value: 1 };
        let copy = Command::Copy { from: region(0, 0, 32), to: region(1, 4, 32) };
        let other = Command::Fill { to: region(2, 1, 5), value: 2 };
        let list = list(&[fill, copy, other]);
        assert_eq!(shape(&list, 1e9), [vec![(false, 3), (true, 1), (false, 5)]]);
        assert_eq!(shape(&list, 64.0), [vec![(false, 3)], vec![(false, 1)], vec![(false, 5)]]);
    }

    #[test]
    fn a_command_that_does_nothing_leaves_its_barrier_to_the_next() {
        // The list puts the one barrier before the empty copy, for it names bytes that were written.
        let write = Command::Fill { to: region(0, 0, 16), value: 1 };
        let empty = Command::Copy { from: region(0, 8, 0), to: region(1, 8, 0) };
        let read = Command::Copy { from: region(0, 0, 16), to: region(2, 0, 16) };
        let list = list(&[write, empty, read]);
        assert_eq!(list.iter().map(|(barrier, _)| barrier).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(shape(&list, 1e9), [vec![(false, 3), (true, 0)]]);
        assert!(shape(&self::list(&[empty]), 1e9).is_empty(), "no command buffer for nothing");
    }

    #[test]
    fn every_step_knows_its_command() {
        let fill = |id, len| Command::Fill { to: region(id, 0, len), value: 1 };
        let list = list(&[fill(0, 16), fill(1, 0), fill(2, 5), fill(3, 16)]);
        let bound = Bound { bytes: 20.0, work: f64::MAX };
        let runs = runs(&list, &LIMITS, &bound, &ready).unwrap();
        let places: Vec<Vec<usize>> =
            runs.iter().map(|run| run.iter().map(|step| step.command).collect()).collect();
        assert_eq!(places, [vec![0], vec![2], vec![3]]);
    }

    #[test]
    fn what_a_library_does_stands_alone_where_times_are_wanted() {
        let step = |command: usize, call: bool| {
            let fill = list(&[Command::Fill { to: region(0, 0, 16), value: 1 }]);
            let bound = Bound { bytes: 1e9, work: f64::MAX };
            let made = runs(&fill, &LIMITS, &bound, &ready).unwrap().remove(0).remove(0);
            let dispatch = Cow::Owned(made.dispatch.into_owned());
            let gemm = Gemm { m: 1, n: 1, k: 8, pitch: 1, dtype: DType::F16, batches: 1, adds: false };
            Step { command, barrier: true, dispatch, call: call.then_some(Call::Product(gemm)) }
        };
        let calls = [false, false, true, true, false];
        let run = calls.iter().enumerate().map(|(index, call)| step(index, *call)).collect();
        let found = apart(vec![run, vec![step(5, true)], vec![step(6, false)]]);
        let places: Vec<Vec<usize>> =
            found.iter().map(|run| run.iter().map(|step| step.command).collect()).collect();
        assert_eq!(places, [vec![0, 1], vec![2], vec![3], vec![4], vec![5], vec![6]]);
        assert!(found.iter().all(|run| !run[0].barrier) && found[0][1].barrier);
    }

    #[test]
    fn bytes_reach_the_dispatch_as_bindings() {
        let list = list(&[Command::Copy { from: region(4, 16, 64), to: region(5, 32, 64) }]);
        let bound = Bound { bytes: 1e9, work: 1e9 };
        let runs = runs(&list, &LIMITS, &bound, &ready).unwrap();
        let bound: Vec<_> = runs[0][0].dispatch.bindings().map(|(i, b)| (i, b.region)).collect();
        assert_eq!(bound, [(1, region(4, 16, 64)), (2, region(5, 32, 64))]);
    }

    #[test]
    fn a_kernel_that_does_not_compile_is_the_error_of_the_list() {
        let list = list(&[Command::Fill { to: region(0, 0, 16), value: 1 }]);
        let fails = |k: &Kernel| Err(GpuError::Missing(k.function.to_owned()));
        let bound = Bound { bytes: 1e9, work: 1e9 };
        assert!(runs(&list, &LIMITS, &bound, &fails).is_err());
    }
}
