//! Steps to command buffers, and what becomes of them.

use std::ptr::NonNull;
use std::sync::Arc;
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
use crate::command::Dispatch;
use crate::driver::check;
use crate::driver::fault::{self, About};
use crate::driver::progress::{Progress, Running};
use crate::driver::steps::Step;
use crate::error::GpuError;

/// Everything a submission uses, in the order of its steps and their bindings. Alive until the GPU is done.
#[derive(Default)]
pub(super) struct Kept {
    /// One for each step.
    pub(super) pipelines: Vec<Arc<Ready>>,
    /// One for each binding of each step.
    pub(super) buffers: Vec<Arc<Buffer>>,
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
        let (mut pipelines, mut buffers) = (work.kept.pipelines.iter(), work.kept.buffers.iter());
        Running::start(runs.len(), |index, progress| {
            let run = &runs[index];
            let steps = || run.iter().map(|step| step.command).collect();
            let samples = self.clock.as_ref().map(|clock| clock.samples(&label, steps())).transpose()?;
            let command_buffer = self.encode(run, &label, samples.as_ref(), &mut pipelines, &mut buffers)?;
            let block = handler(progress.clone(), work.clone(), samples, index);
            // SAFETY: the pointer is to a living block, which Metal copies; its closure may run on any thread, see
            // `handler`.
            unsafe { command_buffer.addCompletedHandler(RcBlock::as_ptr(&block)) };
            command_buffer.commit();
            Ok(())
        })
    }

    fn encode<'k>(
        &self,
        run: &[Step<'_>],
        label: &NSString,
        samples: Option<&Samples>,
        pipelines: &mut impl Iterator<Item = &'k Arc<Ready>>,
        buffers: &mut impl Iterator<Item = &'k Arc<Buffer>>,
    ) -> Result<Retained<ProtocolObject<dyn MTLCommandBuffer>>, GpuError> {
        let none =
            |what: &str| GpuError::execution(label.to_string(), format!("the system has no {what} to give"));
        // Unretained: `Kept` holds everything until the handler has run.
        let made = self.queue.commandBufferWithUnretainedReferences();
        let command_buffer = made.ok_or_else(|| none("command buffer"))?;
        command_buffer.setLabel(Some(label));
        if let Some(samples) = samples {
            // Buffers are tracked, so encoders that share one run in order.
            for (index, (step, pipeline)) in run.iter().zip(pipelines).enumerate() {
                let made = samples.encoder(&command_buffer, index);
                let encoder = made.ok_or_else(|| none("compute encoder"))?;
                dispatch(&encoder, &step.dispatch, pipeline, buffers);
                encoder.endEncoding();
            }
            return Ok(command_buffer);
        }
        let made = command_buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        let encoder = made.ok_or_else(|| none("compute encoder"))?;
        // Nothing may return between here and `endEncoding`: an encoder that goes without it ends the process.
        for (step, pipeline) in run.iter().zip(pipelines) {
            if step.barrier {
                encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
            }
            if self.named {
                encoder.pushDebugGroup(&NSString::from_str(step.dispatch.label));
            }
            dispatch(&encoder, &step.dispatch, pipeline, buffers);
            if self.named {
                encoder.popDebugGroup();
            }
        }
        encoder.endEncoding();
        Ok(command_buffer)
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

/// Called by Metal on a thread of its own when a command buffer is done.
fn handler(progress: Arc<Progress>, work: Arc<Work>, samples: Option<Samples>, index: usize) -> Handler {
    let done = move |command_buffer: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
        // SAFETY: Metal hands over a command buffer that lives for the call.
        let command_buffer = unsafe { command_buffer.as_ref() };
        autoreleasepool(|_| {
            let told =
                |span: &(f64, f64)| samples.as_ref().is_none_or(|samples| samples.tell(span.1 - span.0));
            let outcome = match outcome(command_buffer, &work) {
                Ok(span) if !told(&span) => {
                    Err(GpuError::execution(work.about.label.clone(), "the GPU told no times of it"))
                }
                other => other,
            };
            progress.finish(index, outcome);
        });
    };
    RcBlock::new(sendable(done))
}

/// The compiler checks what Metal takes for granted.
fn sendable<T: Send + Sync>(closure: T) -> T {
    closure
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
