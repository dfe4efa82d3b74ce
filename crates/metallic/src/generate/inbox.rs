//! What reaches the engine's thread: requests, notes of answers to look after, questions.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::sequence::Submission;
use super::{EngineError, EngineStats};

/// Shortest and longest time after which a request that was turned away should come again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(120));
/// Until something is known of how long requests take.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// What is asked of the engine's thread.
pub(super) enum Command {
    /// A request.
    Submit(Box<Submission>),
    /// How it stands.
    Stats(Reply),
}

/// Takes how the engine stands, on its thread.
pub(super) type Reply = Box<dyn FnOnce(EngineStats) + Send>;

/// What came in since the thread last looked.
#[derive(Default)]
pub(super) struct Mail {
    pub(super) commands: VecDeque<Command>,
    /// Requests that were cancelled, or whose reader made room.
    pub(super) noted: Vec<u64>,
    /// The engine was dropped.
    pub(super) closed: bool,
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.noted.is_empty() && !self.closed
    }
}

/// The thread's inbox, and what callers see of it without asking. As many commands lie in it as requests have a
/// [`Place`] and callers wait for a reply; each request is noted twice at most for each time it is looked after.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    under_way: AtomicUsize,
    rejected: AtomicU64,
    /// Microseconds between the ends of two requests of late, 0 where nothing is known.
    interval: AtomicU64,
    recent: Mutex<Recent>,
}

/// How things stood when the thread last looked up, and when that was, unless it had nothing to do.
#[derive(Clone, Copy, Default)]
struct Recent {
    stats: EngineStats,
    at: Option<Instant>,
}

#[derive(Default)]
struct State {
    mail: Mail,
    /// The thread has ended: nobody reads.
    ended: bool,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    /// A place for one more request, where fewer are under way than may run and wait together.
    pub(super) fn place(self: &Arc<Self>, running: usize, waiting: usize) -> Result<Place, EngineError> {
        let most = running.saturating_add(waiting);
        let entered = self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, |under_way| {
            (under_way < most).then_some(under_way + 1)
        });
        match entered {
            Ok(_) => Ok(Place { inbox: Arc::clone(self) }),
            Err(under_way) => {
                self.rejected.fetch_add(1, Ordering::Relaxed);
                let waits = under_way.saturating_sub(running);
                Err(EngineError::Busy {
                    waiting: waits,
                    limit: waiting,
                    retry_after: self.retry_after(waits),
                })
            }
        }
    }

    /// When half of those that wait will have been taken up, as things went of late.
    fn retry_after(&self, waiting: usize) -> Duration {
        let interval = Duration::from_micros(self.interval.load(Ordering::Relaxed));
        if interval.is_zero() {
            return FIRST_RETRY;
        }
        let places = u32::try_from(waiting / 2 + 1).unwrap_or(u32::MAX);
        interval.saturating_mul(places).clamp(RETRY.0, RETRY.1)
    }

    /// Notes how long it took of late until another request ended.
    pub(super) fn set_interval(&self, interval: Duration) {
        let micros = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
        self.interval.store(micros.max(1), Ordering::Relaxed);
    }

    /// Requests that were turned away.
    pub(super) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Keeps how things stand for those who do not wait for an answer.
    pub(super) fn set_recent(&self, stats: EngineStats) {
        *lock(&self.recent) = Recent { stats, at: Some(Instant::now()) };
    }

    /// The thread has nothing to do.
    pub(super) fn rest(&self) {
        lock(&self.recent).at = None;
    }

    pub(super) fn recent(&self) -> EngineStats {
        lock(&self.recent).stats
    }

    /// How long the thread has been at what it does; nothing while that is nothing. `None` once it has ended.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        if lock(&self.state).ended {
            return None;
        }
        let at = lock(&self.recent).at;
        Some(at.map_or(Duration::ZERO, |at| at.elapsed()))
    }

    pub(super) fn post(&self, command: Command) -> Result<(), EngineError> {
        let mut state = lock(&self.state);
        if state.ended {
            return Err(EngineError::Gone);
        }
        state.mail.commands.push_back(command);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// A request is to be looked after: it was cancelled, or its reader has read.
    pub(super) fn note(&self, serial: u64) {
        let mut state = lock(&self.state);
        if !state.ended {
            state.mail.noted.push(serial);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Asks the thread to end.
    pub(super) fn close(&self) {
        lock(&self.state).mail.closed = true;
        self.changed.notify_one();
    }

    /// The thread ends; what it has not read is dropped, which cuts the lines of those who wait.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let rest = std::mem::take(&mut state.mail);
        drop(state);
        drop(rest);
    }

    /// What came in, waiting no longer than `patience` for it.
    pub(super) fn take(&self, patience: Duration) -> Mail {
        let mut state = lock(&self.state);
        if state.mail.is_empty() && !patience.is_zero() {
            let waited = self.changed.wait_timeout_while(state, patience, |state| state.mail.is_empty());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let closed = state.mail.closed;
        let mail = std::mem::take(&mut state.mail);
        state.mail.closed = closed;
        mail
    }
}

/// A request's place among those under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    inbox: Arc<Inbox>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.inbox.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_too_many_is_told_when_to_come_again() {
        let inbox = Arc::new(Inbox::default());
        let first = inbox.place(1, 1).expect("it may run");
        let second = inbox.place(1, 1).expect("it may wait");
        let busy = |retry_after| EngineError::Busy { waiting: 1, limit: 1, retry_after };
        assert_eq!(inbox.place(1, 1).expect_err("full"), busy(FIRST_RETRY));
        inbox.set_interval(Duration::from_secs(3));
        assert_eq!(inbox.place(1, 1).expect_err("full"), busy(Duration::from_secs(3)));
        inbox.set_interval(Duration::from_secs(1000));
        assert_eq!(inbox.place(1, 1).expect_err("full"), busy(RETRY.1));
        drop(first);
        let third = inbox.place(1, 1).expect("there is room again");
        drop((second, third));
        assert_eq!((inbox.rejected(), inbox.under_way.load(Ordering::Relaxed)), (3, 0));
    }

    #[test]
    fn nothing_is_taken_by_a_thread_that_has_ended() {
        let inbox = Inbox::default();
        inbox.note(3);
        assert_eq!(inbox.take(Duration::MAX).noted, [3]);
        assert!(inbox.take(Duration::ZERO).is_empty());
        inbox.end();
        let reply = Box::new(|_| ());
        assert_eq!(inbox.post(Command::Stats(reply)).expect_err("ended"), EngineError::Gone);
    }

    #[test]
    fn a_thread_that_does_not_look_up_from_its_work_is_told_from_one_that_has_none() {
        let inbox = Inbox::default();
        assert_eq!(inbox.busy_for(), Some(Duration::ZERO), "it has not begun");
        inbox.set_recent(EngineStats { waiting: 1, ..EngineStats::default() });
        std::thread::sleep(Duration::from_millis(2));
        assert!(inbox.busy_for().expect("it lives") >= Duration::from_millis(2));
        inbox.rest();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(inbox.busy_for(), Some(Duration::ZERO), "whoever waits does so for a reader");
        inbox.end();
        assert_eq!(inbox.busy_for(), None);
    }
}
