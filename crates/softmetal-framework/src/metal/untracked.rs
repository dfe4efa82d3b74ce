//! Resources that Metal does not track: fences and events must order the encoders that use them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::bind::{Pass, PassKind, Step};
use super::buffer::Buffer;
use super::queue::Queue;
use super::sync::{self, Fence};
use crate::lock;
use crate::objc::{Id, This};
use crate::problem::{Rule, refuse};

/// Passes that are over before something begins.
#[derive(Clone, Default)]
pub(crate) struct Before {
    /// By number, each with whether its command buffer was completed.
    passes: Vec<(u64, Arc<AtomicBool>)>,
    /// Of a queue, all up to this one.
    queues: HashMap<Id, u64>,
}

impl Before {
    fn has(&self, earlier: &Use) -> bool {
        self.queues.get(&earlier.queue).is_some_and(|last| earlier.pass <= *last)
            || self.passes.iter().any(|(pass, _)| *pass == earlier.pass)
    }

    pub(crate) fn add(&mut self, other: &Before) {
        // Who is done needs no order any more.
        self.passes.retain(|(_, done)| !done.load(Ordering::Acquire));
        for (pass, done) in &other.passes {
            self.add_pass(*pass, done);
        }
        for (queue, last) in &other.queues {
            self.add_queue(*queue, *last);
        }
    }

    fn add_pass(&mut self, pass: u64, done: &Arc<AtomicBool>) {
        if !done.load(Ordering::Acquire) && !self.passes.iter().any(|(known, _)| *known == pass) {
            self.passes.push((pass, done.clone()));
        }
    }

    fn add_queue(&mut self, queue: Id, last: u64) {
        let known = self.queues.entry(queue).or_insert(last);
        *known = last.max(*known);
    }
}

/// Who used an untracked buffer: the last that wrote it, and all that read it since.
#[derive(Default)]
pub(crate) struct Uses(Mutex<(Option<Use>, Vec<Use>)>);

struct Use {
    /// Number of the pass, in the order of commits.
    pass: u64,
    queue: Id,
    /// It waits for an event that nobody has encoded yet: who signals it may do so after any pass to come.
    open: bool,
    /// Its command buffer was completed.
    done: Arc<AtomicBool>,
}

/// Numbers passes in the order of commits.
static PASSES: AtomicU64 = AtomicU64::new(1);

/// Refuses passes of which one uses what another wrote, or the other way round, where Metal keeps no order and neither
/// a fence nor an event does.
pub(crate) fn check(passes: &[Pass], done: &Arc<AtomicBool>, queue: &This<Queue>) {
    let mut waited = Before::default();
    let mut open = false;
    for pass in passes {
        let number = PASSES.fetch_add(1, Ordering::Relaxed);
        match &pass.kind {
            PassKind::Wait(event, value) => match sync::before(event.id, *value) {
                Some(before) => waited.add(&before),
                None => open = true,
            },
            PassKind::Signal(event, value) => {
                let mut before = lock(&queue.order).clone();
                before.add_queue(queue.id, number);
                sync::will_signal(event.id, *value, before);
            }
            PassKind::Encoder { steps, label, .. } => {
                let now = Use { pass: number, queue: queue.id, open, done: done.clone() };
                let mut before = waited.clone();
                for step in steps {
                    check_step(step, &now, &mut before, label);
                }
                lock(&queue.order).add(&before);
            }
        }
    }
}

fn check_step(step: &Step, now: &Use, before: &mut Before, label: &str) {
    match step {
        Step::WaitForFence(fence) => before.add(&fence.id.this::<Fence>().updated()),
        Step::UpdateFence(fence) => {
            let mut all = before.clone();
            all.add_pass(now.pass, &now.done);
            fence.id.this::<Fence>().update(&all);
        }
        _ => {}
    }
    for (buffer, id, writes) in step.uses().into_iter().filter(|(buffer, ..)| !buffer.tracked) {
        if !takes_turns(&buffer, writes, now, before) {
            refuse(
                Rule::Untracked,
                format!(
                    "encoder \"{label}\" uses {}, which Metal does not track and an earlier encoder uses: without a \
                     fence or an event between the two they run at once",
                    id.describe()
                ),
            );
        }
    }
}

/// Whether all who used a buffer in a way that does not go together with this one are over before; the use is noted.
fn takes_turns(buffer: &Buffer, writes: bool, now: &Use, before: &Before) -> bool {
    let mut uses = lock(&buffer.uses.0);
    let is_over = |earlier: &Use| {
        let unknown = earlier.open || now.open;
        earlier.pass == now.pass || unknown || before.has(earlier) || earlier.done.load(Ordering::Acquire)
    };
    let alone = uses.0.as_ref().is_none_or(is_over) && (!writes || uses.1.iter().all(is_over));
    let this = Use { pass: now.pass, queue: now.queue, open: now.open, done: now.done.clone() };
    if writes {
        *uses = (Some(this), Vec::new());
    } else {
        uses.1.retain(|read| read.pass != now.pass && !read.done.load(Ordering::Acquire));
        uses.1.push(this);
    }
    alone
}
