//! `MTLBlitCommandEncoder`, for buffers.

use std::sync::Mutex;

use super::bind::{self, Pass, PassKind, Step};
use super::buffer::{Buffer, StorageMode};
use super::command_buffer::CommandBuffer;
use super::counters;
use super::descriptor::descriptor;
use super::labels;
use super::profile::Times;
use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::objc::{Id, Method, NsRange, Strong, This, class, lend, methods, none};
use crate::problem::{Rule, refuse};

class!(pub(crate) static ENCODER = c"MTLSoftBlitCommandEncoder", &NS_OBJECT, all, none);
descriptor!(pub(crate) static PASS = c"MTLBlitPassDescriptor", []);

/// What the ends of a fill and of a copy must be a multiple of.
const ALIGNMENT: usize = 4;

struct Encoder {
    buffer: This<CommandBuffer>,
    /// Until `endEncoding`.
    steps: Mutex<Option<Vec<Step>>>,
}

/// A new encoder of a command buffer.
pub(crate) fn new(buffer: &This<CommandBuffer>) -> Strong {
    buffer.check_encoding("a blit encoder");
    let encoder = Encoder { buffer: buffer.again(), steps: Mutex::new(Some(Vec::new())) };
    let made = Strong::new(&ENCODER, encoder);
    lock(&buffer.state).encoder = Some(made.id());
    made
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if lock(&self.steps).take().is_some() {
            lock(&self.buffer.state).encoder = None;
            refuse(
                Rule::EncoderState,
                "a blit encoder is released without endEncoding: Metal ends the process".to_owned(),
            );
        }
    }
}

/// A buffer, where in it, and how much of it.
type Place = (Id, usize);

impl Encoder {
    fn step(&self, what: &str, step: Step) {
        let mut steps = lock(&self.steps);
        if let Some(steps) = steps.as_mut() {
            steps.push(step);
            return;
        }
        drop(steps);
        refuse(
            Rule::EncoderState,
            format!("{what} after endEncoding: Metal asserts that the encoder is open"),
        );
    }

    fn checked(&self, (id, offset): Place, len: usize, what: &str) -> This<Buffer> {
        let buffer = bind::buffer(id, self.buffer.device.id, what);
        if offset.checked_add(len).is_none_or(|end| end > buffer.len()) {
            refuse(
                Rule::Range,
                format!(
                    "{what}: {len} bytes at {offset} of {} with {}: Metal asserts that they are inside",
                    id.describe(),
                    buffer.len()
                ),
            );
        }
        buffer
    }

    fn copy(&self, from: Place, to: Place, len: usize) {
        const WHAT: &str = "copyFromBuffer:";
        if [from.1, to.1, len].iter().any(|number| !number.is_multiple_of(ALIGNMENT)) {
            refuse(
                Rule::Alignment,
                format!(
                    "{WHAT} {len} bytes from {} to {}: Metal on macOS asserts multiples of {ALIGNMENT}",
                    from.1, to.1
                ),
            );
        }
        let (source, target) = (self.checked(from, len, WHAT), self.checked(to, len, WHAT));
        if from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len {
            refuse(
                Rule::Range,
                format!("{WHAT} within one buffer where the two overlap: Metal asserts that they do not"),
            );
        }
        let part = |place: Place, buffer: &This<Buffer>| (self.buffer.hold(place.0), buffer.share(), place.1);
        self.step(WHAT, Step::Copy { from: part(from, &source), to: part(to, &target), len });
    }

    fn fill(&self, buffer: Id, range: NsRange, value: u8) {
        const WHAT: &str = "fillBuffer:";
        if !range.location.is_multiple_of(ALIGNMENT) || !range.length.is_multiple_of(ALIGNMENT) {
            refuse(
                Rule::Alignment,
                format!("{WHAT} {range:?}: Metal on macOS asserts multiples of {ALIGNMENT}"),
            );
        }
        let target = self.checked((buffer, range.location), range.length, WHAT);
        let to = (self.buffer.hold(buffer), target.share(), range.location);
        self.step(WHAT, Step::Fill { to, len: range.length, value });
    }

    fn synchronize(&self, resource: Id) {
        let buffer = bind::buffer(resource, self.buffer.device.id, "synchronizeResource:");
        if buffer.storage() != StorageMode::Managed {
            refuse(
                Rule::StorageMode,
                format!(
                    "synchronizeResource: of {}, which is not managed: Metal asserts that it is",
                    resource.describe()
                ),
            );
        }
    }

    fn sample(&self, samples: Id, index: usize) {
        // Profiles that note times between dispatches do so between copies too.
        if self.buffer.device.profile.times != Times::AtDispatches {
            refuse(
                Rule::Descriptor,
                "sampleCountersInBuffer: on a device that notes no times between copies: Metal asserts that it does"
                    .to_owned(),
            );
        }
        let known = counters::checked(samples, &[index]);
        let held = self.buffer.hold(samples);
        self.step("sampleCountersInBuffer:", Step::Sample { held, samples: known, index });
    }

    fn end(&self, id: Id) {
        let Some(steps) = lock(&self.steps).take() else {
            refuse(
                Rule::EncoderState,
                "endEncoding twice: Metal asserts that the encoder is open".to_owned(),
            );
            return;
        };
        let label = id.label().unwrap_or_default();
        let mut state = lock(&self.buffer.state);
        state.encoder = None;
        state.passes.push(Pass::new(PassKind::Encoder { label, concurrent: false, steps }));
    }
}

fn all() -> Vec<Method> {
    let mut all = methods! { Encoder;
        c"device"(this) -> Id { lend(Strong::retained(this.buffer.device.id)) }
        c"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"(
            this, from: Id, from_offset: usize, to: Id, to_offset: usize, size: usize
        ) {
            this.copy((from, from_offset), (to, to_offset), size);
        }
        c"fillBuffer:range:value:"(this, buffer: Id, range: NsRange, value: u8) { this.fill(buffer, range, value); }
        c"synchronizeResource:"(this, resource: Id) { this.synchronize(resource); }
        c"updateFence:"(this, fence: Id) {
            this.step("updateFence:", Step::UpdateFence(this.buffer.hold(fence)));
        }
        c"waitForFence:"(this, fence: Id) {
            this.step("waitForFence:", Step::WaitForFence(this.buffer.hold(fence)));
        }
        c"sampleCountersInBuffer:atSampleIndex:withBarrier:"(this, samples: Id, index: usize, _barrier: bool) {
            this.sample(samples, index);
        }
        c"pushDebugGroup:"(_, _name: Id) { }
        c"popDebugGroup"(_) { }
        c"insertDebugSignpost:"(_, _name: Id) { }
        c"endEncoding"(this) { this.end(this.id); }
    };
    all.extend(labels());
    all
}
