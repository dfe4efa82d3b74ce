//! `MTLCommandBuffer`: passes in their order, and the states it goes through.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::bind::{Held, Pass, PassKind, Step, Work};
use super::descriptor::descriptor;
use super::device::Device;
use super::queue::{Queue, Unfinished};
use super::{blit, capture, compute, labels, residency, untracked};
use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::objc::{Block, BlockArg, Id, InObjects, Method, Strong, This, class, lend, methods, none};
use crate::problem::{Rule, caught, note, refuse};

class!(pub(crate) static COMMAND_BUFFER = c"MTLSoftCommandBuffer", &NS_OBJECT, all, none);
descriptor!(pub(crate) static DESCRIPTOR = c"MTLCommandBufferDescriptor", [c"retainedReferences" = 1],
    c"retainedReferences" c"setRetainedReferences:" bool;
    c"errorOptions" c"setErrorOptions:" usize;
    c"logState" c"setLogState:" object;
);

/// By the numbers of `MTLCommandBufferStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Status {
    NotEnqueued = 0,
    Enqueued = 1,
    Committed = 2,
    Scheduled = 3,
    Completed = 4,
    Error = 5,
}

pub(crate) struct State {
    pub(crate) status: Status,
    pub(crate) passes: Vec<Pass>,
    /// The encoder that is open.
    pub(crate) encoder: Option<Id>,
    /// What is used without being held, from commit until the GPU is done.
    pub(crate) borrowed: Vec<Id>,
    /// Its place in the queue, since `enqueue`.
    place: Option<u64>,
    scheduled_handlers: Vec<Block>,
    completed_handlers: Vec<Block>,
    pub(crate) error: Option<Strong>,
    /// Seconds when the GPU began and ended.
    pub(crate) gpu: (f64, f64),
    /// Handlers were called, and waiting ends.
    finished: bool,
    debug_groups: usize,
    /// Residency sets of its own.
    sets: Vec<Strong>,
}

/// What an `MTLCommandBuffer` holds.
pub(crate) struct CommandBuffer {
    pub(crate) device: This<Device>,
    queue: Strong,
    /// It holds what its commands use.
    pub(crate) retained: bool,
    pub(crate) state: Mutex<State>,
    changed: Condvar,
    unfinished: Arc<Unfinished>,
    /// The GPU is done with it.
    pub(crate) done: Arc<AtomicBool>,
}

/// A command buffer of a queue.
pub(crate) fn new(device: &This<Device>, queue: Id, retained: bool, unfinished: Arc<Unfinished>) -> Strong {
    let queue =
        Strong::retained(queue).unwrap_or_else(|| unreachable!("a queue makes its own command buffers"));
    let state = State {
        status: Status::NotEnqueued,
        passes: Vec::new(),
        encoder: None,
        borrowed: Vec::new(),
        place: None,
        scheduled_handlers: Vec::new(),
        completed_handlers: Vec::new(),
        error: None,
        gpu: (0.0, 0.0),
        finished: false,
        debug_groups: 0,
        sets: Vec::new(),
    };
    let buffer = CommandBuffer {
        device: device.again(),
        queue,
        retained,
        state: Mutex::new(state),
        changed: Condvar::new(),
        unfinished,
        done: Arc::default(),
    };
    Strong::new(&COMMAND_BUFFER, buffer)
}

impl Drop for CommandBuffer {
    fn drop(&mut self) {
        let (status, place, borrowed) = {
            let mut state = lock(&self.state);
            (state.status, state.place, std::mem::take(&mut state.borrowed))
        };
        // Of a commit that was refused.
        borrowed.into_iter().for_each(Id::give_back);
        if status < Status::Committed {
            self.unfinished.leave(false);
            let kept = place.map_or(0, |place| self.queue.id().this::<Queue>().give_up(place));
            if kept > 0 {
                note(
                    Rule::CommandBufferState,
                    format!(
                        "an enqueued command buffer goes without a commit: {kept} that were committed wait behind it"
                    ),
                );
            }
        }
    }
}

impl CommandBuffer {
    /// A reference to what a command uses, of the kind that the command buffer has.
    pub(crate) fn hold(&self, object: Id) -> Held {
        Held::new(object, self.retained)
    }

    /// Whether encoding can go on; what else it says goes to `what`.
    pub(crate) fn check_encoding(&self, what: &str) {
        let (status, encoder) = {
            let state = lock(&self.state);
            (state.status, state.encoder)
        };
        if status >= Status::Committed {
            refuse(
                Rule::CommandBufferState,
                format!("{what} after commit: Metal asserts that it is not committed"),
            );
        }
        if let Some(open) = encoder {
            refuse(
                Rule::EncoderState,
                format!(
                    "{what} while {} is open: Metal asserts that one encoder ends before the next begins",
                    open.describe()
                ),
            );
        }
    }

    fn commit(&self, id: Id) {
        let state = lock(&self.state);
        let (status, encoder) = (state.status, state.encoder);
        drop(state);
        if status >= Status::Committed {
            refuse(
                Rule::CommandBufferState,
                format!("{} is committed twice: Metal asserts that it is not", id.describe()),
            );
        }
        if let Some(open) = encoder {
            refuse(
                Rule::EncoderState,
                format!(
                    "{} is committed while {} is open: Metal asserts that all encoders ended",
                    id.describe(),
                    open.describe()
                ),
            );
        }
        let queue = self.queue.id().this::<Queue>();
        if !self.retained {
            self.borrow(id);
        }
        {
            let state = lock(&self.state);
            untracked::check(&state.passes, &self.done, &queue);
            residency::check(&lock(&queue.sets), &state.passes);
            capture::committed(id, [self.queue.id(), self.device.id], &state.passes);
        }
        let scheduled = {
            let mut state = lock(&self.state);
            state.status = Status::Committed;
            std::mem::take(&mut state.scheduled_handlers)
        };
        for block in &scheduled {
            caught("a scheduled handler", || block.call(id));
        }
        let place = self.enqueue(Status::Scheduled);
        self.changed.notify_all();
        self.unfinished.committed();
        queue.run(Strong::retained(id).unwrap_or_else(|| unreachable!("the receiver is an object")), place);
    }

    /// Says that the GPU uses what it does not hold; refuses what is not there any more.
    fn borrow(&self, id: Id) {
        let used: Vec<Id> = lock(&self.state).passes.iter().flat_map(Pass::objects).collect();
        for object in &used {
            object.borrow();
        }
        if let Some(gone) = used.iter().find(|object| object.is_gone()) {
            used.iter().copied().for_each(Id::give_back);
            refuse(
                Rule::ReleasedInFlight,
                format!(
                    "{} was released for the last time before the commit of {}, which uses it and holds no references: \
                     the GPU would read memory that is given back",
                    gone.describe(),
                    id.describe()
                ),
            );
            return;
        }
        lock(&self.state).borrowed = used;
    }

    /// Takes a place in the queue unless it has one; which it is.
    fn enqueue(&self, status: Status) -> u64 {
        let mut state = lock(&self.state);
        state.status = status;
        *state.place.get_or_insert_with(|| self.queue.id().this::<Queue>().reserve())
    }

    /// Calls who waits for it. On the thread of completions.
    pub(crate) fn finish(&self, id: Id) {
        let (handlers, passes) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.completed_handlers), std::mem::take(&mut state.passes))
        };
        caught("the end of what a command buffer held", || drop(passes));
        self.unfinished.leave(true);
        for block in handlers {
            caught("a completed handler", || block.call(id));
            caught("the end of a completed handler", || drop(block));
        }
        lock(&self.state).finished = true;
        self.changed.notify_all();
    }

    fn wait(&self, what: &str, until: impl Fn(&State) -> bool) {
        let mut state = lock(&self.state);
        if state.status < Status::Committed {
            drop(state);
            refuse(Rule::CommandBufferState, format!("{what} before commit: Metal waits forever"));
            return;
        }
        while !until(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn add_handler(&self, block: BlockArg, completed: bool) {
        let mut state = lock(&self.state);
        if state.status >= Status::Committed {
            drop(state);
            refuse(
                Rule::CommandBufferState,
                "a handler is added after commit: Metal asserts that it is not committed".to_owned(),
            );
            return;
        }
        let handlers = if completed { &mut state.completed_handlers } else { &mut state.scheduled_handlers };
        handlers.extend(block.copy());
    }

    fn use_set(&self, set: Id) {
        residency::used(set);
        lock(&self.state).sets.extend(Strong::retained(set));
    }

    /// Residency sets that count for its commands: its queue's and its own.
    pub(crate) fn residency_sets(&self) -> Vec<Strong> {
        let queue = self.queue.id().this::<Queue>();
        let mut sets = lock(&queue.sets).clone();
        sets.extend(lock(&self.state).sets.iter().cloned());
        sets
    }

    fn encode(&self, kind: PassKind, what: &str) {
        self.check_encoding(what);
        lock(&self.state).passes.push(Pass::new(kind));
    }

    fn group(&self, push: bool) {
        let mut state = lock(&self.state);
        if !push && state.debug_groups == 0 {
            drop(state);
            refuse(
                Rule::EncoderState,
                "popDebugGroup without a group: Metal asserts that there is one".to_owned(),
            );
            return;
        }
        state.debug_groups = if push { state.debug_groups + 1 } else { state.debug_groups - 1 };
    }
}

/// Commits a command buffer and makes the next one of its queue, as `MPSCommandBuffer` does.
pub(crate) fn commit_and_continue(buffer: Id) -> Option<Strong> {
    let this = buffer.this::<CommandBuffer>();
    let queue = this.queue.clone();
    this.commit(buffer);
    queue.id().this::<Queue>().command_buffer(queue.id(), this.retained)
}

/// Lets a library of Apple's encode into a command buffer, which it does with an encoder of its own; `work` is told whether
/// the command buffer holds what its commands use.
pub(crate) fn encode_work(buffer: Id, what: &str, work: impl FnOnce(bool) -> Work) {
    let this = buffer.this::<CommandBuffer>();
    this.check_encoding(what);
    let work = work(this.retained);
    for (held, used, writes) in &work.uses {
        if used.device.id != this.device.id {
            refuse(
                Rule::Device,
                format!("{what}: {} is of another device than the command buffer", held.id.describe()),
            );
        }
        if *writes && used.memory.read_only() {
            refuse(
                Rule::StorageMode,
                format!(
                    "{what} writes {}, whose pages can only be read: the GPU would fault",
                    held.id.describe()
                ),
            );
        }
    }
    let kind =
        PassKind::Encoder { label: work.name.clone(), concurrent: false, steps: vec![Step::Work(work)] };
    lock(&this.state).passes.push(Pass::new(kind));
}

fn all() -> Vec<Method> {
    let mut all = states();
    all.extend(encoders());
    all.extend(labels());
    all
}

fn states() -> Vec<Method> {
    methods! { CommandBuffer;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"commandQueue"(this) -> Id { this.queue.clone().lend() }
        c"retainedReferences"(this) -> bool { this.retained }
        c"errorOptions"(_) -> usize { 0 }
        c"status"(this) -> usize { lock(&this.state).status as usize }
        c"error"(this) -> Id { lend(lock(&this.state).error.clone()) }
        c"GPUStartTime"(this) -> f64 { lock(&this.state).gpu.0 }
        c"GPUEndTime"(this) -> f64 { lock(&this.state).gpu.1 }
        c"kernelStartTime"(this) -> f64 { lock(&this.state).gpu.0 }
        c"kernelEndTime"(this) -> f64 { lock(&this.state).gpu.1 }
        c"enqueue"(this) {
            if lock(&this.state).status >= Status::Committed {
                refuse(
                    Rule::CommandBufferState,
                    "enqueue after commit: Metal asserts that it is not committed".to_owned(),
                );
                return;
            }
            this.enqueue(Status::Enqueued);
        }
        c"commit"(this) { this.commit(this.id); }
        c"addScheduledHandler:"(this, block: BlockArg) { this.add_handler(block, false); }
        c"addCompletedHandler:"(this, block: BlockArg) { this.add_handler(block, true); }
        c"waitUntilScheduled"(this) { this.wait("waitUntilScheduled", |state| state.status >= Status::Scheduled); }
        c"waitUntilCompleted"(this) { this.wait("waitUntilCompleted", |state| state.finished); }
        c"pushDebugGroup:"(this, _name: Id) { this.group(true); }
        c"popDebugGroup"(this) { this.group(false); }
    }
}

fn encoders() -> Vec<Method> {
    methods! { CommandBuffer;
        c"computeCommandEncoder"(this) -> Id { compute::new(&this, false, Vec::new()).lend() }
        c"computeCommandEncoderWithDispatchType:"(this, kind: usize) -> Id {
            compute::new(&this, kind == 1, Vec::new()).lend()
        }
        c"computeCommandEncoderWithDescriptor:"(this, descriptor: Id) -> Id {
            compute::described(&this, descriptor).lend()
        }
        c"blitCommandEncoder"(this) -> Id { blit::new(&this).lend() }
        c"blitCommandEncoderWithDescriptor:"(this, _descriptor: Id) -> Id { blit::new(&this).lend() }
        c"encodeWaitForEvent:value:"(this, event: Id, value: u64) {
            this.encode(PassKind::Wait(this.hold(event), value), "encodeWaitForEvent:");
        }
        c"encodeSignalEvent:value:"(this, event: Id, value: u64) {
            this.encode(PassKind::Signal(this.hold(event), value), "encodeSignalEvent:");
        }
        c"useResidencySet:"(this, set: Id) { this.use_set(set); }
        c"useResidencySets:count:"(this, sets: InObjects, count: usize) {
            sets.copy(count).into_iter().for_each(|set| this.use_set(set));
        }
    }
}
