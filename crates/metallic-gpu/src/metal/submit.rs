//! Steps to command buffers, and what becomes of them.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder as _, MTLCommandQueue,
    MTLComputeCommandEncoder, MTLDispatchType, MTLSize,
};

use super::buffer::Buffer;
use super::clock::{Clock, Samples};
use super::library::Ready;
use super::mps::Bound;
use crate::command::Dispatch;
use crate::driver::check;
use crate::driver::fault::{self, About};
use crate::driver::progress::{Progress, Running};
use crate::driver::steps::Step;
use crate::error::GpuError;
use crate::lock;

/// Everything a submission uses, in the order of its steps and their bindings. Alive until the GPU is done.
#[derive(Default)]
pub(super) struct Kept {
    /// One for each step.
    pub(super) pipelines: Vec<Arc<Ready>>,
    /// One for each binding of each step.
    pub(super) buffers: Vec<Arc<Buffer>>,
    /// One for each step: what a library does in its place.
    pub(super) calls: Vec<Option<Bound>>,
}

/// A submission until the GPU is done.
struct Work {
    kept: Kept,
    about: About,
    begun: Instant,
}

pub(super) struct Encoder<'q> {
    pub(super) queue: &'q ProtocolObject<dyn MTLCommandQueue>,
    /// Whether each dispatch is named, for captures.
    pub(super) named: bool,
    /// What notes the time of each dispatch, where that is wanted.
    pub(super) clock: Option<Clock>,
}

impl Encoder<'_> {
    /// Encodes and hands over each run as soon as it is ready, so that the GPU begins with the first.
    pub(super) fn submit(
        &self,
        runs: &[Vec<Step<'_>>],
        kept: Kept,
        about: About,
    ) -> Result<Running, GpuError> {
        let label = NSString::from_str(&about.label);
        let work = Arc::new(Work { kept, about, begun: Instant::now() });
        let kept = &work.kept;
        let mut left =
            Left { pipelines: kept.pipelines.iter(), buffers: kept.buffers.iter(), calls: kept.calls.iter() };
        Running::start(runs.len(), |index, progress| {
            let run = &runs[index];
            let samples = self.clock.as_ref().map(|clock| noted(clock, run, &label)).transpose()?;
            let Encoded { command_buffer, earlier } =
                self.encode(run, &label, samples.as_ref(), &mut left)?;
            let until = Until { work: work.clone(), samples, earlier: Earlier(earlier) };
            let block = handler(progress.clone(), until, index);
            // SAFETY: the pointer is to a living block, which Metal copies; its closure may run on any thread, see
            // `handler`.
            unsafe { command_buffer.addCompletedHandler(RcBlock::as_ptr(&block)) };
            command_buffer.commit();
            Ok(())
        })
    }

    fn encode(
        &self,
        run: &[Step<'_>],
        label: &NSString,
        samples: Option<&Samples>,
        left: &mut Left<'_>,
    ) -> Result<Encoded, GpuError> {
        let none =
            |what: &str| GpuError::execution(label.to_string(), format!("the system has no {what} to give"));
        // Unretained: `Kept` holds everything until the handler has run. What a library encodes uses memory of its own, which its
        // headers leave to the command buffer.
        let made = if run.iter().any(|step| step.call.is_some()) {
            self.queue.commandBuffer()
        } else {
            self.queue.commandBufferWithUnretainedReferences()
        };
        let command_buffer = made.ok_or_else(|| none("command buffer"))?;
        command_buffer.setLabel(Some(label));
        let mut encoded = Encoded { command_buffer, earlier: Vec::new() };
        if let Some(samples) = samples.filter(|samples| samples.notes_steps()) {
            // Buffers are tracked, so encoders that share one run in order.
            for (index, step) in run.iter().enumerate() {
                let made = samples.encoder(&encoded.command_buffer, index);
                let encoder = made.ok_or_else(|| none("compute encoder"))?;
                // What a library does stands in a run of its own.
                left.calls.next();
                left.dispatch(&encoder, &step.dispatch);
                encoder.endEncoding();
            }
            return Ok(encoded);
        }
        let mut open: Option<OpenEncoder> = None;
        for step in run {
            if let Some(call) = left.call() {
                // A library encodes into the command buffer, which must have no encoder then.
                open = None;
                left.pass_over(&step.dispatch);
                encoded.go_on(call);
                continue;
            }
            let (encoder, is_new) = match open.take() {
                Some(encoder) => (encoder, false),
                None => {
                    (OpenEncoder::new(&encoded.command_buffer).ok_or_else(|| none("compute encoder"))?, true)
                }
            };
            // Encoders wait for what they share with those before.
            if step.barrier && !is_new {
                encoder.0.memoryBarrierWithScope(MTLBarrierScope::Buffers);
            }
            if self.named {
                encoder.0.pushDebugGroup(&NSString::from_str(step.dispatch.label));
            }
            left.dispatch(&encoder.0, &step.dispatch);
            if self.named {
                encoder.0.popDebugGroup();
            }
            open = Some(encoder);
        }
        drop(open);
        Ok(encoded)
    }
}

/// Where the times of a run's steps come from.
fn noted(clock: &Clock, run: &[Step<'_>], label: &NSString) -> Result<Samples, GpuError> {
    match run {
        [step] if step.call.is_some() => Ok(clock.whole(step.command)),
        _ => clock.samples(label, run.iter().map(|step| step.command).collect()),
    }
}

/// An encoder that ends with its scope: one that goes without `endEncoding` ends the process.
struct OpenEncoder(Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>);

impl OpenEncoder {
    fn new(command_buffer: &ProtocolObject<dyn MTLCommandBuffer>) -> Option<OpenEncoder> {
        command_buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).map(OpenEncoder)
    }
}

impl Drop for OpenEncoder {
    fn drop(&mut self) {
        self.0.endEncoding();
    }
}

/// A run on its way into a command buffer.
struct Encoded {
    command_buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    /// Those before it, which a library has committed.
    earlier: Vec<Retained<ProtocolObject<dyn MTLCommandBuffer>>>,
}

impl Encoded {
    /// Lets a library encode, and goes on with the command buffer that it leaves.
    fn go_on(&mut self, call: &Bound) {
        let next = call.encode(self.command_buffer.clone());
        let before = std::mem::replace(&mut self.command_buffer, next);
        if before != self.command_buffer {
            self.earlier.push(before);
        }
    }
}

/// What is left of a submission's objects to encode.
struct Left<'k> {
    pipelines: std::slice::Iter<'k, Arc<Ready>>,
    buffers: std::slice::Iter<'k, Arc<Buffer>>,
    calls: std::slice::Iter<'k, Option<Bound>>,
}

impl<'k> Left<'k> {
    /// What a library does in the place of the next step.
    fn call(&mut self) -> Option<&'k Bound> {
        self.calls.next().and_then(Option::as_ref)
    }

    /// The next step is not dispatched.
    fn pass_over(&mut self, dispatch: &Dispatch) {
        self.pipelines.next();
        self.buffers.by_ref().take(dispatch.bindings().count()).for_each(drop);
    }

    fn dispatch(&mut self, encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>, dispatch: &Dispatch) {
        if let Some(pipeline) = self.pipelines.next() {
            self::dispatch(encoder, dispatch, pipeline, &mut self.buffers);
        }
    }
}

fn dispatch<'k>(
    encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>,
    dispatch: &Dispatch,
    pipeline: &Ready,
    buffers: &mut impl Iterator<Item = &'k Arc<Buffer>>,
) {
    encoder.setComputePipelineState(&pipeline.raw);
    let launch = &dispatch.launch;
    let params = launch.params.as_bytes();
    if !params.is_empty() {
        // SAFETY: the pointer is to that many bytes, which Metal copies; there are at most `MAX_PARAMS`, of 4096
        // that it takes.
        unsafe { encoder.setBytes_length_atIndex(NonNull::from(params).cast(), params.len(), 0) };
    }
    for ((index, binding), buffer) in dispatch.bindings().zip(buffers) {
        // SAFETY: the region lies inside the buffer (`check::binding`) and the kernel's argument at that index is
        // a buffer (declared, and held to the MSL by a test); `Kept` holds the buffer until the GPU is done.
        unsafe {
            encoder.setBuffer_offset_atIndex(Some(&buffer.raw), binding.region.offset(), index as usize);
        }
    }
    if launch.threadgroup_bytes > 0 {
        let bytes = check::threadgroup_memory(launch.threadgroup_bytes) as usize;
        // SAFETY: a multiple of 16 that the device has (`check::launch`).
        unsafe { encoder.setThreadgroupMemoryLength_atIndex(bytes, 0) };
    }
    encoder.dispatchThreadgroups_threadsPerThreadgroup(size(launch.groups), size(launch.threads));
}

fn size([width, height, depth]: [u32; 3]) -> MTLSize {
    MTLSize { width: width as usize, height: height as usize, depth: depth as usize }
}

type Handler = RcBlock<dyn Fn(NonNull<ProtocolObject<dyn MTLCommandBuffer>>)>;

/// What lives until a command buffer is done.
struct Until {
    work: Arc<Work>,
    samples: Option<Samples>,
    earlier: Earlier,
}

impl Until {
    /// How it went: begin and end in seconds.
    fn outcome(&self, last: &ProtocolObject<dyn MTLCommandBuffer>) -> Result<(f64, f64), GpuError> {
        let (begin, end) = whole_outcome(&self.earlier, last, &self.work)?;
        if self.samples.as_ref().is_some_and(|samples| !samples.tell(end - begin)) {
            let label = self.work.about.label.clone();
            return Err(GpuError::execution(label, "the GPU told no times of it"));
        }
        Ok((begin, end))
    }
}

/// Called by Metal on a thread of its own when a command buffer is done.
fn handler(progress: Arc<Progress>, until: Until, index: usize) -> Handler {
    let until = Mutex::new(Some(until));
    let done = move |command_buffer: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
        // SAFETY: Metal hands over a command buffer that lives for the call.
        let command_buffer = unsafe { command_buffer.as_ref() };
        // Memory goes before the end is told: who waits for it may count on the room.
        let outcome = autoreleasepool(|_| lock(&until).take().map(|until| until.outcome(command_buffer)));
        if let Some(outcome) = outcome {
            progress.finish(index, outcome);
        }
    };
    RcBlock::new(sendable(done))
}

/// The compiler checks what Metal takes for granted.
fn sendable<T: Send + Sync>(closure: T) -> T {
    closure
}

/// Command buffers that a library has committed before the one that ends a run.
struct Earlier(Vec<Retained<ProtocolObject<dyn MTLCommandBuffer>>>);

// SAFETY: command buffers may be asked from any thread how they went.
unsafe impl Send for Earlier {}
// SAFETY: as above.
unsafe impl Sync for Earlier {}

/// How all command buffers of a run went, of which the last has ended: they end in order.
fn whole_outcome(
    earlier: &Earlier,
    last: &ProtocolObject<dyn MTLCommandBuffer>,
    work: &Work,
) -> Result<(f64, f64), GpuError> {
    let mut first = None;
    for command_buffer in &earlier.0 {
        let (begin, _) = outcome(command_buffer, work)?;
        first.get_or_insert(begin);
    }
    let (begin, end) = outcome(last, work)?;
    Ok((first.unwrap_or(begin), end))
}

fn outcome(
    command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
    work: &Work,
) -> Result<(f64, f64), GpuError> {
    let error = command_buffer.error();
    if error.is_none() && command_buffer.status() == MTLCommandBufferStatus::Completed {
        return Ok((command_buffer.GPUStartTime(), command_buffer.GPUEndTime()));
    }
    let ours = error.as_ref().filter(|e| e.domain().to_string() == "MTLCommandBufferErrorDomain");
    let text = error.as_ref().map(|e| e.localizedDescription().to_string()).unwrap_or_default();
    Err(fault::error(&work.about, ours.map(|e| e.code()), &text, work.begun.elapsed()))
}
