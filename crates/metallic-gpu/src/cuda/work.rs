//! Commands with what they name, on their way to a stream.

use super::api::{Address, Arguments, Blas, Event, Grid, Stream};
use super::{Kept, Ready};
use crate::command::Dispatch;
use crate::driver::check;
use crate::error::GpuError;
use crate::kernels::Gemm;

/// A command with what it names.
pub(super) enum Work<'c> {
    Launch {
        dispatch: &'c Dispatch,
        kernel: usize,
        addresses: Vec<Address>,
    },
    /// A product by a library: where `x`, `w` and the result lie.
    Product {
        label: &'static str,
        product: Gemm,
        at: [Address; 3],
    },
    /// From the buffer `first` of those kept to the next.
    Copy {
        first: usize,
        from: usize,
        to: usize,
        len: usize,
    },
    Fill {
        buffer: usize,
        to: usize,
        len: usize,
        value: u8,
    },
}

/// Hands all commands to the stream. A kernel that follows another one may begin early.
///
/// In a recording, `marks` are the moments before each command and after the last; nothing begins early there.
pub(super) fn hand_over(
    stream: &Stream,
    blas: Option<&Blas>,
    kept: &Kept,
    work: &[Work<'_>],
    marks: &[Event],
) -> Result<(), GpuError> {
    let mut follows = false;
    let mut marks = marks.iter();
    for work in work {
        let marked = marks.next().map(|mark| mark.mark(stream)).transpose()?.is_some();
        let after_kernel = std::mem::replace(&mut follows, matches!(work, Work::Launch { .. }));
        match work {
            Work::Launch { dispatch, kernel, addresses } => {
                let launch = &dispatch.launch;
                let shared = check::threadgroup_memory(launch.threadgroup_bytes);
                let grid = Grid { groups: launch.groups, threads: launch.threads, shared };
                let arguments = Arguments { params: launch.params.as_bytes(), addresses };
                let Ready { kernel, early, .. } = &*kept.pipelines[*kernel];
                stream
                    .launch(kernel, grid, arguments, *early && after_kernel && !marked)
                    .map_err(|error| named(error, &dispatch.name()))?;
            }
            Work::Product { label, product, at } => {
                let missing = || GpuError::Missing("the library of products is not there".to_owned());
                let made = blas.ok_or_else(missing).and_then(|blas| blas.product(stream, product, *at));
                made.map_err(|error| named(error, label))?;
            }
            Work::Copy { first, from, to, len } => {
                let (source, target) = (&kept.buffers[*first], &kept.buffers[*first + 1]);
                stream.copy((&source.memory, *from), (&target.memory, *to), *len)?;
            }
            Work::Fill { buffer, to, len, value } => {
                stream.fill(&kept.buffers[*buffer].memory, *to, *len, *value)?;
            }
        }
    }
    marks.next().map_or(Ok(()), |last| last.mark(stream))
}

/// The same failure, of this operation.
pub(super) fn named(error: GpuError, label: &str) -> GpuError {
    match error {
        GpuError::Execution { reason, .. } => GpuError::execution(label, reason),
        other => other,
    }
}
