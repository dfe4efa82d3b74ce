//! Answers that are awaited instead of waited for.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use futures_core::Stream;

use crate::generate_support::*;
use metallic::Event;
use metallic::generate::{EngineError, FinishReason, Generation};

/// Wakes the thread that runs the only task.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

async fn next(generation: &mut Generation) -> Option<Result<Event, EngineError>> {
    poll_fn(|context| Pin::new(&mut *generation).poll_next(context)).await
}

async fn tokens(mut generation: Generation) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(event) = next(&mut generation).await {
        match event.expect("an answer") {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished(end) => assert_eq!(end.reason, FinishReason::Length),
            other => panic!("{other:?}"),
        }
    }
    assert!(generation.has_ended());
    tokens
}

#[test]
fn a_stream_gives_the_events_of_the_iterator() {
    let (engine, _) = engine(config(64));
    let answer = engine.submit(greedy_request(prompt(1, 20), 30)).expect("it fits");
    assert_eq!(block_on(tokens(answer)), expected_greedy(&prompt(1, 20), 30));
}

#[test]
fn a_task_sleeps_until_a_token_comes_and_may_change_hands() {
    let (engine, handle) = engine(config(64));
    let gate = handle.hold_steps();
    let mut answer = engine.submit(greedy_request(prompt(1, 20), 2)).expect("it fits");
    // Polled once by somebody who goes away: only the last waker counts.
    let polled = Pin::new(&mut answer).poll_next(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    let task = std::thread::spawn(move || block_on(tokens(answer)));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!task.is_finished());
    gate.allow(1);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!task.is_finished(), "the second token needs a second step");
    drop(gate);
    assert_eq!(task.join().expect("no panic"), expected_greedy(&prompt(1, 20), 2));
}

#[test]
fn a_stream_can_be_waited_for_too() {
    let (engine, _) = engine(config(64));
    let mut answer = engine.submit(greedy_request(prompt(3, 20), 5)).expect("it fits");
    let first = block_on(next(&mut answer));
    assert!(matches!(first, Some(Ok(Event::Token(_)))), "{first:?}");
    assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(&prompt(3, 20), 5)[1..]);
}

#[test]
fn a_task_hears_of_an_engine_that_goes_away() {
    let (engine, handle) = engine(config(64));
    let gate = handle.hold_steps();
    let mut answer = engine.submit(greedy_request(prompt(1, 20), 1000)).expect("it fits");
    let task = std::thread::spawn(move || {
        while let Some(event) = block_on(next(&mut answer)) {
            if let Event::Finished(end) = event.expect("no error") {
                return end.reason;
            }
        }
        panic!("no end came")
    });
    drop(gate);
    drop(engine);
    assert_eq!(task.join().expect("no panic"), FinishReason::Cancelled);
}
