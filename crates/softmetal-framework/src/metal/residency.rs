//! `MTLResidencySet`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bind::{Pass, PassKind, Step};
use super::buffer::Buffer;
use super::descriptor::{Properties, descriptor};
use super::device::Device;
use super::labels;
use crate::faults::{self, Fault};
use crate::foundation::{Domain, NS_OBJECT, array, error};
use crate::lock;
use crate::objc::{Id, InObjects, Method, OutObject, Strong, This, class, lend, methods, none};
use crate::problem::{Rule, note, refuse};

class!(pub(crate) static SET = c"MTLSoftResidencySet", &NS_OBJECT, all, none);
descriptor!(pub(crate) static DESCRIPTOR = c"MTLResidencySetDescriptor", [],
    c"label" c"setLabel:" object;
    c"initialCapacity" c"setInitialCapacity:" usize;
);

const INTERNAL: isize = 1;

#[derive(Default)]
struct Members {
    /// As the last commit left them.
    committed: Vec<Strong>,
    /// As the next will.
    next: Vec<Strong>,
}

struct Set {
    device: This<Device>,
    members: Mutex<Members>,
    /// It had allocations.
    filled: AtomicBool,
    /// A queue or a command buffer has it, or had.
    used: AtomicBool,
}

impl Drop for Set {
    fn drop(&mut self) {
        if self.filled.load(Ordering::Relaxed) && !self.used.load(Ordering::Relaxed) {
            note(
                Rule::Residency,
                "a residency set with allocations goes, and no queue or command buffer ever had it: it made nothing \
                 resident for any command"
                    .to_owned(),
            );
        }
    }
}

/// `newResidencySetWithDescriptor:error:`.
pub(crate) fn new(device: &This<Device>, descriptor: Id, out: OutObject) -> Option<Strong> {
    let properties = descriptor.this::<Properties>();
    if faults::strikes(Fault::Object) {
        out.put(error(Domain::Residency, INTERNAL, "a failure on request"));
        return None;
    }
    let set = Set {
        device: device.again(),
        members: Mutex::default(),
        filled: AtomicBool::new(false),
        used: AtomicBool::new(false),
    };
    let made = Strong::new(&SET, set);
    made.id().set_label(properties.object(c"label").map(|label| crate::foundation::text(label.id())));
    Some(made)
}

impl Set {
    fn add(&self, allocation: Id) {
        if let Some(buffer) = allocation.try_this::<Buffer>()
            && buffer.device.id != self.device.id
        {
            refuse(
                Rule::Device,
                format!("{} is of another device than the residency set", allocation.describe()),
            );
        }
        let Some(allocation) = Strong::retained(allocation) else { return };
        self.filled.store(true, Ordering::Relaxed);
        let mut members = lock(&self.members);
        if !members.next.contains(&allocation) {
            members.next.push(allocation);
        }
    }

    fn remove(&self, allocation: Id) {
        let mut members = lock(&self.members);
        let gone = members.next.iter().position(|known| known.id() == allocation);
        let gone = gone.map(|place| members.next.remove(place));
        drop(members);
        if gone.is_none() {
            refuse(
                Rule::Residency,
                format!("{} is taken out of a residency set that it is not in", allocation.describe()),
            );
        }
    }

    fn commit(&self) {
        let mut members = lock(&self.members);
        let next = members.next.clone();
        let old = std::mem::replace(&mut members.committed, next);
        drop(members);
        drop(old);
    }

    fn size(&self) -> u64 {
        let members = lock(&self.members);
        let sizes = members.committed.iter().filter_map(|held| held.id().try_this::<Buffer>());
        sizes.map(|buffer| buffer.len() as u64).sum()
    }
}

/// Notes that commands use a set; what is no residency set is refused.
pub(crate) fn used(set: Id) {
    set.this::<Set>().used.store(true, Ordering::Relaxed);
}

/// Whether an allocation is in one of the sets, as they were last committed.
pub(crate) fn hold(sets: &[Strong], allocation: Id) -> bool {
    sets.iter().any(|set| {
        let set = set.id().this::<Set>();
        lock(&set.members).committed.iter().any(|held| held.id() == allocation)
    })
}

/// Refuses commands that use what was added to a set of their queue, where no commit made that count.
pub(crate) fn check(sets: &[Strong], passes: &[Pass]) {
    let steps = passes.iter().filter_map(|pass| match &pass.kind {
        PassKind::Encoder { steps, .. } => Some(steps),
        PassKind::Wait(..) | PassKind::Signal(..) => None,
    });
    let used: Vec<Id> = steps.flatten().flat_map(Step::uses).map(|(_, id, _)| id).collect();
    for set in sets {
        let set = set.id().this::<Set>();
        let members = lock(&set.members);
        let late =
            members.next.iter().find(|held| !members.committed.contains(held) && used.contains(&held.id()));
        let late = late.map(Strong::id);
        drop(members);
        if let Some(late) = late {
            refuse(
                Rule::Residency,
                format!(
                    "{} was added to a residency set, which was not committed since: it is not resident",
                    late.describe()
                ),
            );
        }
    }
}

fn all() -> Vec<Method> {
    let mut all = methods! { Set;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"allocatedSize"(this) -> u64 { this.size() }
        // Nothing is ever paged out here.
        c"requestResidency"(_) { }
        c"endResidency"(_) { }
        c"addAllocation:"(this, allocation: Id) { this.add(allocation); }
        c"addAllocations:count:"(this, allocations: InObjects, count: usize) {
            allocations.copy(count).into_iter().for_each(|allocation| this.add(allocation));
        }
        c"removeAllocation:"(this, allocation: Id) { this.remove(allocation); }
        c"removeAllocations:count:"(this, allocations: InObjects, count: usize) {
            allocations.copy(count).into_iter().for_each(|allocation| this.remove(allocation));
        }
        c"removeAllAllocations"(this) {
            let gone = std::mem::take(&mut lock(&this.members).next);
            drop(gone);
        }
        c"containsAllocation:"(this, allocation: Id) -> bool {
            lock(&this.members).next.iter().any(|held| held.id() == allocation)
        }
        c"allAllocations"(this) -> Id { array(lock(&this.members).next.clone()).lend() }
        c"allocationCount"(this) -> usize { lock(&this.members).next.len() }
        c"commit"(this) { this.commit(); }
    };
    all.extend(labels());
    all
}
