//! `MTLCommandQueue`, and the threads behind it: one runs command buffers in their order, another calls what waits for
//! them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::command_buffer::{self, CommandBuffer};
use super::descriptor::{Properties, descriptor};
use super::device::Device;
use super::untracked::Before;
use super::{execute, labels, residency};
use crate::faults::{self, Fault};
use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::objc::{Id, InObjects, Method, Strong, This, class, lend, methods, none, pop_pool, push_pool};
use crate::problem::{Rule, caught, refuse};

class!(pub(crate) static QUEUE = c"MTLSoftCommandQueue", &NS_OBJECT, all, none);
descriptor!(pub(crate) static DESCRIPTOR = c"MTLCommandQueueDescriptor", [c"maxCommandBufferCount" = USUAL],
    c"maxCommandBufferCount" c"setMaxCommandBufferCount:" usize;
    c"logState" c"setLogState:" object;
);

/// Command buffers that a queue has at once, where nothing else is said.
pub(crate) const USUAL: usize = 64;
/// Residency sets that a queue takes.
const MOST_SETS: usize = 32;
/// How long tests wait for work that nobody waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Command buffers of a queue that are not completed.
#[derive(Default)]
pub(crate) struct Unfinished {
    /// All of them, and those that were committed.
    counts: Mutex<(usize, usize)>,
    fewer: Condvar,
}

impl Unfinished {
    /// Makes room for one more, as Metal does: by waiting.
    fn enter(&self, most: usize) {
        let mut counts = lock(&self.counts);
        while counts.0 >= most {
            if counts.1 == 0 {
                drop(counts);
                refuse(
                    Rule::CommandBufferState,
                    format!(
                        "one command buffer more than the {most} of the queue, none of them committed: Metal waits forever"
                    ),
                );
                return;
            }
            counts = self.fewer.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
        counts.0 += 1;
    }

    pub(crate) fn committed(&self) {
        lock(&self.counts).1 += 1;
    }

    pub(crate) fn leave(&self, committed: bool) {
        let mut counts = lock(&self.counts);
        counts.0 = counts.0.saturating_sub(1);
        counts.1 = counts.1.saturating_sub(usize::from(committed));
        self.fewer.notify_all();
    }
}

/// What an `MTLCommandQueue` holds.
pub(crate) struct Queue {
    pub(crate) device: This<Device>,
    most: usize,
    jobs: Mutex<Sender<Strong>>,
    /// Places in the order of `enqueue` and `commit`, each with its command buffer once that is committed.
    line: Mutex<VecDeque<(u64, Option<Strong>)>>,
    unfinished: Arc<Unfinished>,
    pub(crate) sets: Mutex<Vec<Strong>>,
    /// What its passes so far have waited for.
    pub(crate) order: Mutex<Before>,
}

/// Numbers places in queues.
static PLACES: AtomicU64 = AtomicU64::new(1);

impl Queue {
    /// The next place, for a command buffer that is committed later.
    pub(crate) fn reserve(&self) -> u64 {
        let mut line = lock(&self.line);
        let place = PLACES.fetch_add(1, Ordering::Relaxed);
        line.push_back((place, None));
        place
    }

    /// Hands a command buffer over, which stays alive until it is done. It runs after all that have places before it.
    pub(crate) fn run(&self, buffer: Strong, place: u64) {
        begin();
        let mut line = lock(&self.line);
        if let Some(own) = line.iter_mut().find(|(known, _)| *known == place) {
            own.1 = Some(buffer);
        }
        self.advance(&mut line);
    }

    /// Gives up the place of a command buffer that is not committed; how many committed ones it kept from running.
    pub(crate) fn give_up(&self, place: u64) -> usize {
        let mut line = lock(&self.line);
        let first = line.front().is_some_and(|(known, _)| *known == place);
        line.retain(|(known, _)| *known != place);
        let kept = line.iter().take_while(|(_, buffer)| buffer.is_some()).count();
        self.advance(&mut line);
        if first { kept } else { 0 }
    }

    fn advance(&self, line: &mut VecDeque<(u64, Option<Strong>)>) {
        while let Some(buffer) = line.front_mut().and_then(|(_, buffer)| buffer.take()) {
            line.pop_front();
            // The thread ends when the queue does, not before.
            let _ = lock(&self.jobs).send(buffer);
        }
    }

    pub(crate) fn command_buffer(&self, queue: Id, retained: bool) -> Option<Strong> {
        if faults::strikes(Fault::Allocation) {
            return None;
        }
        self.unfinished.enter(self.most);
        Some(command_buffer::new(&self.device, queue, retained, self.unfinished.clone()))
    }

    fn add_set(&self, set: Id) {
        let Some(set) = Strong::retained(set) else { return };
        residency::used(set.id());
        let mut sets = lock(&self.sets);
        if !sets.contains(&set) {
            sets.push(set);
        }
        let count = sets.len();
        drop(sets);
        if count > MOST_SETS {
            refuse(Rule::Residency, format!("{count} residency sets of a queue: Metal takes {MOST_SETS}"));
        }
    }

    fn remove_set(&self, set: Id) {
        let mut sets = lock(&self.sets);
        let gone = sets.iter().position(|known| known.id() == set).map(|place| sets.remove(place));
        drop(sets);
        drop(gone);
    }
}

/// `newCommandQueueWithMaxCommandBufferCount:`.
pub(crate) fn new(device: &This<Device>, most: usize) -> Option<Strong> {
    if most == 0 {
        refuse(
            Rule::Range,
            "a queue of 0 command buffers: Metal asserts that it has at least one".to_owned(),
        );
    }
    if faults::strikes(Fault::Allocation) {
        return None;
    }
    let (jobs, inbox) = channel::<Strong>();
    let (done, finished) = channel::<Strong>();
    thread::Builder::new().name("softmetal-gpu".to_owned()).spawn(move || serve(&inbox, &done)).ok()?;
    thread::Builder::new().name("softmetal-completion".to_owned()).spawn(move || complete(&finished)).ok()?;
    let queue = Queue {
        device: device.again(),
        most,
        jobs: Mutex::new(jobs),
        line: Mutex::default(),
        unfinished: Arc::default(),
        sets: Mutex::default(),
        order: Mutex::default(),
    };
    Some(Strong::new(&QUEUE, queue))
}

/// `newCommandQueueWithDescriptor:`.
pub(crate) fn described(device: &This<Device>, descriptor: Id) -> Option<Strong> {
    new(device, descriptor.this::<Properties>().number(c"maxCommandBufferCount"))
}

fn serve(inbox: &Receiver<Strong>, done: &Sender<Strong>) {
    for buffer in inbox {
        let pool = push_pool();
        execute::run(&buffer.id().this::<CommandBuffer>());
        caught(POOL, || pop_pool(pool));
        if let Err(unsent) = done.send(buffer) {
            finish(unsent.0);
        }
    }
}

fn complete(finished: &Receiver<Strong>) {
    for buffer in finished {
        finish(buffer);
    }
}

fn finish(buffer: Strong) {
    let pool = push_pool();
    buffer.id().this::<CommandBuffer>().finish(buffer.id());
    // Who waits is told whatever comes of this: a thread that is gone would leave all of them waiting.
    caught("the end of a command buffer", || drop(buffer));
    caught(POOL, || pop_pool(pool));
    end();
}

const POOL: &str = "what ends with the autorelease pool of a queue's thread";

/// Command buffers of all queues on their way.
static PENDING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

fn begin() {
    *lock(&PENDING.0) += 1;
}

fn end() {
    *lock(&PENDING.0) -= 1;
    PENDING.1.notify_all();
}

/// Waits for work that nobody waited for.
pub(crate) fn settle() {
    let pending = lock(&PENDING.0);
    // What takes longer shows as a leak.
    drop(PENDING.1.wait_timeout_while(pending, PATIENCE, |pending| *pending > 0));
}

fn all() -> Vec<Method> {
    let mut all = methods! { Queue;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"commandBuffer"(this) -> Id { lend(this.command_buffer(this.id, true)) }
        c"commandBufferWithUnretainedReferences"(this) -> Id { lend(this.command_buffer(this.id, false)) }
        c"commandBufferWithDescriptor:"(this, descriptor: Id) -> Id {
            let retained = descriptor.this::<Properties>().number(c"retainedReferences") != 0;
            lend(this.command_buffer(this.id, retained))
        }
        c"insertDebugCaptureBoundary"(_) { }
        c"addResidencySet:"(this, set: Id) { this.add_set(set); }
        c"addResidencySets:count:"(this, sets: InObjects, count: usize) {
            sets.copy(count).into_iter().for_each(|set| this.add_set(set));
        }
        c"removeResidencySet:"(this, set: Id) { this.remove_set(set); }
        c"removeResidencySets:count:"(this, sets: InObjects, count: usize) {
            sets.copy(count).into_iter().for_each(|set| this.remove_set(set));
        }
    };
    all.extend(labels());
    all
}
