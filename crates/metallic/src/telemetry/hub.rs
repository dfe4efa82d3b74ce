//! Where records come together: what holds is kept, everything goes to whoever has asked for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metallic_telemetry::tracing::level_filters::LevelFilter;
use metallic_telemetry::tracing::span::{Attributes, Id, Record as Values};
use metallic_telemetry::tracing::subscriber::Interest;
use metallic_telemetry::tracing::{self, Metadata, Subscriber};
use metallic_telemetry::{Event, Lost, Record, TARGET, record_of};

/// Warnings and faults, and providers, that are kept for those who come later; of more the oldest go.
const KEPT: usize = 64;

/// Takes records from `tracing` and hands them on. It never waits for anybody.
#[derive(Debug, Default)]
pub(super) struct Hub {
    state: Mutex<State>,
    /// How many taps there are, for the question that is asked with every event.
    listening: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    taps: Vec<Tap>,
    last_tap: u64,
    lasting: Lasting,
    steps: u64,
    closed: bool,
}

/// One who gets records: what cannot be taken at once is lost to it, and counted.
#[derive(Debug)]
struct Tap {
    id: u64,
    to: Outlet,
    /// Since it was last told.
    lost: u64,
    lost_in_all: u64,
}

/// Where the records of a tap go.
#[derive(Clone, Debug)]
pub(super) enum Outlet {
    /// To a thread that writes them.
    Writer(SyncSender<Arc<Record>>),
    /// To the program itself.
    Program(SyncSender<Record>),
}

impl Outlet {
    /// Whether it was taken; `None` where nobody is there any more.
    fn offer(&self, record: &Arc<Record>) -> Option<bool> {
        let gone = match self {
            Outlet::Writer(to) => to.try_send(Arc::clone(record)).err().map(|error| is_gone(&error)),
            Outlet::Program(to) => to.try_send(Record::clone(record)).err().map(|error| is_gone(&error)),
        };
        match gone {
            None => Some(true),
            Some(false) => Some(false),
            Some(true) => None,
        }
    }
}

fn is_gone<T>(error: &TrySendError<T>) -> bool {
    matches!(error, TrySendError::Disconnected(_))
}

impl Tap {
    /// Hands a record on; `false` where nobody is there any more.
    fn offer(&mut self, record: &Arc<Record>) -> bool {
        if self.lost > 0 {
            let lost = Arc::new(Record::now(Event::Lost(Lost { records: self.lost })));
            match self.to.offer(&lost) {
                Some(true) => self.lost = 0,
                Some(false) => {}
                None => return false,
            }
        }
        match self.to.offer(record) {
            Some(true) => {}
            Some(false) => {
                self.lost += 1;
                self.lost_in_all += 1;
            }
            None => return false,
        }
        true
    }
}

/// The figures of the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) steps: u64,
    pub(super) lost: u64,
}

impl Hub {
    fn state(&self) -> MutexGuard<'_, State> {
        // No change is made in steps that could fail between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a record where it holds, and hands it on.
    pub(super) fn take(&self, record: &Arc<Record>) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.lasting.keep(record);
        state.steps += u64::from(matches!(record.event, Event::Step(_)));
        state.taps.retain_mut(|tap| tap.offer(record));
        self.listening.store(state.taps.len(), Ordering::Relaxed);
    }

    /// Adds one who gets what holds now, and every record from now on; its number. `None` after the end.
    pub(super) fn attach(&self, to: Outlet) -> Option<u64> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.last_tap += 1;
        let mut tap = Tap { id: state.last_tap, to, lost: 0, lost_in_all: 0 };
        if state.lasting.records().all(|record| tap.offer(record)) {
            state.taps.push(tap);
        }
        self.listening.store(state.taps.len(), Ordering::Relaxed);
        Some(state.last_tap)
    }

    /// Lets one go, or all; gives the figures of its end.
    pub(super) fn detach(&self, id: u64) -> Totals {
        let mut state = self.state();
        let found = state.taps.iter().position(|tap| tap.id == id);
        let lost = found.map_or(0, |index| state.taps.swap_remove(index).lost_in_all);
        self.listening.store(state.taps.len(), Ordering::Relaxed);
        Totals { steps: state.steps, lost }
    }

    /// Takes nothing any more.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.listening.store(0, Ordering::Relaxed);
    }
}

/// What holds until it is told anew.
#[derive(Debug, Default)]
struct Lasting {
    /// The newest of their kind, and of their name where there are several.
    newest: Vec<Arc<Record>>,
    /// Providers, warnings and faults: each says something of its own.
    told: VecDeque<Arc<Record>>,
}

impl Lasting {
    fn keep(&mut self, record: &Arc<Record>) {
        match &record.event {
            Event::Start(_) | Event::Load(_) | Event::Queue(_) | Event::Memory(_) => {
                self.replace(record, |known| known.kind() == record.event.kind());
            }
            Event::Cache(new) => {
                self.replace(record, |known| matches!(known, Event::Cache(old) if old.cache == new.cache));
            }
            Event::Pool(new) => {
                self.replace(record, |known| matches!(known, Event::Pool(old) if old.pool == new.pool));
            }
            Event::Provider(_) | Event::Warning(_) | Event::Fault(_) => {
                self.told.retain(|known| known.event != record.event);
                if self.told.len() == KEPT {
                    self.told.pop_front();
                }
                self.told.push_back(Arc::clone(record));
            }
            // What happened is over.
            _ => {}
        }
    }

    fn replace(&mut self, record: &Arc<Record>, same: impl Fn(&Event) -> bool) {
        match self.newest.iter_mut().find(|known| same(&known.event)) {
            Some(known) => *known = Arc::clone(record),
            None => self.newest.push(Arc::clone(record)),
        }
    }

    fn records(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.newest.iter().chain(&self.told)
    }
}

/// A hub as a subscriber: it takes this library's events and nothing else.
#[derive(Debug)]
pub(super) struct Listener(pub(super) Arc<Hub>);

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Readers come and go, so each event asks.
        if metadata.target() == TARGET { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
            && (self.0.listening.load(Ordering::Relaxed) > 0 || metadata.fields().field("lasting").is_some())
    }

    fn event(&self, event: &tracing::Event<'_>) {
        if let Some(record) = record_of(event) {
            self.0.take(&record);
        }
    }

    // Spans are for others.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Values<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use metallic_telemetry::{CacheSummary, Load, Queue, Warning};

    use super::*;

    fn tell(hub: &Hub, event: Event) {
        hub.take(&Arc::new(Record::now(event)));
    }

    fn queue(waiting: u64) -> Event {
        Event::Queue(Queue { waiting, ..Queue::default() })
    }

    #[test]
    fn who_comes_late_gets_the_newest_of_what_holds() {
        let hub = Hub::default();
        let cache = |name: &'static str, entries| {
            Event::Cache(CacheSummary { cache: name.into(), entries, ..CacheSummary::default() })
        };
        let warning = |text: &str| Event::Warning(Warning { about: "copy".into(), text: text.to_owned() });
        let load = |context| Event::Load(Load { context, ..Load::default() });
        let told = [load(1), queue(1), cache("plans", 1), cache("graphs", 1), warning("a"), warning("b")];
        for event in told {
            tell(&hub, event);
        }
        tell(&hub, Event::Step(metallic_telemetry::Step::default()));
        for event in [load(2), queue(2), cache("plans", 2), warning("a")] {
            tell(&hub, event);
        }
        let (to, from) = sync_channel(16);
        let id = hub.attach(Outlet::Program(to)).expect("open");
        tell(&hub, queue(3));
        let found: Vec<Event> = from.try_iter().map(|record| record.event).collect();
        let mut expected = vec![load(2), queue(2), cache("plans", 2), cache("graphs", 1)];
        expected.extend([warning("b"), warning("a"), queue(3)]);
        assert_eq!(found, expected);
        assert_eq!(hub.detach(id), Totals { steps: 1, lost: 0 });
    }

    #[test]
    fn what_a_slow_one_loses_is_counted_and_told_and_others_lose_nothing() {
        let hub = Hub::default();
        let (slow, from_slow) = sync_channel(2);
        let (quick, from_quick) = sync_channel(100);
        let id = hub.attach(Outlet::Program(slow)).expect("open");
        hub.attach(Outlet::Program(quick)).expect("open");
        (0..5).for_each(|waiting| tell(&hub, queue(waiting)));
        assert_eq!(from_slow.try_iter().map(|r| r.event).collect::<Vec<_>>(), [queue(0), queue(1)]);
        tell(&hub, queue(5));
        let lost = Event::Lost(Lost { records: 3 });
        assert_eq!(from_slow.try_iter().map(|r| r.event).collect::<Vec<_>>(), [lost, queue(5)]);
        assert_eq!(from_quick.try_iter().count(), 6);
        assert_eq!(hub.detach(id).lost, 3);
        drop(from_quick);
        assert_eq!(hub.listening.load(Ordering::Relaxed), 1);
        tell(&hub, queue(6));
        assert_eq!(hub.listening.load(Ordering::Relaxed), 0, "who is gone is forgotten");
        hub.close();
        assert!(hub.attach(Outlet::Program(sync_channel(1).0)).is_none());
    }
}
