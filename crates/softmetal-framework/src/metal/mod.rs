//! Metal over softmetal.

mod archive;
mod bind;
mod blit;
mod buffer;
mod capture;
mod command_buffer;
mod compute;
mod counters;
mod descriptor;
mod device;
mod execute;
mod hazard;
mod heap;
mod library;
mod memory;
mod pipeline;
pub(crate) mod profile;
mod queue;
mod reach;
mod reflection;
mod residency;
mod sampler;
mod since;
mod switches;
mod sync;
mod texture;
mod untracked;

pub(crate) use bind::{Held, Work};
pub(crate) use buffer::Buffer;
pub(crate) use command_buffer::{commit_and_continue, encode_work};
pub(crate) use counters::{TIMESTAMP, TIMESTAMP_SET};
pub(crate) use device::{all as all_devices, default as default_device, forget as forget_devices};
pub(crate) use queue::settle;
pub(crate) use since::known as system_knows;

use crate::foundation::{string, try_text};
use crate::objc::{Class, Id, Method, lend, raw_methods};

/// Those that programs ask for by name.
pub(crate) static CLASSES: &[&Class] = &[
    &archive::DESCRIPTOR,
    &blit::PASS,
    &capture::DESCRIPTOR,
    &capture::MANAGER,
    &command_buffer::DESCRIPTOR,
    &compute::PASS,
    &counters::SAMPLE_DESCRIPTOR,
    &heap::DESCRIPTOR,
    &library::CONSTANTS,
    &library::OPTIONS,
    &pipeline::DESCRIPTOR,
    &queue::DESCRIPTOR,
    &residency::DESCRIPTOR,
    &sampler::DESCRIPTOR,
    &sync::LISTENER,
    &texture::DESCRIPTOR,
];

pub(crate) fn is_device(class: &Class) -> bool {
    std::ptr::eq(class, &raw const device::DEVICE)
}

/// Whether MPS supports a device.
pub(crate) fn device_supports_mps(device: Id) -> bool {
    device.this::<device::Device>().profile.mps
}

/// `label` and `setLabel:`, which most objects have.
pub(crate) fn labels() -> Vec<Method> {
    raw_methods! {
        c"label"(this) -> Id { lend(this.label().map(|label| string(&label))) }
        c"setLabel:"(this, label: Id) { this.set_label(try_text(label)); }
    }
}
