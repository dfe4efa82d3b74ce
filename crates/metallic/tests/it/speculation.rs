//! Guessing ahead changes no token: against a program that notices every wrong block, position and length, with guesses that are
//! mostly right, sometimes right and never right.

use std::sync::{Arc, Mutex};

use crate::generate_support::*;
use metallic::generate::{
    Draft, DraftOptions, Engine, EngineConfig, Event, FinishReason, LookupOptions, Request, Sampling,
    Speculation,
};
use metallic_core::{BLOCK_TOKENS, State};
use proptest::prelude::*;

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guesser {
    Nobody,
    Lookup,
    /// A program with the same logits.
    Twin,
    /// A program with other logits.
    Stranger,
}

fn speculation(guesser: Guesser, tokens: usize) -> Speculation {
    match guesser {
        Guesser::Nobody => Speculation::Off,
        Guesser::Lookup => Speculation::Lookup(LookupOptions::default().tokens(tokens).adaptive(false)),
        Guesser::Twin | Guesser::Stranger => {
            Speculation::Draft(DraftOptions::default().tokens(tokens).adaptive(false))
        }
    }
}

/// How a program repeats itself; the other part is chance.
const REPEATS: Option<(usize, f32)> = Some((6, 5.0));

/// An engine that guesses so, and its program.
fn guessing(guesser: Guesser, tokens: usize, config: EngineConfig) -> (Engine, Handle) {
    let (program, handle) = fake();
    handle.log().repeats = REPEATS;
    let config = config.speculation(speculation(guesser, tokens));
    let engine = match guesser {
        Guesser::Nobody | Guesser::Lookup => Engine::with_text(program, config, Arc::new(Letters)),
        Guesser::Twin | Guesser::Stranger => {
            let (twin, other) = fake();
            other.log().repeats = if guesser == Guesser::Twin { REPEATS } else { Some((1, 9.0)) };
            let draft = Draft::new(twin, self::config(40)).expect("a draft model");
            Engine::with_draft(program, config, Some(Arc::new(Letters)), draft)
        }
    };
    (engine.expect("a valid configuration"), handle)
}

/// What is asked of a request, by number: every kind of sampling, stop strings, logprobs.
fn request(kind: u32, prompt: Vec<u32>, n: usize) -> Request {
    let plain = || Sampling::plain().seed(u64::from(kind));
    let request = Request::new(prompt).max_tokens(n);
    match kind % 8 {
        0 | 1 => request.sampling(Sampling::greedy()),
        2 => request.sampling(plain()),
        3 => request.sampling(plain().repetition_penalty(1.1).frequency_penalty(0.05)).logprobs(2),
        4 => request.sampling(plain().typical(0.8)),
        5 => request.sampling(Sampling::greedy()).stop(["ab".to_owned(), "ff".to_owned()]),
        6 => request.sampling(plain()).stop_tokens([7, 9]),
        _ => request.sampling(Sampling::greedy()).hook(|seen, logits| {
            // Depends on all tokens that came before, each once.
            let banned = seen.iter().sum::<u32>() as usize % VOCAB;
            logits[banned] = f32::NEG_INFINITY;
        }),
    }
}

/// All that a caller sees but times.
fn told(engine: &Engine, request: Request) -> Vec<String> {
    let events = engine.submit(request).expect("a valid request");
    let tell = |event| match event {
        Ok(Event::Token(token)) => format!("{token:?}"),
        Ok(Event::Finished(done)) => {
            format!("{:?} {:?} {}", done.reason, done.text, done.stats.generated_tokens)
        }
        other => format!("{other:?}"),
    };
    events.map(tell).collect()
}

#[test]
fn every_kind_of_request_is_answered_the_same_with_guesses_of_every_kind() {
    for depth in [1, 2] {
        let (plain, handle) = guessing(Guesser::Nobody, 1, config(64));
        handle.log().depth = depth;
        for guesser in [Guesser::Lookup, Guesser::Twin, Guesser::Stranger] {
            for tokens in [1, 3, 15] {
                let (engine, handle) = guessing(guesser, tokens, config(64));
                handle.log().depth = depth;
                for kind in 0..8 {
                    let ask = || request(kind, prompt(kind, 30 + kind as usize), 70);
                    assert_eq!(
                        told(&engine, ask()),
                        told(&plain, ask()),
                        "{guesser:?}, {tokens} at once, kind {kind}, depth {depth}"
                    );
                }
                let stats = engine.stats().expect("stats");
                let right = stats.accepted_tokens as f64 / stats.drafted_tokens as f64;
                match guesser {
                    Guesser::Stranger => assert!(right < 0.1, "{guesser:?} {tokens}: {right}"),
                    Guesser::Twin => assert!(right > 0.8, "{guesser:?} {tokens}: {right}"),
                    _ => assert!(right > 0.05, "{guesser:?} {tokens}: {right}"),
                }
                assert_eq!((stats.held_blocks, stats.draft_blocks), (0, 0));
            }
        }
    }
}

#[test]
fn right_guesses_save_steps_and_are_counted() {
    for guesser in [Guesser::Lookup, Guesser::Twin] {
        let (engine, handle) = guessing(guesser, 7, config(64));
        handle.log().repeats = Some((6, 100.0));
        if guesser == Guesser::Twin {
            handle.log().repeats = REPEATS;
        }
        let done =
            engine.submit(greedy_request(prompt(1, 20), 100)).expect("valid").complete().expect("done");
        let (steps, stats) = (handle.log().steps, engine.stats().expect("stats"));
        assert_eq!(done.tokens.len(), 100);
        assert!(steps < 40, "{guesser:?}: {steps} steps for 100 tokens");
        assert_eq!(stats.accepted_tokens as usize, done.stats.accepted_tokens);
        assert_eq!(stats.drafted_tokens as usize, done.stats.drafted_tokens);
        assert_eq!(99 - done.stats.accepted_tokens, steps - 1, "{guesser:?}");
    }
}

#[test]
fn a_hook_sees_each_token_once_and_in_order() {
    let (engine, handle) = guessing(Guesser::Lookup, 15, config(64));
    handle.log().repeats = Some((6, 100.0));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let asked =
        greedy_request(prompt(1, 20), 60).hook(move |tokens, _| notes.lock().unwrap().push(tokens.to_vec()));
    let done = engine.submit(asked).expect("valid").complete().expect("done");
    assert!(done.stats.accepted_tokens > 30, "{:?}", done.stats);
    let all: Vec<u32> = prompt(1, 20).into_iter().chain(done.tokens).collect();
    let expected: Vec<Vec<u32>> = (20..80).map(|len| all[..len].to_vec()).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn only_blocks_of_tokens_that_count_are_shared() {
    for guesser in [Guesser::Lookup, Guesser::Stranger] {
        let (engine, _) = guessing(guesser, 15, config(64));
        let (plain, _) = guessing(Guesser::Nobody, 1, config(64));
        let mut conversation = prompt(2, 40);
        for round in 0..4 {
            let ask = || request(2, conversation.clone(), 90);
            let done = engine.submit(ask()).expect("valid").complete().expect("done");
            let wanted = plain.submit(ask()).expect("valid").complete().expect("done");
            assert_eq!(done.tokens, wanted.tokens);
            assert_eq!(done.stats.cached_tokens, wanted.stats.cached_tokens, "round {round}");
            assert!(round == 0 || done.stats.cached_tokens >= 3 * BLOCK_TOKENS);
            conversation.extend(done.tokens);
            conversation.extend(prompt(round, 9));
        }
    }
}

#[test]
fn an_answer_ends_where_its_limit_is_whatever_is_guessed() {
    for limit in 1..20 {
        let (engine, handle) = guessing(Guesser::Lookup, 15, config(2));
        handle.log().repeats = Some((3, 100.0));
        let done =
            engine.submit(greedy_request(prompt(1, 40), limit)).expect("valid").complete().expect("done");
        assert_eq!((done.tokens.len(), done.reason), (limit, FinishReason::Length));
    }
    // Prompt and answer fill the cache to its last place.
    let (engine, handle) = guessing(Guesser::Lookup, 15, config(2));
    handle.log().repeats = Some((3, 100.0));
    let done = engine.submit(Request::new(prompt(1, 40)).sampling(Sampling::greedy())).expect("valid");
    assert_eq!(done.complete().expect("done").tokens.len(), 2 * BLOCK_TOKENS + 1 - 40);
}

#[test]
fn a_step_that_fails_with_guesses_is_tried_without_them() {
    let (engine, handle) = guessing(Guesser::Lookup, 15, config(64));
    handle.log().repeats = Some((6, 100.0));
    handle.log().fail_on = vec![4, 9];
    let (plain, other) = guessing(Guesser::Nobody, 1, config(64));
    other.log().repeats = Some((6, 100.0));
    let ask = || greedy_request(prompt(1, 20), 60);
    assert_eq!(told(&engine, ask()), told(&plain, ask()));
}

#[test]
fn a_draft_model_that_fails_is_no_longer_asked() {
    for depth in [1, 2] {
        let (program, handle) = fake();
        handle.log().depth = depth;
        let (twin, other) = fake();
        other.log().fail_on = vec![5];
        let config = config(64).speculation(speculation(Guesser::Twin, 4));
        let draft = Draft::new(twin, self::config(40)).expect("a draft model");
        let engine = Engine::with_draft(program, config, None, draft).expect("an engine");
        let done = engine.submit(greedy_request(prompt(1, 20), 60)).expect("valid").complete().expect("done");
        assert_eq!(done.tokens, expected_greedy(&prompt(1, 20), 60));
        assert!((1..20).contains(&done.stats.drafted_tokens), "{:?}", done.stats);
        assert_eq!(engine.stats().expect("stats").draft_blocks, 0);
    }
}

#[test]
fn requests_may_go_without_and_cannot_ask_for_what_there_is_not() {
    let (engine, handle) = guessing(Guesser::Lookup, 15, config(64));
    handle.log().repeats = Some((6, 100.0));
    let ask = |on| greedy_request(prompt(1, 20), 50).speculation(on);
    for (on, guesses) in [(Some(false), false), (Some(true), true), (None, true)] {
        let done = engine.submit(ask(on)).expect("valid").complete().expect("done");
        assert_eq!(done.stats.drafted_tokens > 0, guesses, "{on:?}");
    }
    let (plain, _) = guessing(Guesser::Nobody, 1, config(64));
    let refused = plain.submit(ask(Some(true))).unwrap_err().to_string();
    assert_eq!(refused, "speculation is true, it must be off: this engine does not guess ahead");
}

#[test]
fn models_with_recurrent_states_do_not_guess() {
    let states = layout_of(State::Recurrent(8));
    let config = EngineConfig::new(256, VOCAB, states).speculation(Speculation::lookup());
    let engine = Engine::new(fake().0, config.clone()).expect("an engine all the same");
    assert_eq!(engine.config().speculation, Speculation::Off);
    let refused = Draft::new(fake().0, config.speculation(Speculation::Off)).unwrap_err().to_string();
    assert!(refused.contains("draft model is recurrent"), "{refused}");
}

#[test]
fn a_draft_model_and_the_wish_for_one_come_together() {
    let draft = || Draft::new(fake().0, config(8)).expect("a draft model");
    let wishes = config(8).speculation(Speculation::draft("somewhere"));
    let refused = Engine::new(fake().0, wishes).unwrap_err().to_string();
    assert!(refused.contains("without a draft model"), "{refused}");
    let refused = Engine::with_draft(fake().0, config(8), None, draft()).unwrap_err().to_string();
    assert!(refused.contains("with a draft model"), "{refused}");
}

/// One request of a crowd: what kind, how long its prompt and answer are, and after how many tokens it is cancelled.
type Traffic = (u32, usize, usize, Option<usize>);

fn traffic() -> impl Strategy<Value = Traffic> {
    (0u32..8, 1usize..90, 1usize..60, prop_oneof![3 => Just(None), 1 => (0usize..20).prop_map(Some)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn crowds_that_guess_are_answered_as_each_alone_without(
        crowd in prop::collection::vec(traffic(), 1..7),
        guesser in prop_oneof![Just(Guesser::Lookup), Just(Guesser::Twin), Just(Guesser::Stranger)],
        tokens in 1usize..17,
        blocks in 6usize..20,
        (step_tokens, max_sequences) in (6usize..60, 1usize..6),
        (prefix_cache, depth) in (any::<bool>(), 1usize..3),
        looks in prop_oneof![
            1 => Just(Looks::Back),
            2 => (1usize..70).prop_map(Looks::BackAndThrough),
            1 => (1usize..70).prop_map(Looks::Through),
        ],
        failing in prop_oneof![3 => Just(None), 1 => (1usize..40).prop_map(Some)],
    ) {
        let states = looks.layout();
        let bytes = blocks * states.block_bytes();
        let base = EngineConfig::new(4096, VOCAB, states).kv_budget_bytes(bytes);
        let plain = guessing(Guesser::Nobody, 1, base.clone().kv_budget_bytes(99 * bytes));
        let config = base.prefix_cache(prefix_cache).step_tokens(step_tokens).max_sequences(max_sequences);
        let (engine, handle) = guessing(guesser, tokens, config);
        for handle in [&plain.1, &handle] {
            looks.set(&mut handle.log());
        }
        handle.log().depth = depth;
        handle.log().fail_on = failing.into_iter().collect();
        let ask = |&(kind, len, n, _): &Traffic| request(kind, prompt(kind, len), n);
        let answers: Vec<_> = crowd.iter().map(|t| engine.submit(ask(t)).expect("it fits")).collect();
        for (traffic, mut answer) in crowd.iter().zip(answers) {
            let expected = plain.0.submit(ask(traffic)).expect("it fits").complete().expect("an answer");
            let mut taken = Vec::new();
            let (mut broke, after) = (false, traffic.3.unwrap_or(0));
            while taken.len() < after && let Some(event) = answer.next() {
                match event {
                    Ok(Event::Token(token)) => taken.push(token.id),
                    other => broke = other.is_err(),
                }
            }
            if traffic.3.is_some() {
                answer.cancel();
            }
            if answer.has_ended() {
                let is_right = if broke { failing.is_some() } else { taken == expected.tokens };
                prop_assert!(is_right, "{:?} of {:?}", taken, expected.tokens);
                continue;
            }
            match answer.complete() {
                Ok(done) => {
                    taken.extend(done.tokens);
                    let is_cut = done.reason == FinishReason::Cancelled;
                    prop_assert!(!is_cut || traffic.3.is_some());
                    let is_same = if is_cut { expected.tokens.starts_with(&taken) } else { expected.tokens == taken };
                    prop_assert!(is_same, "{:?} of {:?}", taken, expected.tokens);
                }
                Err(error) => prop_assert!(failing.is_some(), "{}", error),
            }
        }
        let stats = engine.stats().expect("stats");
        let held = (stats.held_blocks, stats.near_blocks, stats.draft_blocks, stats.running, stats.waiting);
        prop_assert_eq!(held, (0, 0, 0, 0, 0));
    }
}
