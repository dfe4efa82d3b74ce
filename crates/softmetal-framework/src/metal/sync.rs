//! `MTLFence`, `MTLEvent` and `MTLSharedEvent`.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::device::Device;
use super::labels;
use super::untracked::Before;
use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::objc::{Block, BlockArg, Id, Method, Strong, This, class, lend, methods, none, raw_methods};
use crate::problem::{Rule, caught, refuse};

class!(static FENCE = c"MTLSoftFence", &NS_OBJECT, fence_methods, none);
class!(static EVENT = c"MTLSoftEvent", &NS_OBJECT, event_methods, none);
class!(static SHARED_EVENT = c"MTLSoftSharedEvent", &EVENT, shared_methods, none);
class!(pub(crate) static LISTENER = c"MTLSharedEventListener", &NS_OBJECT, listener_methods, none);

/// What an `MTLFence` holds: the passes that updated it, and those before them.
pub(crate) struct Fence {
    device: This<Device>,
    updated: Mutex<Before>,
}

impl Fence {
    pub(crate) fn update(&self, passes: &Before) {
        lock(&self.updated).add(passes);
    }

    pub(crate) fn updated(&self) -> Before {
        lock(&self.updated).clone()
    }
}

struct Event {
    device: This<Device>,
    /// The value, and who wants to know when it is reached.
    state: Mutex<(u64, Vec<(u64, Block)>)>,
    changed: Condvar,
    /// Values that committed command buffers will signal, and what is over by then.
    signals: Mutex<Vec<(u64, Before)>>,
}

/// Signals that an event keeps in mind: enough for all command buffers that a queue has.
const MOST_SIGNALS: usize = 256;

struct Listener;

pub(crate) fn fence(device: &This<Device>) -> Strong {
    Strong::new(&FENCE, Fence { device: device.again(), updated: Mutex::default() })
}

pub(crate) fn event(device: &This<Device>, shared: bool) -> Strong {
    let event = Event {
        device: device.again(),
        state: Mutex::default(),
        changed: Condvar::new(),
        signals: Mutex::default(),
    };
    Strong::new(if shared { &SHARED_EVENT } else { &EVENT }, event)
}

impl Event {
    fn wait(&self, value: u64, limit: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, limit, |state| state.0 < value);
        waited.is_ok_and(|(_, outcome)| !outcome.timed_out())
    }

    fn signal(&self, id: Id, value: u64) {
        let mut state = lock(&self.state);
        let old = state.0;
        state.0 = value;
        let (reached, waiting) = std::mem::take(&mut state.1).into_iter().partition(|(at, _)| *at <= value);
        state.1 = waiting;
        drop(state);
        self.changed.notify_all();
        let reached: Vec<(u64, Block)> = reached;
        for (at, block) in &reached {
            caught("a listener of an event", || block.call_value(id, *at));
        }
        if value < old {
            refuse(
                Rule::Range,
                format!("an event goes from {old} back to {value}: Metal leaves that undefined"),
            );
        }
    }
}

/// Waits until an event has a value; whether it came in time.
pub(crate) fn wait(event: Id, value: u64, limit: Duration) -> bool {
    event.this::<Event>().wait(value, limit)
}

pub(crate) fn signal(event: Id, value: u64) {
    event.this::<Event>().signal(event, value);
}

/// A committed command buffer will signal an event, after these passes.
pub(crate) fn will_signal(event: Id, value: u64, before: Before) {
    let event = event.this::<Event>();
    let mut signals = lock(&event.signals);
    if signals.len() == MOST_SIGNALS {
        signals.remove(0);
    }
    signals.push((value, before));
}

/// What is over when an event has a value; nothing where that is not known yet.
pub(crate) fn before(event: Id, value: u64) -> Option<Before> {
    let event = event.this::<Event>();
    let signals = lock(&event.signals);
    // The first that reaches it lets those go on that wait.
    let first = signals.iter().filter(|(reached, _)| *reached >= value).min_by_key(|(reached, _)| *reached);
    match first {
        Some((_, before)) => Some(before.clone()),
        // The program has signalled it, which no pass did before.
        None => (lock(&event.state).0 >= value).then(Before::default),
    }
}

fn fence_methods() -> Vec<Method> {
    let mut all = methods! { Fence;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
    };
    all.extend(labels());
    all
}

fn event_methods() -> Vec<Method> {
    let mut all = methods! { Event;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
    };
    all.extend(labels());
    all
}

fn shared_methods() -> Vec<Method> {
    methods! { Event;
        c"signaledValue"(this) -> u64 { lock(&this.state).0 }
        c"setSignaledValue:"(this, value: u64) { this.signal(this.id, value); }
        c"waitUntilSignaledValue:timeoutMS:"(this, value: u64, limit: u64) -> bool {
            this.wait(value, Duration::from_millis(limit))
        }
        c"notifyListener:atValue:block:"(this, _listener: Id, value: u64, block: BlockArg) {
            let Some(block) = block.copy() else { return };
            let mut state = lock(&this.state);
            if state.0 < value {
                state.1.push((value, block));
            } else {
                drop(state);
                block.call_value(this.id, value);
            }
        }
    }
}

fn listener_methods() -> Vec<Method> {
    raw_methods! {
        c"init"(this) -> Id { this.initialise(Listener) }
    }
}
