//! What fails under an engine, and what it refuses, is told to whom it concerns; everybody else is served.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::generate_support::*;
use metallic::generate::{Engine, EngineError, Event, FinishReason, Generation, Request, Sampling};
use metallic_core::BackendError;

fn submit(engine: &Engine, request: Request) -> Generation {
    engine.submit(request).expect("a valid request")
}

#[test]
fn a_failing_device_fails_the_request_and_serves_the_next() {
    let (engine, handle) = engine(config(64));
    handle.log().fail_on = vec![3];
    let answer = submit(&engine, greedy_request(prompt(1, 40), 10));
    let events: Vec<_> = answer.collect();
    assert_eq!(events.len(), 3, "two tokens, then the error, then nothing");
    assert!(matches!(&events[2], Err(EngineError::Backend(BackendError::Failed { .. }))), "{:?}", events[2]);
    assert_eq!(engine.stats().expect("stats").held_blocks, 0);
    let next = submit(&engine, greedy_request(prompt(1, 40), 10)).complete().expect("an answer");
    assert_eq!(next.tokens, expected_greedy(&prompt(1, 40), 10));
}

#[test]
fn one_bad_sequence_does_not_take_its_neighbours_down() {
    let (engine, handle) = engine(config(64));
    handle.log().poison = Some(96);
    let gate = handle.hold_steps();
    let free_of_poison: Vec<u32> = prompt(1, 40).iter().map(|id| id % 90).collect();
    let healthy = submit(&engine, greedy_request(free_of_poison.clone(), 5));
    let sick = submit(&engine, greedy_request([&free_of_poison[..], &[96]].concat(), 5));
    drop(gate);
    let expected = expected_greedy(&free_of_poison, 5);
    assert!(!expected.contains(&96), "the case needs other tokens");
    assert!(matches!(sick.complete(), Err(EngineError::Backend(_))));
    assert_eq!(healthy.complete().expect("an answer").tokens, expected);
}

#[test]
fn a_device_without_memory_for_the_cache_is_an_error_that_passes() {
    let (program, _) = fake_with_room(4);
    let engine = Engine::new(program, config(64)).expect("a valid configuration");
    let big = submit(&engine, greedy_request(prompt(1, 200), 5)).complete();
    assert!(matches!(big, Err(EngineError::Backend(BackendError::OutOfMemory { .. }))), "{big:?}");
    let small = submit(&engine, greedy_request(prompt(1, 60), 30)).complete().expect("an answer");
    assert_eq!(small.tokens, expected_greedy(&prompt(1, 60), 30));
}

#[test]
fn a_crowd_on_a_device_with_less_memory_than_the_budget_is_served() {
    let (program, handle) = fake_with_room(6);
    let engine = Engine::new(program, config(64)).expect("a valid configuration");
    let gate = handle.hold_steps();
    let answers: Vec<_> = (0..4).map(|kind| submit(&engine, greedy_request(prompt(kind, 40), 60))).collect();
    drop(gate);
    for (kind, answer) in (0..).zip(answers) {
        assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(&prompt(kind, 40), 60));
    }
    assert!(engine.stats().expect("stats").preemptions > 0);
}

#[test]
fn a_program_that_panics_fails_those_of_the_step_and_serves_the_others() {
    for depth in [1, 2] {
        let (engine, handle) = engine(config(64).max_sequences(1));
        handle.log().depth = depth;
        handle.log().panic_on = Some(3);
        let gate = handle.hold_steps();
        let running = submit(&engine, greedy_request(prompt(1, 70), 10));
        let waiting = submit(&engine, greedy_request(prompt(1, 70), 10));
        drop(gate);
        match running.complete() {
            Err(EngineError::Panicked { message }) => assert!(message.contains("told to panic")),
            other => panic!("expected an error, found {other:?}"),
        }
        // What the program kept is not trusted: nothing of the prompt is taken from the cache.
        let done = waiting.complete().expect("an answer");
        assert_eq!((done.tokens, done.stats.cached_tokens), (expected_greedy(&prompt(1, 70), 10), 0));
        let stats = engine.stats().expect("stats");
        assert_eq!((stats.breakdowns, stats.failed, stats.held_blocks, stats.running), (1, 1, 0, 0));
    }
}

/// Breaks down when the engine drops it.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        let elsewhere = std::thread::current().name() != Some("metallic-engine");
        assert!(elsewhere || std::thread::panicking(), "a bomb");
    }
}

#[test]
fn a_program_that_panics_over_memory_fails_those_that_run_and_serves_the_next() {
    for depth in [1, 2] {
        let (engine, handle) = engine(config(64).max_sequences(2));
        (handle.log().depth, handle.log().panic_on_reserve) = (depth, true);
        // Their hooks break down as well, when they go with their requests.
        let ask = |kind| {
            let bomb = Bomb;
            let request =
                greedy_request(prompt(kind, 20), 5).deadline(Instant::now() + Duration::from_secs(60));
            let request = request.hook(move |_, _| {
                let _ = &bomb;
            });
            submit(&engine, request)
        };
        for answer in (0..5).map(ask).collect::<Vec<_>>() {
            let error = answer.complete().expect_err("a breakdown");
            assert!(
                matches!(&error, EngineError::Panicked { message } if message.contains("memory")),
                "{error}"
            );
        }
        let stats = engine.stats().expect("it is still there");
        assert_eq!((stats.failed, stats.running, stats.waiting, stats.held_blocks), (5, 0, 0, 0));
        assert!(stats.breakdowns > 0);
        handle.log().panic_on_reserve = false;
        let done = submit(&engine, greedy_request(prompt(1, 40), 9)).complete().expect("an answer");
        assert_eq!(done.tokens, expected_greedy(&prompt(1, 40), 9));
    }
}

#[test]
fn logits_that_are_all_nan_are_an_error_that_says_so() {
    nan_is_an_error(1, Some(VOCAB));
    nan_is_an_error(2, None);
}

fn nan_is_an_error(depth: usize, nan: Option<usize>) {
    let (engine, handle) = engine(config(64));
    let second = expected_greedy(&prompt(1, 10), 2)[1];
    handle.log().depth = depth;
    handle.log().nan_after = Some(second);
    let error = submit(&engine, greedy_request(prompt(1, 10), 10)).complete().expect_err("no candidate");
    assert_eq!(error, EngineError::NoCandidate { vocab: VOCAB, nan });
    assert!(error.to_string().contains("none of the 97 logits"), "{error}");
}

#[test]
fn tokens_that_are_impossible_have_no_probability() {
    let (engine, handle) = engine(config(64));
    let second = expected_greedy(&prompt(1, 10), 2)[1];
    handle.log().nan_after = Some(second);
    let request = greedy_request(prompt(1, 10), 4).logprobs(2).hook(|_, row| {
        if row[0].is_nan() {
            row.fill(0.0);
        }
    });
    let events: Vec<Event> = submit(&engine, request).collect::<Result<_, _>>().expect("an answer");
    let of = |event: &Event| match event {
        Event::Token(token) => token.logprob.map(|own| (own, token.top_logprobs.len())),
        _ => None,
    };
    let found: Vec<(f32, usize)> = events.iter().filter_map(of).collect();
    assert!(found[..2].iter().all(|(own, top)| own.is_finite() && *top == 2), "{found:?}");
    assert_eq!(found[2..], [(f32::NEG_INFINITY, 0); 2], "of logits that are no numbers");
}

#[test]
fn banned_tokens_are_never_chosen_whatever_penalties_speak_for_them() {
    for depth in [1, 2] {
        let (engine, handle) = engine(config(64));
        handle.log().depth = depth;
        for sampling in [Sampling::greedy(), Sampling::plain(), Sampling::plain().top_k(5).typical(0.5)] {
            let sampling = sampling.seed(1);
            let all = |but: Option<u32>| -> BTreeMap<u32, f32> {
                let banned = (0..VOCAB as u32).filter(|id| Some(*id) != but);
                banned.map(|id| (id, f32::NEG_INFINITY)).collect()
            };
            // What came before is rewarded as much as can be, the one that is left punished.
            let sampling =
                sampling.frequency_penalty(-3e38).presence_penalty(-3e38).repetition_penalty(1e-30);
            let one = all(Some(7)).into_iter().chain([(7, f32::MIN)]).collect::<BTreeMap<_, _>>();
            let request = greedy_request(prompt(1, 40), 6).sampling(sampling.clone().logit_bias(one));
            let done = submit(&engine, request).complete().expect("an answer");
            assert_eq!(done.tokens, [7; 6], "{sampling:?}, depth {depth}");
            let request = greedy_request(prompt(1, 40), 6).sampling(sampling.logit_bias(all(None)));
            let error = submit(&engine, request).complete().expect_err("no candidate");
            assert!(matches!(error, EngineError::NoCandidate { vocab: VOCAB, .. }), "{error}");
        }
        assert_eq!(engine.stats().expect("stats").held_blocks, 0);
    }
}

#[test]
fn requests_that_cannot_be_served_are_refused_at_once_with_the_reason() {
    let (engine, _) = engine(config(4));
    let base = || greedy_request(prompt(1, 10), 10);
    let refused = |request| engine.submit(request).expect_err("refused");
    assert_eq!(refused(base().prompt(Vec::new())), EngineError::EmptyPrompt);
    assert_eq!(
        refused(base().prompt(prompt(1, 4096))),
        EngineError::PromptTooLong { tokens: 4096, context: 4096 }
    );
    assert_eq!(
        refused(base().prompt(vec![1, 97])),
        EngineError::TokenOutOfRange { index: 1, id: 97, vocab: 97 }
    );
    let too_big = EngineError::KvBudget {
        tokens: 129,
        needed_bytes: 5 * layout().block_bytes(),
        budget_bytes: 4 * layout().block_bytes(),
    };
    assert_eq!(refused(greedy_request(prompt(1, 100), 30)), too_big);
    assert_eq!(refused(greedy_request(prompt(1, 129), 1).max_tokens(None)), too_big);
    assert_eq!(refused(base().stop(vec!["x".to_owned()])), EngineError::NoTokenizer);
    let parameters: Vec<(&str, Request)> = vec![
        ("prompt_logprobs", base().prompt_logprobs(98)),
        ("logprobs", base().logprobs(98)),
        ("stop", base().stop(vec![String::new()])),
        ("temperature", base().sampling(Sampling::default().temperature(-1.0))),
    ];
    for (expected, request) in parameters {
        match refused(request) {
            EngineError::Parameter { name, .. } => assert_eq!(name, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    assert_eq!(engine.stats().expect("stats").steps, 0);
}

#[test]
fn a_request_that_just_fits_the_budget_is_served_to_its_end() {
    let (engine, _) = engine(config(4));
    let done = submit(&engine, greedy_request(prompt(1, 100), 29)).complete().expect("an answer");
    assert_eq!(done.tokens, expected_greedy(&prompt(1, 100), 29));
    let open = greedy_request(prompt(1, 128), 1).max_tokens(None);
    let done = submit(&engine, open).complete().expect("an answer");
    assert_eq!((done.tokens.len(), done.reason), (1, FinishReason::Length));
}

#[test]
fn the_answer_ends_where_the_context_ends() {
    let (engine, _) = engine(config(64).context_length(50));
    for max_tokens in [None, Some(1000)] {
        let request = greedy_request(prompt(1, 40), 1).max_tokens(max_tokens);
        let done = submit(&engine, request).complete().expect("an answer");
        assert_eq!((done.tokens.len(), done.reason), (10, FinishReason::Length));
    }
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let cases = [
        config(1).kv_budget_bytes(layout().block_bytes() - 1),
        config(1).step_tokens(3).max_sequences(4),
        config(1).max_sequences(0),
        config(1).vocab_size(0),
        config(1).context_length(1),
        config(1).max_unread(0),
        config(1).step_stretch(0.9),
    ];
    for config in cases {
        assert!(Engine::new(fake().0, config.clone()).is_err(), "{config:?}");
    }
}

#[test]
fn a_program_of_another_vocabulary_is_noticed() {
    let (engine, _) = engine(config(4).vocab_size(96));
    let error = submit(&engine, greedy_request(vec![1, 2], 4)).complete().expect_err("97 logits");
    assert_eq!(error, EngineError::Output { found: 97, needed: 96 });
}
