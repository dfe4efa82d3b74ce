//! Who is served when, and who is turned away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::generate_support::*;
use metallic::generate::{
    Decode, Detokenize, Engine, EngineConfig, EngineError, Event, FinishReason, Generation, Request,
    StopMatch,
};
use metallic_core::{BLOCK_TOKENS, State};

fn submit(engine: &Engine, request: Request) -> Generation {
    engine.submit(request).expect("a valid request")
}

#[test]
fn one_request_more_than_may_wait_is_told_when_to_come_again() {
    let (engine, handle) = engine(config(64).max_sequences(2).max_waiting(3));
    let gate = handle.hold_steps();
    let ask = |kind| engine.submit(greedy_request(prompt(kind, 10), 4));
    let answers: Vec<_> = (0..5).map(|kind| ask(kind).expect("it may run or wait")).collect();
    match ask(6) {
        Err(EngineError::Busy { waiting, limit, retry_after }) => {
            assert_eq!((waiting, limit), (3, 3));
            assert!(retry_after >= Duration::from_millis(100), "{retry_after:?}");
        }
        other => panic!("expected to be turned away, found {other:?}"),
    }
    assert_eq!(engine.recent_stats().rejected, 1);
    drop(gate);
    for (kind, answer) in (0..).zip(answers) {
        assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(&prompt(kind, 10), 4));
    }
    // Whoever has heard of the end of another finds its place free.
    let again: Vec<_> = (0..5).map(|kind| ask(kind).expect("there is room again")).collect();
    drop(again);
    assert_eq!(engine.stats().expect("stats").rejected, 1);
}

/// Waits until the engine has nothing to do but wait for readers.
fn until_paused(engine: &Engine, paused: usize) {
    let start = Instant::now();
    while engine.stats().expect("stats").paused < paused {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whoever_does_not_read_waits_for_nobody_but_himself() {
    let (engine, handle) = engine(config(64).max_unread(10));
    for depth in [1, 2] {
        handle.log().depth = depth;
        let slow = submit(&engine, greedy_request(prompt(1, 20), 200));
        let quick = submit(&engine, greedy_request(prompt(2, 20), 100));
        assert_eq!(quick.complete().expect("an answer").tokens, expected_greedy(&prompt(2, 20), 100));
        until_paused(&engine, 1);
        let steps = handle.log().steps;
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(handle.log().steps, steps, "nothing is computed for nobody");
        assert_eq!(engine.stats().expect("stats").running, 1);
        assert_eq!(slow.complete().expect("an answer").tokens, expected_greedy(&prompt(1, 20), 200));
    }
}

#[test]
fn those_who_do_not_read_make_room_for_those_who_come() {
    // Two places, both of them taken by somebody who does not read; and blocks for two such answers.
    let (engine, _) = engine(config(8).max_sequences(2).max_unread(8));
    let slow: Vec<_> = (0..3).map(|kind| submit(&engine, greedy_request(prompt(kind, 40), 60))).collect();
    until_paused(&engine, 3);
    let next = submit(&engine, greedy_request(prompt(7, 100), 30));
    assert_eq!(next.complete().expect("an answer").tokens, expected_greedy(&prompt(7, 100), 30));
    for (kind, answer) in (0..).zip(slow) {
        assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(&prompt(kind, 40), 60));
    }
    let stats = engine.stats().expect("stats");
    assert_eq!((stats.held_blocks, stats.running, stats.waiting, stats.paused), (0, 0, 0, 0));
}

#[test]
fn a_paused_answer_can_be_cancelled_wherever_it_is() {
    let (engine, _) = engine(config(64).max_sequences(1).max_unread(5));
    let first = submit(&engine, greedy_request(prompt(1, 40), 60));
    until_paused(&engine, 1);
    let second = submit(&engine, greedy_request(prompt(2, 40), 60));
    until_paused(&engine, 2);
    first.cancel();
    second.cancel();
    let stats = engine.stats().expect("stats");
    assert_eq!((stats.held_blocks, stats.running, stats.waiting, stats.cancelled), (0, 0, 0, 2));
    assert_eq!(first.complete().expect("an end").reason, FinishReason::Cancelled);
}

#[test]
fn higher_priorities_come_first_and_take_the_place_of_lower_ones() {
    let (engine, _) = engine(config(64).max_sequences(1));
    let (sender, order) = mpsc::channel();
    // Each tells when it has its first token. The engine waits in the third of whom a word is given to.
    let ask = |priority: i32, word: Option<mpsc::Receiver<()>>| {
        let (sender, mut calls) = (sender.clone(), 0);
        let request = greedy_request(prompt(priority.unsigned_abs(), 20), 30).priority(priority);
        request.hook(move |_, _| {
            calls += 1;
            if calls == 1 {
                sender.send(priority).expect("the test");
            } else if let Some(word) = word.as_ref().filter(|_| calls == 3) {
                word.recv().expect("a word");
            }
        })
    };
    let ([first, second], [hold, go_on]) = {
        let ((a, b), (c, d)) = (mpsc::channel(), mpsc::channel());
        ([a, c], [b, d])
    };
    let mut answers: Vec<(i32, Generation)> = vec![(5, submit(&engine, ask(5, Some(hold))))];
    answers.push((0, submit(&engine, ask(0, None))));
    answers.push((-1, submit(&engine, ask(-1, None))));
    answers.push((2, submit(&engine, ask(2, Some(go_on)))));
    answers.push((1, submit(&engine, ask(1, None))));
    first.send(()).expect("an engine that waits");
    assert_eq!([5, 2].map(|_| order.recv().expect("a token")), [5, 2]);
    answers.push((9, submit(&engine, ask(9, None))));
    second.send(()).expect("an engine that waits");
    for (priority, answer) in answers {
        let expected = expected_greedy(&prompt(priority.unsigned_abs(), 20), 30);
        assert_eq!(answer.complete().expect("an answer").tokens, expected, "priority {priority}");
    }
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [9, 1, 0, -1]);
    assert_eq!(engine.stats().expect("stats").preemptions, 1);
}

#[test]
fn a_deadline_ends_an_answer_and_wakes_an_engine_that_sleeps() {
    let (engine, _) = engine(config(64).max_unread(4));
    let soon = Instant::now() + Duration::from_millis(60);
    let answer = submit(&engine, greedy_request(prompt(1, 10), 1000).deadline(soon));
    until_paused(&engine, 1);
    std::thread::sleep(soon.saturating_duration_since(Instant::now()) + Duration::from_millis(30));
    assert_eq!(engine.recent_stats().expired, 1, "though nothing has asked it to look");
    assert_eq!(answer.complete().expect("an end").reason, FinishReason::Deadline);
    let late = greedy_request(prompt(1, 10), 1000).deadline(Instant::now());
    let late = submit(&engine, late).complete().expect("an end");
    assert_eq!((late.reason, late.tokens.len()), (FinishReason::Deadline, 0));
}

#[test]
fn prompts_that_come_together_and_begin_alike_are_computed_once() {
    let recurrent = EngineConfig::new(4096, VOCAB, layout_of(State::Recurrent(8)));
    for (config, is_recurrent) in [(config(512), false), (recurrent, true)] {
        let (engine, handle) = engine(config.max_sequences(16));
        let gate = handle.hold_steps();
        // Tails of several lengths: states are kept where prompts part, which is not where any of them ends.
        let prompts: Vec<Vec<u32>> = (0..16)
            .map(|kind| [prompt(1, 1000), prompt(kind + 5, 8 + 11 * kind as usize)].concat())
            .collect();
        // So the engine has taken it up when the others come.
        let first = submit(&engine, greedy_request(prompts[0].clone(), 3));
        let others: Vec<_> =
            prompts[1..].iter().map(|p| submit(&engine, greedy_request(p.clone(), 3))).collect();
        drop(gate);
        for (prompt, answer) in prompts.iter().zip([first].into_iter().chain(others)) {
            assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(prompt, 3));
        }
        let tails: usize = prompts.iter().map(|p| p.len() - 992 + 2).sum();
        let computed = handle.log().tokens;
        assert_eq!(computed, 992 + tails, "recurrent: {is_recurrent}");
    }
}

#[test]
fn whoever_waits_for_a_prefix_goes_on_when_the_one_who_computes_it_is_gone() {
    let (engine, handle) = engine(config(512).step_tokens(64));
    let gate = handle.hold_steps();
    let begin = prompt(1, 500);
    let tail = |kind: u32| [begin.clone(), prompt(kind, 40)].concat();
    let first = submit(&engine, greedy_request(tail(7), 3));
    let others = [8, 9].map(|kind| (kind, submit(&engine, greedy_request(tail(kind), 3))));
    gate.allow(3);
    while handle.log().steps < 3 {
        std::thread::yield_now();
    }
    drop(first);
    drop(gate);
    for (kind, answer) in others {
        assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(&tail(kind), 3));
    }
    let computed = handle.log().tokens;
    assert!(computed < 500 + 3 * (40 + 2 * BLOCK_TOKENS), "what was there was taken: {computed}");
}

#[test]
fn log_probabilities_of_the_prompt_are_those_of_the_model() {
    for cached in [false, true] {
        let (engine, handle) = engine(config(64).step_tokens(50));
        handle.log().depth = 2;
        let tokens = prompt(3, 200);
        if cached {
            submit(&engine, greedy_request(tokens.clone(), 2)).complete().expect("an answer");
        }
        for answer in [0, 3] {
            let request = greedy_request(tokens.clone(), answer).prompt_logprobs(2);
            let mut events: Vec<Event> =
                submit(&engine, request).collect::<Result<_, _>>().expect("an answer");
            let Event::Prompt(found) = events.remove(0) else { panic!("{events:?}") };
            assert_eq!(found.iter().map(|token| token.id).collect::<Vec<_>>(), tokens);
            assert_eq!((found[0].logprob, found[0].top_logprobs.len()), (None, 0));
            for (at, token) in found.iter().enumerate().skip(1) {
                let logits = expected_logits(&tokens[..at]);
                let total = logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
                let own = f64::from(logits[tokens[at] as usize]) - total;
                assert!((f64::from(token.logprob.expect("one")) - own).abs() < 1e-5, "token {at}");
                assert_eq!(token.top_logprobs.len(), 2);
                let best = logits.iter().copied().fold(f32::MIN, f32::max);
                assert!((f64::from(token.top_logprobs[0].logprob) - (f64::from(best) - total)).abs() < 1e-5);
            }
            let generated: Vec<u32> = events
                .iter()
                .filter_map(|event| match event {
                    Event::Token(token) => Some(token.id),
                    _ => None,
                })
                .collect();
            assert_eq!(generated, expected_greedy(&tokens, answer));
        }
    }
}

#[test]
fn a_prompt_can_be_computed_without_an_answer() {
    for depth in [1, 2] {
        let (engine, handle) = engine(config(4));
        handle.log().depth = depth;
        // All of the cache, with no room for one token more.
        let done = submit(&engine, greedy_request(prompt(1, 128), 0)).complete().expect("an end");
        assert_eq!((done.tokens.len(), done.reason), (0, FinishReason::Length));
        assert_eq!(handle.log().tokens, 128);
        assert!(matches!(
            engine.submit(greedy_request(prompt(1, 129), 0)),
            Err(EngineError::KvBudget { tokens: 129, .. })
        ));
        // It is there for those who follow.
        let next = submit(&engine, greedy_request(prompt(1, 100), 2)).complete().expect("an answer");
        assert_eq!((next.stats.cached_tokens, next.tokens), (96, expected_greedy(&prompt(1, 100), 2)));
    }
}

/// Letters, of which one breaks down, as does the end of a text where that is wanted.
struct Brittle {
    bad: u32,
    ends_badly: Arc<AtomicBool>,
}

struct BrittleDecoder(u32, Arc<AtomicBool>);

impl Detokenize for Brittle {
    fn decoder(&self) -> Box<dyn Decode + '_> {
        Box::new(BrittleDecoder(self.bad, Arc::clone(&self.ends_badly)))
    }
}

impl Decode for BrittleDecoder {
    fn push(&mut self, id: u32) -> String {
        assert!(id != self.0, "a decoder that breaks down");
        letter(id).to_string()
    }

    fn finish(&mut self) -> String {
        assert!(!self.1.load(Ordering::Relaxed), "an end that breaks down");
        String::new()
    }
}

#[test]
fn a_request_that_panics_ends_alone() {
    let (first, second) = (prompt(1, 20), prompt(2, 20));
    let bad = expected_greedy(&first, 5)[4];
    assert!(!expected_greedy(&second, 12).contains(&bad), "the case needs other tokens");
    let ends_badly = Arc::new(AtomicBool::new(false));
    let (program, handle) = fake();
    let text = Arc::new(Brittle { bad, ends_badly: Arc::clone(&ends_badly) });
    let engine = Engine::with_text(program, config(64), text).expect("a valid configuration");
    let gate = handle.hold_steps();
    let sick = submit(&engine, greedy_request(first, 12));
    let healthy = submit(&engine, greedy_request(second.clone(), 12));
    drop(gate);
    match sick.complete() {
        Err(EngineError::Panicked { message }) => assert!(message.contains("a decoder that breaks down")),
        other => panic!("expected an error, found {other:?}"),
    }
    assert_eq!(healthy.complete().expect("an answer").tokens, expected_greedy(&second, 12));
    ends_badly.store(true, Ordering::Relaxed);
    let cut = submit(&engine, greedy_request(second.clone(), 3)).complete();
    assert!(cut.is_err(), "{cut:?}");
    ends_badly.store(false, Ordering::Relaxed);
    let next = submit(&engine, greedy_request(second.clone(), 3)).complete().expect("an answer");
    assert_eq!(next.tokens, expected_greedy(&second, 3));
    assert_eq!(engine.stats().expect("stats").held_blocks, 0);
}

#[test]
fn what_stopped_an_answer_is_told() {
    let (program, _) = fake();
    let engine = Engine::with_text(program, config(64), Arc::new(Letters)).expect("a valid configuration");
    let tokens = expected_greedy(&prompt(1, 10), 20);
    let done = submit(&engine, greedy_request(prompt(1, 10), 20).stop_tokens([tokens[6]])).complete();
    assert_eq!(done.expect("an answer").stop, Some(StopMatch::Token(tokens[6])));
    let text = letter(tokens[9]).to_string();
    let first = tokens.iter().position(|id| letter(*id).to_string() == text).expect("it is there");
    let done = submit(&engine, greedy_request(prompt(1, 10), 20).stop(["@@".to_owned(), text.clone()]));
    let done = done.complete().expect("an answer");
    assert_eq!((done.stop, done.tokens.len()), (Some(StopMatch::Text(text)), first + 1));
    let done = submit(&engine, greedy_request(prompt(1, 10), 3)).complete().expect("an answer");
    assert_eq!((done.stop, done.reason), (None, FinishReason::Length));
}
