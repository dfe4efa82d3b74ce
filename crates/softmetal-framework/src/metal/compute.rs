//! `MTLComputeCommandEncoder`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::bind::{
    self, Dispatch, Grid, Held, MOST_BYTES, Pass, PassKind, PassSampling, SLOTS, Slot, Step,
    check_threadgroup_length,
};
use super::command_buffer::CommandBuffer;
use super::counters;
use super::descriptor::{Properties, descriptor};
use super::heap;
use super::labels;
use super::pipeline::State;
use super::profile::Times;
use super::sampler;
use super::texture::{self, Texture};
use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::objc::{
    Id, InBytes, InNumbers, InObjects, Method, MtlSize, NsRange, Strong, This, class, lend, methods, none,
    raw_methods,
};
use crate::problem::{Rule, refuse};

class!(pub(crate) static ENCODER = c"MTLSoftComputeCommandEncoder", &NS_OBJECT, all, none);
class!(pub(crate) static PASS = c"MTLComputePassDescriptor", &NS_OBJECT, pass_methods, pass_own);
class!(static ATTACHMENTS = c"MTLComputePassSampleBufferAttachmentDescriptorArray", &NS_OBJECT, attachments, none);
descriptor!(static ATTACHMENT = c"MTLComputePassSampleBufferAttachmentDescriptor", [],
    c"sampleBuffer" c"setSampleBuffer:" object;
    c"startOfEncoderSampleIndex" c"setStartOfEncoderSampleIndex:" usize;
    c"endOfEncoderSampleIndex" c"setEndOfEncoderSampleIndex:" usize;
);

/// Attachments that a pass can have.
const MOST_ATTACHMENTS: usize = 4;
/// `MTLBarrierScopeBuffers`.
const BUFFERS: usize = 1;
/// `MTLBarrierScopeTextures`: textures lie in buffers here.
const TEXTURES: usize = 2;

/// Until `endEncoding`.
struct Open {
    pipeline: Option<(Held, Arc<State>)>,
    slots: BTreeMap<u32, Slot>,
    threadgroup: BTreeMap<u32, u32>,
    steps: Vec<Step>,
    groups: Vec<String>,
    /// What `useResource:` and `useHeap:` were sent with.
    resident: Vec<Id>,
}

/// What an `MTLComputeCommandEncoder` holds.
struct Encoder {
    buffer: This<CommandBuffer>,
    concurrent: bool,
    sampling: Mutex<Vec<PassSampling>>,
    open: Mutex<Option<Open>>,
}

/// Where the times of an encoder's ends go.
type Sampling = (Id, [usize; 2]);

/// A new encoder of a command buffer.
pub(crate) fn new(buffer: &This<CommandBuffer>, concurrent: bool, sampling: Vec<Sampling>) -> Strong {
    buffer.check_encoding("a compute encoder");
    let sampling = sampling.into_iter().map(|(id, places)| {
        let samples = counters::checked(id, &places);
        PassSampling { held: buffer.hold(id), samples, places }
    });
    let open = Open {
        pipeline: None,
        slots: BTreeMap::new(),
        threadgroup: BTreeMap::new(),
        steps: Vec::new(),
        groups: Vec::new(),
        resident: Vec::new(),
    };
    let encoder = Encoder {
        buffer: buffer.again(),
        concurrent,
        sampling: Mutex::new(sampling.collect()),
        open: Mutex::new(Some(open)),
    };
    let made = Strong::new(&ENCODER, encoder);
    lock(&buffer.state).encoder = Some(made.id());
    made
}

/// `computeCommandEncoderWithDescriptor:`.
pub(crate) fn described(buffer: &This<CommandBuffer>, descriptor: Id) -> Strong {
    let pass = descriptor.this::<PassDescriptor>();
    let attachments = pass.attachments.id().this::<Attachments>();
    let sampling = attachments.0.iter().filter_map(|attachment| {
        let properties = attachment.id().this::<Properties>();
        let samples = properties.object(c"sampleBuffer")?.id();
        let places = [c"startOfEncoderSampleIndex", c"endOfEncoderSampleIndex"];
        Some((samples, places.map(|place| properties.number(place))))
    });
    new(buffer, *lock(&pass.kind) == 1, sampling.collect())
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if lock(&self.open).take().is_some() {
            lock(&self.buffer.state).encoder = None;
            refuse(
                Rule::EncoderState,
                "a compute encoder is released without endEncoding: Metal ends the process".to_owned(),
            );
        }
    }
}

impl Encoder {
    /// What is encoded; refused after the end.
    fn with<R>(&self, what: &str, f: impl FnOnce(&mut Open) -> R) -> Option<R> {
        let mut open = lock(&self.open);
        if let Some(open) = open.as_mut() {
            return Some(f(open));
        }
        drop(open);
        refuse(
            Rule::EncoderState,
            format!("{what} after endEncoding: Metal asserts that the encoder is open"),
        );
        None
    }

    fn step(&self, what: &str, step: Step) {
        self.with(what, |open| open.steps.push(step));
    }

    fn set_pipeline(&self, pipeline: Id) {
        let state = pipeline.this::<State>();
        if state.device.id != self.buffer.device.id {
            refuse(Rule::Device, format!("{} is of another device than the encoder", pipeline.describe()));
        }
        let held = self.buffer.hold(pipeline);
        self.with("setComputePipelineState:", |open| open.pipeline = Some((held, state.share())));
    }

    fn set_buffer(&self, buffer: Id, offset: usize, index: usize) {
        check_index(index);
        if buffer.is_null() {
            self.with("setBuffer:", |open| open.slots.remove(&(index as u32)));
            return;
        }
        let known = bind::buffer(buffer, self.buffer.device.id, "setBuffer:offset:atIndex:");
        check_offset(offset, known.len(), index);
        let slot = Slot::Buffer { held: self.buffer.hold(buffer), buffer: known.share(), offset };
        self.with("setBuffer:", |open| open.slots.insert(index as u32, slot));
    }

    fn set_offset(&self, new: usize, index: usize) {
        check_index(index);
        let found = self.with("setBufferOffset:", |open| match open.slots.get_mut(&(index as u32)) {
            Some(Slot::Buffer { buffer, offset, .. }) => {
                *offset = new;
                Some(buffer.len())
            }
            Some(Slot::Bytes(_) | Slot::Texture { .. } | Slot::Sampler { .. }) | None => None,
        });
        match found.flatten() {
            Some(len) => check_offset(new, len, index),
            None => refuse(
                Rule::MissingBinding,
                format!("setBufferOffset: of index {index}, which has no buffer: Metal asserts that it has"),
            ),
        }
    }

    fn set_bytes(&self, bytes: InBytes, length: usize, index: usize) {
        check_index(index);
        if bytes.is_null() || length == 0 || length > MOST_BYTES {
            refuse(
                Rule::Range,
                format!(
                    "setBytes: of {length} bytes at index {index}: Metal asserts from 1 to {MOST_BYTES} of them"
                ),
            );
        }
        let slot = Slot::Bytes(bytes.copy(length));
        self.with("setBytes:", |open| open.slots.insert(index as u32, slot));
    }

    fn set_texture(&self, id: Id, index: usize) {
        check_slot_index("texture", index, texture::SLOTS);
        let place = bind::texture_slot(index as u32);
        if id.is_null() {
            self.with("setTexture:", |open| open.slots.remove(&place));
            return;
        }
        let known = id.this::<Texture>();
        if known.device.id != self.buffer.device.id {
            refuse(Rule::Device, format!("{} is of another device than the encoder", id.describe()));
        }
        let held = self.buffer.hold(id);
        let slot = Slot::Texture { held, texture: known.share(), buffer: known.buffer() };
        self.with("setTexture:", |open| open.slots.insert(place, slot));
    }

    fn set_sampler(&self, id: Id, index: usize) {
        check_slot_index("sampler", index, sampler::SLOTS);
        let place = bind::sampler_slot(index as u32);
        if id.is_null() {
            self.with("setSamplerState:", |open| open.slots.remove(&place));
            return;
        }
        let known = id.this::<sampler::State>();
        if known.device.id != self.buffer.device.id {
            refuse(Rule::Device, format!("{} is of another device than the encoder", id.describe()));
        }
        let slot = Slot::Sampler { held: self.buffer.hold(id), sampler: known.sampler };
        self.with("setSamplerState:", |open| open.slots.insert(place, slot));
    }

    fn set_threadgroup_length(&self, length: usize, index: usize) {
        check_threadgroup_length(length, index);
        self.with("setThreadgroupMemoryLength:", |open| open.threadgroup.insert(index as u32, length as u32));
    }

    fn dispatch(&self, grid: Grid, threads: MtlSize) {
        let made = self.with("a dispatch", |open| {
            let (pipeline, state) = open.pipeline.clone()?;
            let (slots, threadgroup) = (open.slots.clone(), open.threadgroup.clone());
            let label = open.groups.last().map(|name| format!(" in \"{name}\"")).unwrap_or_default();
            let resident = open.resident.clone();
            Some((Dispatch { pipeline, state, slots, threadgroup, grid, threads, resident }, label))
        });
        match made.flatten() {
            Some((dispatch, label)) => {
                bind::check(&dispatch, &label);
                self.step("a dispatch", Step::Dispatch(Box::new(dispatch)));
            }
            None => refuse(
                Rule::MissingBinding,
                "a dispatch without a pipeline: Metal asserts that setComputePipelineState: came first"
                    .to_owned(),
            ),
        }
    }

    fn dispatch_indirect(&self, buffer: Id, offset: usize, threads: MtlSize) {
        const BYTES: usize = 12;
        let known = bind::buffer(buffer, self.buffer.device.id, "an indirect dispatch");
        if !offset.is_multiple_of(4) || offset.checked_add(BYTES).is_none_or(|end| end > known.len()) {
            refuse(
                Rule::Range,
                format!(
                    "an indirect dispatch by the {BYTES} bytes at {offset} of {} bytes: Metal asserts that they are \
                         inside, at a multiple of 4",
                    known.len()
                ),
            );
        }
        let held = self.buffer.hold(buffer);
        self.dispatch(Grid::Indirect { held, buffer: known.share(), offset }, threads);
    }

    fn barrier(&self, scope: usize) {
        self.with("memoryBarrierWithScope:", |open| {
            // One of textures orders nothing that is written to buffers.
            let textures = scope & TEXTURES != 0 && open.steps.iter().any(Step::has_textures);
            if scope & BUFFERS != 0 || textures {
                open.steps.push(Step::Barrier);
            }
        });
    }

    fn sample(&self, samples: Id, index: usize) {
        if self.buffer.device.profile.times < Times::AtDispatches {
            refuse(
                Rule::Descriptor,
                "sampleCountersInBuffer: on a device that notes no times between dispatches: Metal asserts that it does"
                    .to_owned(),
            );
        }
        let known = counters::checked(samples, &[index]);
        let held = self.buffer.hold(samples);
        self.step("sampleCountersInBuffer:", Step::Sample { held, samples: known, index });
    }

    fn use_resource(&self, resource: Id) {
        if !texture::is_texture(resource) {
            bind::buffer(resource, self.buffer.device.id, "useResource:usage:");
        }
        self.with("useResource:", |open| open.resident.push(resource));
    }

    fn use_heap(&self, heap: Id) {
        heap::check(heap, self.buffer.device.id);
        self.with("useHeap:", |open| open.resident.push(heap));
    }

    fn pop_group(&self) {
        if self.with("popDebugGroup", |open| open.groups.pop()).flatten().is_none() {
            refuse(
                Rule::EncoderState,
                "popDebugGroup without a group: Metal asserts that there is one".to_owned(),
            );
        }
    }

    fn end(&self, id: Id) {
        let Some(open) = lock(&self.open).take() else {
            refuse(
                Rule::EncoderState,
                "endEncoding twice: Metal asserts that the encoder is open".to_owned(),
            );
            return;
        };
        let label = id.label().unwrap_or_default();
        let kind = PassKind::Encoder { label, concurrent: self.concurrent, steps: open.steps };
        let pass = Pass { kind, sampling: std::mem::take(&mut *lock(&self.sampling)) };
        let mut state = lock(&self.buffer.state);
        state.encoder = None;
        state.passes.push(pass);
        drop(state);
        if !open.groups.is_empty() {
            refuse(
                Rule::EncoderState,
                format!(
                    "an encoder ends inside the debug groups {:?}: Metal asserts that they were popped",
                    open.groups
                ),
            );
        }
    }
}

fn check_slot_index(what: &str, index: usize, slots: usize) {
    if index >= slots {
        refuse(Rule::Range, format!("{what} index {index}: there are {slots}, and Metal asserts it"));
    }
}

fn check_index(index: usize) {
    if index >= SLOTS {
        refuse(Rule::Range, format!("buffer index {index}: there are {SLOTS}, and Metal asserts it"));
    }
}

fn check_offset(offset: usize, len: usize, index: usize) {
    if offset >= len {
        refuse(
            Rule::Range,
            format!(
                "offset {offset} of a buffer of {len} bytes, at index {index}: Metal asserts that it is inside"
            ),
        );
    }
}

fn all() -> Vec<Method> {
    let mut all = settings();
    all.extend(commands());
    all.extend(labels());
    all
}

fn settings() -> Vec<Method> {
    methods! { Encoder;
        c"device"(this) -> Id { lend(Strong::retained(this.buffer.device.id)) }
        c"dispatchType"(this) -> usize { usize::from(this.concurrent) }
        c"setComputePipelineState:"(this, pipeline: Id) { this.set_pipeline(pipeline); }
        c"setBytes:length:atIndex:"(this, bytes: InBytes, length: usize, index: usize) {
            this.set_bytes(bytes, length, index);
        }
        c"setBuffer:offset:atIndex:"(this, buffer: Id, offset: usize, index: usize) {
            this.set_buffer(buffer, offset, index);
        }
        c"setBufferOffset:atIndex:"(this, offset: usize, index: usize) { this.set_offset(offset, index); }
        c"setBuffers:offsets:withRange:"(this, buffers: InObjects, offsets: InNumbers, range: NsRange) {
            let offsets = offsets.copy(range.length);
            for ((place, buffer), offset) in buffers.copy(range.length).into_iter().enumerate().zip(offsets) {
                this.set_buffer(buffer, offset, range.location + place);
            }
        }
        c"setTexture:atIndex:"(this, texture: Id, index: usize) { this.set_texture(texture, index); }
        c"setTextures:withRange:"(this, textures: InObjects, range: NsRange) {
            for (place, texture) in textures.copy(range.length).into_iter().enumerate() {
                this.set_texture(texture, range.location + place);
            }
        }
        c"setSamplerState:atIndex:"(this, sampler: Id, index: usize) { this.set_sampler(sampler, index); }
        c"setSamplerStates:withRange:"(this, samplers: InObjects, range: NsRange) {
            for (place, sampler) in samplers.copy(range.length).into_iter().enumerate() {
                this.set_sampler(sampler, range.location + place);
            }
        }
        c"setThreadgroupMemoryLength:atIndex:"(this, length: usize, index: usize) {
            this.set_threadgroup_length(length, index);
        }
        c"useResource:usage:"(this, resource: Id, _usage: usize) { this.use_resource(resource); }
        c"useResources:count:usage:"(this, resources: InObjects, count: usize, _usage: usize) {
            resources.copy(count).into_iter().for_each(|resource| this.use_resource(resource));
        }
        c"useHeap:"(this, heap: Id) { this.use_heap(heap); }
        c"useHeaps:count:"(this, heaps: InObjects, count: usize) {
            heaps.copy(count).into_iter().for_each(|heap| this.use_heap(heap));
        }
        c"pushDebugGroup:"(this, name: Id) {
            let name = crate::foundation::text(name);
            this.with("pushDebugGroup:", |open| open.groups.push(name));
        }
        c"popDebugGroup"(this) { this.pop_group(); }
        c"insertDebugSignpost:"(this, _name: Id) { this.with("insertDebugSignpost:", |_| ()); }
    }
}

fn commands() -> Vec<Method> {
    methods! { Encoder;
        c"dispatchThreadgroups:threadsPerThreadgroup:"(this, groups: MtlSize, threads: MtlSize) {
            this.dispatch(Grid::Groups(groups), threads);
        }
        c"dispatchThreads:threadsPerThreadgroup:"(this, grid: MtlSize, threads: MtlSize) {
            this.dispatch(Grid::Threads(grid), threads);
        }
        c"dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:threadsPerThreadgroup:"(
            this, buffer: Id, offset: usize, threads: MtlSize
        ) {
            this.dispatch_indirect(buffer, offset, threads);
        }
        c"memoryBarrierWithScope:"(this, scope: usize) { this.barrier(scope); }
        // Taken for one of all buffers.
        c"memoryBarrierWithResources:count:"(this, _resources: InObjects, count: usize) {
            if count > 0 { this.barrier(BUFFERS); }
        }
        c"updateFence:"(this, fence: Id) {
            this.step("updateFence:", Step::UpdateFence(this.buffer.hold(fence)));
        }
        c"waitForFence:"(this, fence: Id) {
            this.step("waitForFence:", Step::WaitForFence(this.buffer.hold(fence)));
        }
        c"sampleCountersInBuffer:atSampleIndex:withBarrier:"(this, samples: Id, index: usize, _barrier: bool) {
            this.sample(samples, index);
        }
        c"endEncoding"(this) { this.end(this.id); }
    }
}

/// What an `MTLComputePassDescriptor` holds.
struct PassDescriptor {
    kind: Mutex<usize>,
    attachments: Strong,
}

struct Attachments(Vec<Strong>);

impl PassDescriptor {
    fn new() -> PassDescriptor {
        let attachment = |_| Strong::new(&ATTACHMENT, Properties::default());
        let attachments =
            Strong::new(&ATTACHMENTS, Attachments((0..MOST_ATTACHMENTS).map(attachment).collect()));
        PassDescriptor { kind: Mutex::new(0), attachments }
    }
}

fn pass_methods() -> Vec<Method> {
    let mut all = methods! { PassDescriptor;
        c"dispatchType"(this) -> usize { *lock(&this.kind) }
        c"setDispatchType:"(this, kind: usize) { *lock(&this.kind) = kind; }
        c"sampleBufferAttachments"(this) -> Id { this.attachments.clone().lend() }
    };
    all.extend(raw_methods! {
        c"init"(this) -> Id { this.initialise(PassDescriptor::new()) }
    });
    all
}

fn pass_own() -> Vec<Method> {
    raw_methods! {
        c"computePassDescriptor"(_) -> Id { Strong::new(&PASS, PassDescriptor::new()).lend() }
    }
}

fn attachments() -> Vec<Method> {
    methods! { Attachments;
        c"objectAtIndexedSubscript:"(this, index: usize) -> Id {
            if index >= MOST_ATTACHMENTS {
                refuse(Rule::Range, format!("sample buffer attachment {index}: a pass has {MOST_ATTACHMENTS}"));
            }
            lend(this.0.get(index).cloned())
        }
    }
}
