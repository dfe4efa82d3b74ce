//! Memory of tensors, and the work on it that the device was not given yet.

use std::mem;
use std::sync::{Arc, Mutex};

use metallic_core::BackendError;
use metallic_core::tensor::TensorMemory;

use super::Work;
use crate::backend::Shared;
use crate::command::{CommandList, Region};
use crate::error::GpuError;
use crate::gpu::{Storage, Submission};
use crate::lock;
use crate::pipelines::ReadyPipeline;
use crate::pool::Allocation;

/// Operations that wait for a submission at most.
const MOST_WAITING: usize = 64;
/// Bytes of scratch that wait with them at most.
const MOST_SCRATCH: usize = 64 << 20;

/// A buffer that tensors lie in. Work that waits keeps it.
#[derive(Debug)]
pub(super) struct Held {
    buffer: Allocation,
    /// Why what stands in it is not what was to be computed.
    failed: Mutex<Option<GpuError>>,
}

impl Held {
    pub(super) fn region(&self) -> Region {
        self.buffer.region()
    }

    /// An error where what was to be computed here never came.
    pub(super) fn check(&self) -> Result<(), GpuError> {
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }

    /// Everything in it is about to be written anew.
    pub(super) fn renew(&self) {
        *lock(&self.failed) = None;
    }
}

/// What was asked for and not submitted yet, with everything it needs to stay.
#[derive(Default)]
struct Waiting {
    commands: CommandList,
    written: Vec<Arc<Held>>,
    read: Vec<Arc<Held>>,
    scratch: Vec<Allocation>,
    pipelines: Vec<Arc<ReadyPipeline>>,
}

/// The operations of one device, in the order they were given: several go to the device at once.
pub(super) struct Queue {
    pub(super) shared: Arc<Shared>,
    waiting: Mutex<Waiting>,
    /// Work nobody waits for any longer; the device may still touch its memory.
    stuck: Mutex<Vec<(Box<dyn Submission>, Waiting)>>,
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>) -> Queue {
        Queue { shared, waiting: Mutex::default(), stuck: Mutex::default() }
    }

    pub(super) fn allocate(self: &Arc<Queue>, bytes: usize) -> Result<GpuMemory, GpuError> {
        let buffer = self.shared.pool.transient("a tensor", bytes, Storage::Shared)?;
        Ok(GpuMemory { queue: self.clone(), held: Arc::new(Held { buffer, failed: Mutex::default() }) })
    }

    /// Takes over the commands of an operation. Returns how often work was handed over on the way.
    pub(super) fn push(&self, work: Work, read: Vec<Arc<Held>>, written: Arc<Held>) -> u64 {
        let mut waiting = lock(&self.waiting);
        for command in work.commands {
            waiting.commands.push(command);
        }
        waiting.scratch.push(work.scratch);
        waiting.pipelines.extend(work.kernels.pipelines);
        waiting.read.extend(read);
        waiting.written.push(written);
        let scratch: usize = waiting.scratch.iter().map(|buffer| buffer.region().len()).sum();
        if waiting.commands.len() < MOST_WAITING && scratch < MOST_SCRATCH {
            return 0;
        }
        self.submit(&mut waiting)
    }

    /// Waits until everything that was asked for is done. A failure stays with the memory it was to write.
    fn finish(&self) {
        self.submit(&mut lock(&self.waiting));
    }

    fn submit(&self, waiting: &mut Waiting) -> u64 {
        let batch = mem::take(waiting);
        if batch.commands.is_empty() {
            return 0;
        }
        let mut stuck = lock(&self.stuck);
        stuck.retain_mut(|(submission, _)| !submission.poll());
        let fail = |batch: &Waiting, error: GpuError| {
            for held in &batch.written {
                lock(&held.failed).get_or_insert_with(|| error.clone());
            }
        };
        let mut submission = match self.shared.gpu.submit(&batch.commands) {
            Ok(submission) => submission,
            Err(error) => {
                fail(&batch, error);
                return 0;
            }
        };
        let handed_over = submission.command_buffers();
        if let Err(error) = submission.wait(self.shared.options.timeout) {
            let late = matches!(error, GpuError::Timeout { .. });
            fail(&batch, error);
            if late {
                stuck.push((submission, batch));
            }
        }
        handed_over
    }
}

pub(super) struct GpuMemory {
    pub(super) queue: Arc<Queue>,
    pub(super) held: Arc<Held>,
}

impl GpuMemory {
    /// Where bytes lie in the buffer, once all work on them is done.
    fn settled(&self, offset: usize, len: usize) -> Result<Region, BackendError> {
        let all = self.held.region();
        let found = all.len();
        let region = all.slice(offset, len).map_err(|_| BackendError::Range { start: offset, len, found })?;
        self.queue.finish();
        Ok(region)
    }
}

impl TensorMemory for GpuMemory {
    fn len(&self) -> usize {
        self.held.region().len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        let region = self.settled(offset, out.len())?;
        let device = self.queue.shared.kind();
        self.held.check().map_err(|e| e.on(device))?;
        self.queue.shared.gpu.read(region.buffer(), region.offset(), out).map_err(|e| e.on(device))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BackendError> {
        let region = self.settled(offset, bytes.len())?;
        if region.len() == self.len() {
            self.held.renew();
        }
        let device = self.queue.shared.kind();
        self.queue.shared.gpu.write(region.buffer(), region.offset(), bytes).map_err(|e| e.on(device))
    }
}
