//! The line from the engine's thread to whoever reads an answer, on a thread of its own or as a task.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A line and its two ends. What is sent is kept until it is read; sending never waits, so whoever sends asks
/// [whether it is full](Sender::is_full) before it makes more.
pub(super) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let line = Arc::new(Line { state: Mutex::new(State::default()), changed: Condvar::new() });
    (Sender { line: Arc::clone(&line) }, Receiver { line, made_room: false })
}

#[derive(Debug)]
struct Line<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// The sender is gone: nothing more comes.
    closed: bool,
    /// The sender found it full, and goes on once no more items than this are unread.
    full_until: Option<usize>,
    /// The task that waits.
    waker: Option<Waker>,
}

impl<T> Default for State<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), closed: false, full_until: None, waker: None }
    }
}

impl<T> State<T> {
    /// The next item, `None` at the end, and whether the sender waits for the room that this made.
    fn next(&mut self) -> (Poll<Option<T>>, bool) {
        let item = self.items.pop_front();
        let made_room = self.full_until.is_some_and(|most| self.items.len() <= most);
        if made_room {
            self.full_until = None;
        }
        match item {
            None if !self.closed => (Poll::Pending, made_room),
            item => (Poll::Ready(item), made_room),
        }
    }
}

impl<T> Line<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes whoever waits, after the lock is free again.
    fn change(&self, change: impl FnOnce(&mut State<T>)) {
        let mut state = self.state();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The engine's end. Dropping it ends the line.
#[derive(Debug)]
pub(super) struct Sender<T> {
    line: Arc<Line<T>>,
}

impl<T> Sender<T> {
    pub(super) fn send(&self, item: T) {
        self.line.change(|state| state.items.push_back(item));
    }

    /// Whether `limit` items or more are unread. Then the reader is [told to tell](Receiver::made_room) once half of
    /// them are read.
    pub(super) fn is_full(&self, limit: usize) -> bool {
        let mut state = self.line.state();
        let full = state.items.len() >= limit;
        if full {
            state.full_until = Some(limit / 2);
        }
        full
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.line.change(|state| state.closed = true);
    }
}

/// The reader's end.
#[derive(Debug)]
pub(super) struct Receiver<T> {
    line: Arc<Line<T>>,
    made_room: bool,
}

impl<T> Receiver<T> {
    /// Waits for the next item; `None` at the end.
    pub(super) fn recv(&mut self) -> Option<T> {
        let mut state = self.line.state();
        loop {
            let (next, made_room) = state.next();
            self.made_room |= made_room;
            match next {
                Poll::Ready(item) => return item,
                Poll::Pending => {
                    state = self.line.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Waits no longer than `timeout`; pending where nothing came.
    pub(super) fn recv_timeout(&mut self, timeout: Duration) -> Poll<Option<T>> {
        let waits = |state: &mut State<T>| state.items.is_empty() && !state.closed;
        let waited = self.line.changed.wait_timeout_while(self.line.state(), timeout, waits);
        let (next, made_room) = waited.unwrap_or_else(PoisonError::into_inner).0.next();
        self.made_room |= made_room;
        next
    }

    /// The next item, if there is one; else the task is woken when there is.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.line.state();
        let (next, made_room) = state.next();
        if next.is_pending() {
            state.waker = Some(context.waker().clone());
        }
        self.made_room |= made_room;
        next
    }

    /// Whether there is room again since this was last asked, for which the sender waits.
    pub(super) fn made_room(&mut self) -> bool {
        std::mem::take(&mut self.made_room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_the_end_comes_after_them() {
        let (sender, mut receiver) = channel();
        sender.send(1);
        sender.send(2);
        assert_eq!(receiver.recv(), Some(1));
        drop(sender);
        assert_eq!(receiver.recv_timeout(Duration::ZERO), Poll::Ready(Some(2)));
        assert_eq!(receiver.recv_timeout(Duration::MAX), Poll::Ready(None));
        assert_eq!(receiver.recv(), None);
    }

    #[test]
    fn a_wait_ends_when_something_comes_or_its_time_is_over() {
        let (sender, mut receiver) = channel();
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Poll::Pending);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                sender.send(7);
            });
            assert_eq!(receiver.recv(), Some(7));
        });
    }

    #[test]
    fn a_reader_that_is_gone_does_not_hinder_the_sender() {
        let (sender, receiver) = channel();
        drop(receiver);
        sender.send(1);
    }

    #[test]
    fn room_is_told_once_half_of_a_full_line_is_read() {
        let (sender, mut receiver) = channel();
        (0..4).for_each(|i| sender.send(i));
        assert!(!sender.is_full(5));
        assert_eq!((receiver.recv(), receiver.made_room()), (Some(0), false));
        sender.send(4);
        assert!(sender.is_full(4));
        assert_eq!((receiver.recv(), receiver.made_room()), (Some(1), false));
        assert_eq!((receiver.recv(), receiver.made_room()), (Some(2), true));
        assert_eq!((receiver.recv(), receiver.made_room()), (Some(3), false), "once");
    }
}
