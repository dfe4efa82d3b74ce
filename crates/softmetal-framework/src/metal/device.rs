//! `MTLDevice`.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use softmetal::{Compiler, Flavour};

use super::profile::{Profile, Times};
use super::{archive, buffer, counters, heap, library, pipeline, queue, residency, sampler, sync, texture};
use crate::foundation::{NS_OBJECT, array, string};
use crate::lock;
use crate::objc::{
    BlockArg, Id, InBytes, Method, MtlSize, OutBytes, OutObject, Strong, at_exit, class, give, methods, none,
};
use crate::settings::{self, Settings, macos_version};

class!(pub(crate) static DEVICE = c"MTLSoftDevice", &NS_OBJECT, all_methods, none);

class!(static ARCHITECTURE = c"MTLArchitecture", &NS_OBJECT, architecture, none);

struct Architecture(String);

fn architecture() -> Vec<Method> {
    methods! { Architecture; c"name"(this) -> Id { string(&this.0).lend() } }
}

/// What an `MTLDevice` holds.
pub(crate) struct Device {
    pub(crate) profile: Profile,
    registry: u64,
    compiler: OnceLock<Result<Compiler, String>>,
    runner: OnceLock<softmetal::Device>,
    /// Bytes of buffers and heaps.
    pub(crate) allocated: AtomicU64,
    /// Nothing runs on it any more.
    pub(crate) removed: AtomicBool,
    concurrent_compilation: AtomicUsize,
}

impl Device {
    fn new(profile: Profile, index: u64) -> Device {
        Device {
            profile,
            registry: 0x1_0000_0100 + index,
            compiler: OnceLock::new(),
            runner: OnceLock::new(),
            allocated: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            concurrent_compilation: AtomicUsize::new(0),
        }
    }

    /// What compiles kernels, or why there is none.
    pub(crate) fn compiler(&self) -> Result<&Compiler, String> {
        let flavour = if settings::checked() { Flavour::Checked } else { Flavour::Plain };
        let made = self.compiler.get_or_init(|| {
            Compiler::new().map(|compiler| compiler.flavour(flavour)).map_err(|error| error.to_string())
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// What runs kernels.
    pub(crate) fn runner(&self) -> &softmetal::Device {
        self.runner.get_or_init(|| {
            let device = match Settings::get().threads {
                0 => softmetal::Device::new(),
                threads => softmetal::Device::with_workers(threads),
            };
            device.threadgroup_memory(self.profile.threadgroup_memory)
        })
    }
}

/// The devices of this process, each made once.
static MADE: Mutex<Vec<Strong>> = Mutex::new(Vec::new());

fn made() -> Vec<Strong> {
    let mut made = lock(&MADE);
    if made.is_empty() {
        if Settings::get().strict {
            at_exit();
        }
        let device = |(index, profile)| Strong::new(&DEVICE, Device::new(profile, index));
        *made = (0..).zip(settings::devices()).map(device).collect();
    }
    made.clone()
}

/// The next call finds others.
pub(crate) fn forget() {
    let gone = std::mem::take(&mut *lock(&MADE));
    drop(gone);
}

/// `MTLCreateSystemDefaultDevice`.
pub(crate) fn default() -> Id {
    give(made().into_iter().next())
}

/// `MTLCopyAllDevices`.
pub(crate) fn all() -> Id {
    array(made()).give()
}

fn all_methods() -> Vec<Method> {
    let mut all = facts();
    all.extend(makers());
    all.extend(compilers());
    all
}

fn facts() -> Vec<Method> {
    methods! { Device;
        c"name"(this) -> Id { string(&this.profile.name).lend() }
        c"architecture"(this) -> Id {
            Strong::new(&ARCHITECTURE, Architecture(this.profile.architecture.clone())).lend()
        }
        c"registryID"(this) -> u64 { this.registry }
        c"hasUnifiedMemory"(this) -> bool { this.profile.unified }
        c"isLowPower"(this) -> bool { this.profile.apple_family == 0 }
        c"isHeadless"(_) -> bool { false }
        c"isRemovable"(_) -> bool { false }
        c"location"(_) -> usize { 0 }
        c"locationNumber"(_) -> usize { 0 }
        c"maxTransferRate"(_) -> u64 { 0 }
        c"recommendedMaxWorkingSetSize"(this) -> u64 { this.profile.working_set }
        c"currentAllocatedSize"(this) -> usize { this.allocated.load(Ordering::Relaxed) as usize }
        c"maxThreadsPerThreadgroup"(this) -> MtlSize {
            let most = this.profile.max_threads;
            MtlSize { width: most, height: most, depth: most }
        }
        c"maxThreadgroupMemoryLength"(this) -> usize { this.profile.threadgroup_memory }
        c"maxBufferLength"(this) -> usize { this.profile.max_buffer }
        c"supportsFamily:"(this, family: isize) -> bool { this.profile.supports(family, macos_version()) }
        c"argumentBuffersSupport"(_) -> usize { 1 }
        c"readWriteTextureSupport"(_) -> usize { 2 }
        c"minimumLinearTextureAlignmentForPixelFormat:"(_, _format: usize) -> usize { texture::ROW_ALIGNMENT }
        c"minimumTextureBufferAlignmentForPixelFormat:"(_, _format: usize) -> usize { texture::ROW_ALIGNMENT }
        c"supportsTextureSampleCount:"(_, count: usize) -> bool { count == 1 }
        c"supportsRaytracing"(_) -> bool { false }
        c"supportsFunctionPointers"(_) -> bool { false }
        c"supportsDynamicLibraries"(_) -> bool { false }
        c"shouldMaximizeConcurrentCompilation"(this) -> bool {
            this.concurrent_compilation.load(Ordering::Relaxed) != 0
        }
        c"setShouldMaximizeConcurrentCompilation:"(this, yes: bool) {
            this.concurrent_compilation.store(usize::from(yes), Ordering::Relaxed);
        }
        c"maximumConcurrentCompilationTaskCount"(_) -> usize {
            std::thread::available_parallelism().map_or(1, usize::from)
        }
        c"supportsCounterSampling:"(this, point: usize) -> bool {
            // 0: at the ends of encoders; 2: between dispatches; 4: between commands of a blit encoder.
            point == 0 && this.profile.times > Times::Nowhere
                || matches!(point, 2 | 4) && this.profile.times == Times::AtDispatches
        }
        c"counterSets"(this) -> Id { counters::sets(this.profile.times != Times::NoCounter).lend() }
        c"sampleTimestamps:gpuTimestamp:"(_, cpu: OutBytes, gpu: OutBytes) {
            let now = counters::now().to_ne_bytes();
            cpu.fill(&now);
            gpu.fill(&now);
        }
    }
}

fn makers() -> Vec<Method> {
    methods! { Device;
        c"newBufferWithLength:options:"(this, length: usize, options: usize) -> Id {
            give(buffer::new(&this, length, options))
        }
        c"newBufferWithBytes:length:options:"(this, bytes: InBytes, length: usize, options: usize) -> Id {
            give(buffer::of_bytes(&this, bytes, length, options))
        }
        c"newBufferWithBytesNoCopy:length:options:deallocator:"(
            this, pages: OutBytes, length: usize, options: usize, deallocator: BlockArg
        ) -> Id {
            give(buffer::of_pages(&this, pages, length, options, deallocator))
        }
        c"newTextureWithDescriptor:"(this, descriptor: Id) -> Id { give(texture::new(&this, descriptor)) }
        c"newSamplerStateWithDescriptor:"(this, descriptor: Id) -> Id { give(sampler::new(&this, descriptor)) }
        c"newHeapWithDescriptor:"(this, descriptor: Id) -> Id { give(heap::new(&this, descriptor)) }
        c"newCommandQueue"(this) -> Id { give(queue::new(&this, queue::USUAL)) }
        c"newCommandQueueWithMaxCommandBufferCount:"(this, most: usize) -> Id { give(queue::new(&this, most)) }
        c"newCommandQueueWithDescriptor:"(this, descriptor: Id) -> Id {
            give(queue::described(&this, descriptor))
        }
        c"newFence"(this) -> Id { sync::fence(&this).give() }
        c"newEvent"(this) -> Id { sync::event(&this, false).give() }
        c"newSharedEvent"(this) -> Id { sync::event(&this, true).give() }
        c"newResidencySetWithDescriptor:error:"(this, descriptor: Id, error: OutObject) -> Id {
            give(residency::new(&this, descriptor, error))
        }
        c"newCounterSampleBufferWithDescriptor:error:"(this, descriptor: Id, error: OutObject) -> Id {
            give(counters::samples(&this, descriptor, error))
        }
    }
}

fn compilers() -> Vec<Method> {
    methods! { Device;
        c"newLibraryWithSource:options:error:"(this, source: Id, options: Id, error: OutObject) -> Id {
            give(library::compile(&this, source, options, error))
        }
        c"newComputePipelineStateWithFunction:error:"(this, function: Id, error: OutObject) -> Id {
            give(pipeline::of_function(&this, function, error))
        }
        c"newComputePipelineStateWithFunction:options:reflection:error:"(
            this, function: Id, options: usize, reflection: OutObject, error: OutObject
        ) -> Id {
            give(pipeline::reflected(&this, function, options, reflection, error))
        }
        c"newComputePipelineStateWithDescriptor:options:reflection:error:"(
            this, descriptor: Id, options: usize, reflection: OutObject, error: OutObject
        ) -> Id {
            give(pipeline::described(&this, descriptor, options, reflection, error))
        }
        c"newBinaryArchiveWithDescriptor:error:"(this, descriptor: Id, error: OutObject) -> Id {
            give(archive::new(&this, descriptor, error))
        }
    }
}
