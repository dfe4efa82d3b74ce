//! A small driver, written as it should be. The tests of mistakes change one thing each.

mod lifetimes;
mod limits;
mod mistakes;
mod mps;
mod order;
mod program;
mod resources;
mod texture;

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::*;
use softmetal_framework::{Problem, Rule};

pub(crate) type Device = Retained<ProtocolObject<dyn MTLDevice>>;
pub(crate) type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;
pub(crate) type Encoder = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;
pub(crate) type CommandBuffer = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
pub(crate) type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// `y[i] = x[i] * p.factor + p.plus`, by way of threadgroup memory.
pub(crate) const SOURCE: &str = "#include <metal_stdlib>
using namespace metal;
struct P { uint factor; uint plus; };
kernel void scale(constant P& p [[buffer(0)]], device const uint* x [[buffer(1)]], device uint* y [[buffer(2)]],
                  threadgroup uint* t [[threadgroup(0)]],
                  uint i [[thread_position_in_grid]], uint l [[thread_index_in_threadgroup]]) {
    t[l] = x[i] * p.factor + p.plus;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = t[l];
}
";
pub(crate) const N: usize = 256;
pub(crate) const BYTES: usize = N * 4;
pub(crate) const THREADS: usize = 64;

/// Problems and leaks are those of the process: one test at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn size(width: usize) -> MTLSize {
    MTLSize { width, height: 1, depth: 1 }
}

/// What a driver has for a long time.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    pub(crate) pipeline: Pipeline,
    pub(crate) x: Buffer,
    pub(crate) y: Buffer,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let device = MTLCreateSystemDefaultDevice().expect("a device");
        let queue = device.newCommandQueue().expect("a queue");
        let options = MTLCompileOptions::new();
        let library = device.newLibraryWithSource_options_error(&NSString::from_str(SOURCE), Some(&options));
        let function = library.expect("it compiles").newFunctionWithName(&NSString::from_str("scale"));
        let function = function.expect("it is there");
        let pipeline = device.newComputePipelineStateWithFunction_error(&function).expect("a pipeline");
        let memory = device.clone();
        let shared = || {
            memory.newBufferWithLength_options(BYTES, MTLResourceOptions::StorageModeShared).expect("memory")
        };
        let (x, y) = (shared(), shared());
        fill(&x);
        Bench { device, queue, pipeline, x, y }
    }

    pub(crate) fn command_buffer(&self) -> CommandBuffer {
        self.queue.commandBuffer().expect("a command buffer")
    }

    /// Everything that the kernel needs.
    pub(crate) fn bind(&self, encoder: &Encoder) {
        encoder.setComputePipelineState(&self.pipeline);
        bytes(encoder, &[3, 1]);
        buffer(encoder, &self.x, 0, 1);
        buffer(encoder, &self.y, 0, 2);
        threadgroup(encoder, THREADS * 4);
    }

    /// One dispatch from beginning to end.
    pub(crate) fn run(&self) {
        let command_buffer = self.command_buffer();
        let encoder = encoder_of(&command_buffer);
        self.bind(&encoder);
        dispatch(&encoder);
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        assert_eq!(command_buffer.status(), MTLCommandBufferStatus::Completed);
    }
}

pub(crate) fn encoder_of(command_buffer: &CommandBuffer) -> Encoder {
    command_buffer.computeCommandEncoder().expect("an encoder")
}

pub(crate) fn dispatch(encoder: &Encoder) {
    encoder.dispatchThreadgroups_threadsPerThreadgroup(size(N / THREADS), size(THREADS));
}

pub(crate) fn bytes(encoder: &Encoder, words: &[u32]) {
    // SAFETY: the pointer is to so many bytes.
    unsafe { encoder.setBytes_length_atIndex(NonNull::from(words).cast(), words.len() * 4, 0) };
}

pub(crate) fn buffer(encoder: &Encoder, buffer: &Buffer, offset: usize, index: usize) {
    // SAFETY: what is wrong with it is refused.
    unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), offset, index) };
}

pub(crate) fn threadgroup(encoder: &Encoder, len: usize) {
    // SAFETY: what is wrong with it is refused.
    unsafe { encoder.setThreadgroupMemoryLength_atIndex(len, 0) };
}

pub(crate) fn words(buffer: &Buffer) -> Vec<u32> {
    // SAFETY: the buffer has so many bytes, and nothing runs.
    unsafe { std::slice::from_raw_parts(buffer.contents().cast::<u32>().as_ptr(), buffer.length() / 4) }
        .to_vec()
}

pub(crate) fn fill(buffer: &Buffer) {
    let to = buffer.contents().cast::<u32>();
    for i in 0..buffer.length() / 4 {
        // SAFETY: inside of the buffer.
        unsafe { to.add(i).write(i as u32) };
    }
}

/// The rules that problems are of.
pub(crate) fn rules(problems: &[Problem]) -> Vec<Rule> {
    problems.iter().map(|problem| problem.rule).collect()
}

/// A kernel of a source.
pub(crate) fn pipeline_of(device: &Device, source: &str, name: &str) -> Pipeline {
    let library = device.newLibraryWithSource_options_error(&NSString::from_str(source), None);
    let function = library.expect("it compiles").newFunctionWithName(&NSString::from_str(name));
    device.newComputePipelineStateWithFunction_error(&function.expect("it is there")).expect("a pipeline")
}

pub(crate) fn scaled() -> Vec<u32> {
    (0..N as u32).map(|i| i * 3 + 1).collect()
}
