//! Lists of which each command is timed: recordings of their own, with an event between each two commands.
//!
//! A recording is still one graph that runs without the host. An event waits for the kernel before it, so kernels do not begin early,
//! and each command's time has the one or two microseconds in it that the GPU takes from one node to the next.

use std::sync::Arc;
use std::time::Duration;

use super::api::{Event, Stream};
use super::replay::Recorded;
use super::work::{hand_over, named};
use super::{Cuda, Kept, Running};
use crate::command::CommandList;
use crate::driver::fault;
use crate::driver::progress::{Clock, Timed};
use crate::error::GpuError;
use crate::gpu::Submission;
use crate::lock;

/// Hands a list over by a recording that times its commands.
pub(super) fn submit(cuda: &Cuda, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
    cuda.context.alive()?;
    let label = fault::label(commands);
    let (stream, under_way) = &mut *lock(&cuda.work);
    under_way.sweep();
    let known = lock(&cuda.timed).find(commands);
    // Its events are those of one replay: while somebody may still ask for them, another recording serves.
    let recorded = match known.filter(is_free) {
        Some(recorded) => recorded,
        None => record(cuda, stream, commands)?,
    };
    let start = Event::after(stream)?;
    stream.replay(&recorded.replay).map_err(|error| named(error, &label))?;
    let end = under_way.keep(stream, Kept { recorded: Some(recorded.clone()), ..Kept::default() })?;
    Ok(Box::new(Timed { running: Running { label, start, end }, times: recorded }))
}

/// Whether nobody has it but the table it was found in and the finder.
fn is_free(recorded: &Arc<Recorded>) -> bool {
    Arc::strong_count(recorded) == 2
}

fn record(cuda: &Cuda, stream: &Stream, commands: &CommandList) -> Result<Arc<Recorded>, GpuError> {
    let (kept, work) = cuda.resolve(commands)?;
    let marks: Vec<Event> = (0..=work.len()).map(|_| Event::new(&cuda.context)).collect::<Result<_, _>>()?;
    let replay = stream.record(|| hand_over(stream, cuda.blas.as_ref(), &kept, &work, &marks))?;
    let recorded = Arc::new(Recorded { replay, marks, kept });
    lock(&cuda.timed).keep(commands, recorded.clone());
    Ok(recorded)
}

/// Its marks are those of the replay that was waited for.
impl Clock for Arc<Recorded> {
    fn read(&self) -> Result<Vec<Duration>, GpuError> {
        let between = |pair: &[Event]| -> Result<Duration, GpuError> {
            let seconds = pair[1].seconds_since(&pair[0])?;
            Ok(Duration::from_secs_f64(seconds.max(0.0)))
        };
        self.marks.windows(2).map(between).collect()
    }
}
