//! The line from the engine's thread to whoever reads an answer, on a thread of its own or as a task.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A line and its two ends. What is sent is kept until it is read; sending never waits.
pub(super) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let line = Arc::new(Line { state: Mutex::new(State::default()), changed: Condvar::new() });
    (Sender { line: Arc::clone(&line) }, Receiver { line })
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
    /// The task that waits.
    waker: Option<Waker>,
}

impl<T> Default for State<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), closed: false, waker: None }
    }
}

impl<T> State<T> {
    /// The next item, `None` at the end.
    fn next(&mut self) -> Poll<Option<T>> {
        match self.items.pop_front() {
            None if !self.closed => Poll::Pending,
            item => Poll::Ready(item),
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
}

impl<T> Receiver<T> {
    /// Waits for the next item; `None` at the end.
    pub(super) fn recv(&mut self) -> Option<T> {
        let mut state = self.line.state();
        loop {
            match state.next() {
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
        waited.unwrap_or_else(PoisonError::into_inner).0.next()
    }

    /// The next item, if there is one; else the task is woken when there is.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.line.state();
        let next = state.next();
        if next.is_pending() {
            state.waker = Some(context.waker().clone());
        }
        next
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
}
