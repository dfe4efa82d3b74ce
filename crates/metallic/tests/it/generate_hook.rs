//! A program's own code between logits and token, and logits alone.

use std::sync::mpsc::channel;

use crate::generate_support::*;
use metallic::generate::{EngineError, FinishReason};

#[test]
fn a_hook_sees_every_choice_and_decides_it() {
    let (engine, handle) = engine(config(64));
    // A device that could choose by itself must not.
    handle.log().depth = 2;
    let (sender, seen) = channel();
    let request = greedy_request(prompt(1, 20), 3).hook(move |tokens, logits| {
        sender.send((tokens.to_vec(), logits.to_vec())).expect("the test waits");
        logits.fill(f32::NEG_INFINITY);
        logits[5 + tokens.len() - 20] = 0.0;
    });
    let done = engine.submit(request).expect("it fits").complete().expect("an answer");
    assert_eq!(done.tokens, [5, 6, 7]);
    let seen: Vec<_> = seen.iter().collect();
    assert_eq!(seen.len(), 3);
    for (i, (tokens, logits)) in seen.iter().enumerate() {
        assert_eq!(*tokens, [&prompt(1, 20)[..], &[5, 6, 7][..i]].concat());
        assert_eq!(*logits, expected_logits(tokens));
    }
}

#[test]
fn log_probabilities_are_the_models_whatever_a_hook_changes() {
    let (engine, _) = engine(config(64));
    let ban_best = greedy_request(prompt(1, 20), 1).logprobs(1).hook(|tokens, logits| {
        logits[expected_greedy(tokens, 1)[0] as usize] = f32::NEG_INFINITY;
    });
    let mut answer = engine.submit(ban_best).expect("it fits");
    let Some(Ok(metallic::Event::Token(token))) = answer.next() else { panic!("a token comes first") };
    let best = expected_greedy(&prompt(1, 20), 1)[0];
    assert_eq!(token.top_logprobs[0].id, best);
    assert!(token.id != best && token.logprob < Some(token.top_logprobs[0].logprob), "{token:?}");
}

#[test]
fn a_hook_that_panics_ends_its_request_and_no_other() {
    let (engine, handle) = engine(config(64));
    let gate = handle.hold_steps();
    let healthy = engine.submit(greedy_request(prompt(1, 40), 10)).expect("it fits");
    let sick = greedy_request(prompt(2, 40), 10).hook(|tokens, _| assert!(tokens.len() < 43, "told to"));
    let sick = engine.submit(sick).expect("it fits");
    drop(gate);
    let events: Vec<_> = sick.collect();
    assert_eq!(events.len(), 4, "three tokens, then the error");
    assert_eq!(events[3], Err(EngineError::Hook { message: "told to".to_owned() }));
    assert_eq!(healthy.complete().expect("an answer").tokens, expected_greedy(&prompt(1, 40), 10));
    assert_eq!(engine.stats().expect("stats").held_blocks, 0);
}

#[test]
fn a_hook_that_bans_everything_is_told_so() {
    let (engine, _) = engine(config(64));
    let request = greedy_request(prompt(1, 4), 1).hook(|_, logits| logits.fill(f32::NEG_INFINITY));
    let answer = engine.submit(request).expect("it fits").complete();
    assert_eq!(answer, Err(EngineError::NoCandidate { vocab: VOCAB, nan: Some(0) }));
}

#[test]
fn logits_are_those_after_the_last_token_or_after_each() {
    for step_tokens in [16, 512] {
        let (engine, handle) = engine(config(64).step_tokens(step_tokens));
        // What was computed before comes without logits, and is computed again where they are wanted.
        for tokens in [prompt(1, 300), prompt(1, 300), prompt(1, 1), prompt(2, 129)] {
            assert_eq!(engine.logits(tokens.as_slice()).expect("logits"), expected_logits(&tokens));
            let all = engine.all_logits(tokens.as_slice()).expect("logits");
            assert_eq!(all.len(), tokens.len());
            for (i, row) in all.iter().enumerate() {
                assert_eq!(*row, expected_logits(&tokens[..=i]), "after token {i} of {}", tokens.len());
            }
        }
        assert_eq!(engine.stats().expect("stats").held_blocks, 0);
        handle.log().nan_after = Some(prompt(1, 1)[0]);
        assert!(engine.logits(prompt(1, 1)).expect("logits").iter().all(|logit| logit.is_nan()));
    }
    assert_eq!(engine(config(4)).0.logits([]), Err(EngineError::EmptyPrompt));
}

#[test]
fn each_row_of_a_prompt_is_seen_once_even_where_it_is_computed_twice() {
    // One token of the prompt a step, while its neighbours grow: it is set aside before its end.
    let (engine, handle) = engine(config(7).step_tokens(3).max_sequences(3));
    let gate = handle.hold_steps();
    let busy = [prompt(1, 20), prompt(2, 20)];
    let answers: Vec<_> =
        busy.iter().map(|p| engine.submit(greedy_request(p.clone(), 120)).expect("it fits")).collect();
    let (sender, rows) = channel();
    let watched = greedy_request(prompt(7, 70), 2).prompt_logits(true).hook(move |tokens, logits| {
        sender.send((tokens.len(), logits.to_vec())).expect("the test waits");
    });
    let watched = engine.submit(watched).expect("it fits");
    drop(gate);
    let done = watched.complete().expect("an answer");
    assert!(done.stats.preemptions > 0, "the case needs a preemption: {:?}", done.stats);
    assert_eq!(done.tokens, expected_greedy(&prompt(7, 70), 2));
    let all = [prompt(7, 70), done.tokens].concat();
    let expected: Vec<_> = (1..=71).map(|n| (n, expected_logits(&all[..n]))).collect();
    assert_eq!(rows.iter().collect::<Vec<_>>(), expected);
    for (prompt, answer) in busy.iter().zip(answers) {
        let done = answer.complete().expect("an answer");
        assert_eq!((done.tokens, done.reason), (expected_greedy(prompt, 120), FinishReason::Length));
    }
}
