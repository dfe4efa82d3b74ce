//! Commands with what they name, on their way to a stream.

use super::api::{Address, Arguments, Grid, Stream};
use super::{Kept, Ready};
use crate::command::Dispatch;
use crate::driver::check;
use crate::error::GpuError;

/// A command with what it names.
pub(super) enum Work<'c> {
    Launch {
        dispatch: &'c Dispatch,
        kernel: usize,
        addresses: Vec<Address>,
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
pub(super) fn hand_over(stream: &Stream, kept: &Kept, work: &[Work<'_>]) -> Result<(), GpuError> {
    let mut follows = false;
    for work in work {
        let after_kernel = std::mem::replace(&mut follows, matches!(work, Work::Launch { .. }));
        match work {
            Work::Launch { dispatch, kernel, addresses } => {
                let launch = &dispatch.launch;
                let shared = check::threadgroup_memory(launch.threadgroup_bytes);
                let grid = Grid { groups: launch.groups, threads: launch.threads, shared };
                let arguments = Arguments { params: launch.params.as_bytes(), addresses };
                let Ready { kernel, early, .. } = &*kept.pipelines[*kernel];
                stream
                    .launch(kernel, grid, arguments, *early && after_kernel)
                    .map_err(|error| named(error, &dispatch.name()))?;
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
    Ok(())
}

/// The same failure, of this operation.
pub(super) fn named(error: GpuError, label: &str) -> GpuError {
    match error {
        GpuError::Execution { reason, .. } => GpuError::execution(label, reason),
        other => other,
    }
}
