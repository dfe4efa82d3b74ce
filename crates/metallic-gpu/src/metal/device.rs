//! The GPUs of this machine.

use metallic_core::DeviceInfo;
use objc2::available;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSProcessInfo;
use objc2_metal::{MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};
use objc2_metal_performance_shaders::MPSSupportsMTLDevice;

use crate::driver::{choose, memory};
use crate::error::GpuError;
use crate::gpu::{AppleKernels, Limits};
use crate::tuning::built_in;

// Without this framework in the process `MTLCreateSystemDefaultDevice` finds nothing.
#[cfg_attr(target_os = "macos", link(name = "CoreGraphics", kind = "framework"))]
// SAFETY: the block declares nothing.
unsafe extern "C" {}

pub(super) type RawDevice = Retained<ProtocolObject<dyn MTLDevice>>;

/// A GPU of this machine.
#[derive(Clone, Debug)]
pub struct MetalDevice {
    /// What [`open`](super::open) takes to choose it.
    pub index: usize,
    /// What it is. Metal does not tell the number of its cores.
    pub info: DeviceInfo,
    /// What it allows.
    pub limits: Limits,
    /// Name and build of the system, which drives it and compiles its kernels.
    pub system: String,
    /// Whether it is the system's choice.
    pub default: bool,
    /// Whether the kernels run on it: on every GPU of Apple Silicon.
    pub usable: bool,
}

/// All GPUs of this machine.
pub fn devices() -> Vec<MetalDevice> {
    autoreleasepool(|_| {
        let (found, default) = all();
        let describe = |(index, device): (usize, &RawDevice)| MetalDevice {
            index,
            info: info(device),
            limits: limits(device),
            system: system(),
            default: default == Some(index),
            usable: usable(device),
        };
        found.iter().enumerate().map(describe).collect()
    })
}

/// The GPU that is asked for, if the kernels run on it.
pub(super) fn find(which: Option<&str>) -> Result<RawDevice, GpuError> {
    let (mut found, default) = all();
    let names: Vec<String> = found.iter().map(|device| device.name().to_string()).collect();
    let index = choose::device(which, &names, default)?;
    let device = found.swap_remove(index);
    if usable(&device) {
        return Ok(device);
    }
    Err(GpuError::Missing(format!(
        "the GPU `{}` lacks matrix instructions of simdgroups: Apple Silicon (M1 or later) has them",
        names[index]
    )))
}

fn all() -> (Vec<RawDevice>, Option<usize>) {
    let found = MTLCopyAllDevices().to_vec();
    let default = MTLCreateSystemDefaultDevice().map(|device| device.registryID());
    let index = found.iter().position(|device| Some(device.registryID()) == default);
    (found, index)
}

/// Apple7 is the M1: `simdgroup_matrix`, simdgroups of 32, memory that host and GPU share.
fn usable(device: &RawDevice) -> bool {
    device.supportsFamily(MTLGPUFamily::Apple7) && device.hasUnifiedMemory()
}

/// Name and build of the system, which machine code depends on.
pub(super) fn system() -> String {
    NSProcessInfo::processInfo().operatingSystemVersionString().to_string()
}

pub(super) fn info(device: &RawDevice) -> DeviceInfo {
    DeviceInfo {
        kind: "metal",
        name: device.name().to_string(),
        units: 0,
        memory_bytes: memory::budget(device.recommendedMaxWorkingSetSize()),
    }
}

/// Apple10 is the M5, whose matrix units these operations reach; macOS 26.2 has them as the kernels use them.
fn tensor_ops(device: &RawDevice) -> bool {
    let has = |family| device.supportsFamily(family);
    available!(macos = 26.2) && has(MTLGPUFamily::Metal4) && has(MTLGPUFamily::Apple10)
}

/// MPS is there where it says so of the device; MPSGraph takes views of buffers from macOS 15 on.
fn apple_kernels(device: &RawDevice) -> AppleKernels {
    // SAFETY: it takes a device and tells yes or no.
    let mps = unsafe { MPSSupportsMTLDevice(Some(device)) };
    AppleKernels { mps, graph: mps && available!(macos = 15.0) }
}

pub(super) fn limits(device: &RawDevice) -> Limits {
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Limits {
        max_threads: narrow(device.maxThreadsPerThreadgroup().width),
        // Metal names no limit of its own.
        max_groups: [u32::MAX; 3],
        simd_width: 32,
        busy_simdgroups: choose::busy_simdgroups(&device.name().to_string()),
        threadgroup_memory: narrow(device.maxThreadgroupMemoryLength()),
        max_buffer: device.maxBufferLength(),
        budget: memory::budget(device.recommendedMaxWorkingSetSize()),
        depth: 2,
        matrix_units: None,
        library: false,
        apple: apple_kernels(device),
        tuning: built_in("metal", &device.name().to_string(), 0).0,
        tensor_ops: tensor_ops(device),
    }
}
