//! The engine against a program that notices every wrong block, position and length.

use crate::generate_support::*;
use metallic::generate::{Engine, EngineConfig, Event, FinishReason, Generation, Request, Sampling};
use metallic_core::{BLOCK_TOKENS, KvState, State};

fn submit(engine: &Engine, request: Request) -> Generation {
    engine.submit(request).expect("a valid request")
}

#[test]
fn one_request_gives_the_tokens_of_the_model() {
    let (engine, _) = engine(config(64));
    for len in [1, 31, 32, 33, 64, 100] {
        let prompt = prompt(3, len);
        let done = submit(&engine, greedy_request(prompt.clone(), 40)).complete().expect("an answer");
        assert_eq!(done.tokens, expected_greedy(&prompt, 40), "prompt of {len}");
        assert_eq!(done.reason, FinishReason::Length);
    }
}

#[test]
fn many_requests_in_one_step_give_what_each_gives_alone() {
    let (engine, handle) = engine(config(512).max_sequences(8).step_stretch(f64::INFINITY));
    let gate = handle.hold_steps();
    let prompts: Vec<_> = (0..12).map(|kind| prompt(kind, 3 + 29 * kind as usize)).collect();
    let answers: Vec<_> = prompts.iter().map(|p| submit(&engine, greedy_request(p.clone(), 50))).collect();
    drop(gate);
    for (prompt, answer) in prompts.iter().zip(answers) {
        assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(prompt, 50));
    }
    assert_eq!(handle.log().widest_step, 8);
    assert_eq!(handle.log().longest_step, 512);
}

#[test]
fn prefill_in_pieces_of_any_size_gives_the_same_tokens() {
    let prompt = prompt(5, 150);
    let expected = expected_greedy(&prompt, 10);
    for step_tokens in [1, 7, 32, 33, 64, 150, 512] {
        let (engine, handle) = engine(config(64).step_tokens(step_tokens).max_sequences(1));
        let done = submit(&engine, greedy_request(prompt.clone(), 10)).complete().expect("an answer");
        assert_eq!(done.tokens, expected, "steps of {step_tokens}");
        assert_eq!(handle.log().steps, 150_usize.div_ceil(step_tokens) + 9);
        assert_eq!(handle.log().rows, 10, "logits are computed for the tokens that need them only");
    }
}

#[test]
fn handing_steps_over_early_changes_no_token() {
    let (engine, handle) = engine(config(64));
    handle.log().depth = 2;
    for (len, n) in [(1, 1), (31, 40), (33, 7)] {
        let prompt = prompt(4, len);
        let done = submit(&engine, greedy_request(prompt.clone(), n)).complete().expect("an answer");
        assert_eq!(done.tokens, expected_greedy(&prompt, n), "{len} + {n}");
        assert!(n == 1 || handle.log().fed_steps >= n - 2, "{} of {n} went early", handle.log().fed_steps);
    }
    let pair = [prompt(8, 5), prompt(9, 40)];
    let answers = pair.clone().map(|p| submit(&engine, greedy_request(p, 30)));
    for (prompt, answer) in pair.iter().zip(answers) {
        assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(prompt, 30));
    }
}

#[test]
fn a_seed_gives_the_same_tokens_whoever_chooses() {
    let plain = || Sampling::default().seed(7).temperature(0.9);
    let settings = [
        plain().top_k(0).top_p(1.0).min_p(0.0),
        plain().top_k(5),
        plain().top_p(0.6),
        plain().min_p(0.2),
        plain().typical(0.7),
        plain().repetition_penalty(1.4).presence_penalty(0.3).frequency_penalty(0.2),
        plain().logit_bias([(3, 2.0), (5, f32::NEG_INFINITY)]),
    ];
    for sampling in settings {
        let answers = [1, 2].map(|depth| {
            let (engine, handle) = engine(config(64));
            handle.log().depth = depth;
            let request = greedy_request(prompt(2, 9), 25).sampling(sampling.clone());
            let others = (0..3).map(|i| submit(&engine, greedy_request(prompt(i, 20), 5 * i as usize + 1)));
            let others: Vec<_> = others.take(depth).collect();
            let tokens = submit(&engine, request).complete().expect("an answer").tokens;
            for other in others {
                other.complete().expect("an answer");
            }
            tokens
        });
        assert_eq!(answers[0], answers[1], "{sampling:?}");
    }
}

#[test]
fn blocks_that_no_window_reaches_are_given_back() {
    let kv = KvState { kv_heads: 1, key_dim: 4, value_dim: 4, window: Some(40) };
    let states = layout_of(State::Kv(kv));
    // A window of 40 lies in three blocks at most; without letting go the answer would need 11.
    let bytes = 4 * states.block_bytes();
    let config = EngineConfig::new(4096, VOCAB, states).kv_budget_bytes(bytes).prefix_cache(false);
    let (engine, handle) = engine(config);
    handle.log().window = Some(40);
    let gate = handle.hold_steps();
    let answer = submit(&engine, greedy_request(prompt(1, 100), 20));
    gate.allow(5);
    drop(gate);
    assert_eq!(answer.complete().expect("an answer").tokens.len(), 20);
    let stats = engine.stats().expect("stats");
    assert_eq!((stats.held_blocks, stats.reserved_blocks <= 4), (0, true), "{stats:?}");
}

#[test]
fn a_recurrent_state_is_found_where_it_was_kept_and_nowhere_else() {
    let config = EngineConfig::new(4096, VOCAB, layout_of(State::Recurrent(8)));
    let (engine, handle) = engine(config.max_sequences(2));
    // The state after 32 tokens was not kept: the first prompt went on from there.
    let (first, same, begins_so) = (prompt(1, 70), prompt(1, 70), [prompt(1, 40), prompt(5, 9)].concat());
    for (prompt, cached) in [(first, 0), (same, 64), (begins_so, 0), (prompt(2, 30), 0)] {
        let done = submit(&engine, greedy_request(prompt.clone(), 4)).complete().expect("an answer");
        assert_eq!((done.tokens, done.stats.cached_tokens), (expected_greedy(&prompt, 4), cached));
    }
    let both = [prompt(3, 9), prompt(4, 9)].map(|p| submit(&engine, greedy_request(p, 40)));
    for answer in both {
        answer.complete().expect("an answer");
    }
    assert!(handle.log().slots.iter().all(|slot| *slot < 2), "{:?}", handle.log().slots);
}

#[test]
fn tokens_past_an_end_are_dropped_and_their_cache_is_not_reused() {
    let (engine, handle) = engine(config(64).end_tokens(vec![11]));
    handle.log().depth = 2;
    handle.log().end_with = Some((20, 11));
    let first = prompt(3, 10);
    let done = submit(&engine, greedy_request(first.clone(), 50)).complete().expect("an answer");
    assert_eq!((done.reason, done.tokens.len()), (FinishReason::Stop, 10));
    handle.log().end_with = None;
    let next: Vec<u32> = first.into_iter().chain(done.tokens).chain(prompt(6, 15)).collect();
    let done = submit(&engine, greedy_request(next.clone(), 20)).complete().expect("an answer");
    assert_eq!(done.tokens, expected_greedy(&next, 20));
}

#[test]
fn a_crowd_that_fills_the_cache_waits_for_its_tokens() {
    let (engine, handle) = engine(config(7).max_sequences(4));
    handle.log().depth = 2;
    let prompts: Vec<_> = (0..4).map(|kind| prompt(kind, 20)).collect();
    let answers: Vec<_> = prompts.iter().map(|p| submit(&engine, greedy_request(p.clone(), 60))).collect();
    for (prompt, answer) in prompts.iter().zip(answers) {
        assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(prompt, 60));
    }
}

#[test]
fn decoding_goes_on_while_a_long_prompt_is_computed() {
    let config = config(256).step_tokens(16).max_sequences(4).step_stretch(f64::INFINITY);
    let (engine, handle) = engine(config);
    let gate = handle.hold_steps();
    let short = submit(&engine, greedy_request(prompt(1, 4), 30));
    let long = submit(&engine, greedy_request(prompt(2, 400), 3));
    drop(gate);
    assert_eq!(short.complete().expect("an answer").tokens, expected_greedy(&prompt(1, 4), 30));
    assert_eq!(long.complete().expect("an answer").tokens, expected_greedy(&prompt(2, 400), 3));
    let steps = handle.log().steps;
    assert!(steps < 40, "the two overlap: {steps} steps");
}

#[test]
fn preemption_under_a_tiny_budget_changes_no_token() {
    for prefix_cache in [true, false] {
        // Each request alone needs 5 blocks at its end; there are 7 for five of them.
        let (engine, handle) = engine(config(7).prefix_cache(prefix_cache));
        let gate = handle.hold_steps();
        let prompts: Vec<_> = (0..5).map(|kind| prompt(kind, 20)).collect();
        let answers: Vec<_> =
            prompts.iter().map(|p| submit(&engine, greedy_request(p.clone(), 120))).collect();
        drop(gate);
        let mut preemptions = 0;
        for (prompt, answer) in prompts.iter().zip(answers) {
            let done = answer.complete().expect("an answer");
            assert_eq!(done.tokens, expected_greedy(prompt, 120));
            preemptions += done.stats.preemptions;
        }
        let stats = engine.stats().expect("stats");
        assert!(preemptions > 0 && stats.preemptions == preemptions as u64, "{preemptions}, {stats:?}");
        assert!(stats.reserved_blocks <= 7);
        assert_eq!((stats.held_blocks, stats.running, stats.waiting), (0, 0, 0));
    }
}

#[test]
fn seeded_sampling_survives_preemption_and_company() {
    let ask = |kind| {
        Request::new(prompt(kind, 20)).max_tokens(100).sampling(Sampling::default().seed(u64::from(kind)))
    };
    let (alone, _) = engine(config(64));
    let expected: Vec<_> =
        (0..4).map(|kind| submit(&alone, ask(kind)).complete().expect("an answer").tokens).collect();
    let (crowded, handle) = engine(config(6));
    let gate = handle.hold_steps();
    let answers: Vec<_> = (0..4).map(|kind| submit(&crowded, ask(kind))).collect();
    drop(gate);
    for (expected, answer) in expected.iter().zip(answers) {
        assert_eq!(&answer.complete().expect("an answer").tokens, expected);
    }
    assert!(crowded.stats().expect("stats").preemptions > 0);
}

#[test]
fn the_cache_is_reserved_as_it_is_needed() {
    let (engine, _) = engine(config(1000));
    submit(&engine, greedy_request(prompt(1, 10), 5)).complete().expect("an answer");
    assert_eq!(engine.stats().expect("stats").reserved_blocks, 16);
}

#[test]
fn a_conversation_is_not_computed_again() {
    let (engine, handle) = engine(config(64));
    let mut conversation = prompt(4, 200);
    let first = submit(&engine, greedy_request(conversation.clone(), 50)).complete().expect("an answer");
    assert_eq!(first.stats.cached_tokens, 0);
    conversation.extend(&first.tokens);
    conversation.extend(prompt(9, 12));
    let before = handle.log().tokens;
    let second = submit(&engine, greedy_request(conversation.clone(), 20)).complete().expect("an answer");
    assert_eq!(second.tokens, expected_greedy(&conversation, 20));
    // 249 tokens were computed, 7 full blocks of them are reused.
    assert_eq!(second.stats.cached_tokens, 7 * BLOCK_TOKENS);
    assert_eq!(handle.log().tokens - before, 262 - 7 * BLOCK_TOKENS + 19);
}

#[test]
fn a_prompt_that_differs_early_shares_nothing() {
    let (engine, _) = engine(config(64));
    let mut other = prompt(4, 100);
    submit(&engine, greedy_request(other.clone(), 2)).complete().expect("an answer");
    other[3] ^= 1;
    let done = submit(&engine, greedy_request(other.clone(), 20)).complete().expect("an answer");
    assert_eq!((done.stats.cached_tokens, done.tokens), (0, expected_greedy(&other, 20)));
}

#[test]
fn kept_prefixes_make_way_for_new_requests() {
    let (engine, _) = engine(config(8));
    for kind in 0..20 {
        let prompt = prompt(kind, 100);
        let done = submit(&engine, greedy_request(prompt.clone(), 20)).complete().expect("an answer");
        assert_eq!(done.tokens, expected_greedy(&prompt, 20));
    }
    let stats = engine.stats().expect("stats");
    assert_eq!((stats.held_blocks, stats.reserved_blocks), (0, 8));
    assert!(stats.cached_blocks >= 3, "{stats:?}");
}

#[test]
fn equal_prompts_side_by_side_share_their_blocks() {
    let (engine, handle) = engine(config(64).step_tokens(64));
    let gate = handle.hold_steps();
    let answers: Vec<_> = (0..4).map(|_| submit(&engine, greedy_request(prompt(1, 128), 30))).collect();
    drop(gate);
    for answer in answers {
        assert_eq!(answer.complete().expect("an answer").tokens, expected_greedy(&prompt(1, 128), 30));
    }
    // 157 tokens: four full blocks, once for all.
    assert_eq!(engine.stats().expect("stats").cached_blocks, 4);
}

#[test]
fn cancelling_frees_all_blocks_and_is_told() {
    let (engine, handle) = engine(config(64).prefix_cache(false));
    let gate = handle.hold_steps();
    let mut answer = submit(&engine, greedy_request(prompt(1, 100), 1000));
    gate.allow(1);
    assert!(matches!(answer.next(), Some(Ok(Event::Token(_)))));
    answer.cancel();
    drop(gate);
    let done = answer.complete().expect("an end");
    assert_eq!(done.reason, FinishReason::Cancelled);
    assert!(done.tokens.len() <= 1, "at most the step that was under way: {:?}", done.tokens);
    let stats = engine.stats().expect("stats");
    assert_eq!((stats.running, stats.waiting, stats.held_blocks, stats.cached_blocks), (0, 0, 0, 0));
    assert!(stats.reserved_blocks >= 4);
}

#[test]
fn dropping_an_answer_cancels_it_whether_it_runs_or_waits() {
    let (engine, handle) = engine(config(64).max_sequences(1));
    let gate = handle.hold_steps();
    let running = submit(&engine, greedy_request(prompt(1, 100), 1000));
    let waiting = submit(&engine, greedy_request(prompt(2, 100), 1000));
    let last = submit(&engine, greedy_request(prompt(3, 50), 8));
    drop((running, waiting));
    drop(gate);
    assert_eq!(last.complete().expect("an answer").tokens, expected_greedy(&prompt(3, 50), 8));
    let stats = engine.stats().expect("stats");
    assert_eq!((stats.running, stats.waiting, stats.held_blocks), (0, 0, 0));
    assert!(stats.computed_tokens < 300, "neither was answered: {stats:?}");
}

#[test]
fn dropping_the_engine_ends_what_is_under_way() {
    // So long an answer takes the program many seconds.
    let (engine, _) = engine(config(4000).max_sequences(1).context_length(200_000));
    let mut running = submit(&engine, greedy_request(prompt(1, 10), 100_000));
    let waiting = submit(&engine, greedy_request(prompt(2, 10), 100_000));
    assert!(running.next().is_some());
    drop(engine);
    assert_eq!(running.complete().expect("an end").reason, FinishReason::Cancelled);
    assert_eq!(waiting.complete().expect("an end").reason, FinishReason::Cancelled);
}

#[test]
fn end_tokens_end_the_answer_unless_they_are_ignored() {
    let (engine, handle) = engine(config(64).end_tokens(vec![42]));
    handle.log().end_with = Some((15, 42));
    let done = submit(&engine, greedy_request(prompt(1, 10), 20)).complete().expect("an answer");
    assert_eq!((done.tokens.len(), done.reason), (5, FinishReason::Stop));
    let on = || greedy_request(prompt(1, 10), 20).ignore_eos(true);
    let done = submit(&engine, on()).complete().expect("an answer");
    assert_eq!((done.tokens.len(), done.reason), (20, FinishReason::Length));
    let stopped = on().stop_tokens([42]);
    assert_eq!(submit(&engine, stopped).complete().expect("an answer").tokens.len(), 5);
}

#[test]
fn the_stats_of_a_request_add_up() {
    let (engine, _) = engine(config(64).step_tokens(64));
    let done = submit(&engine, greedy_request(prompt(1, 100), 11)).complete().expect("an answer");
    let stats = done.stats;
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (100, 11));
    assert_eq!((stats.dispatches, stats.bytes_read), (3 * 12, 110), "2 steps of prompt and 10 of decode");
    assert!(stats.ttft_s >= stats.prefill_s && stats.prefill_s > 0.0 && stats.decode_s > 0.0);
    assert!((stats.decode_tps * stats.decode_s - 10.0).abs() < 1e-6);
    assert!((stats.prefill_tps * stats.prefill_s - 100.0).abs() < 1e-6);
    let json = serde_json::to_value(&stats).expect("serialisable");
    assert_eq!(json["prompt_tokens"], 100);
}

#[test]
fn logprobs_are_the_models_own_and_come_with_the_best_tokens() {
    let (engine, _) = engine(config(64));
    let prompt = prompt(1, 10);
    let request = greedy_request(prompt.clone(), 1).logprobs(3);
    let Some(Ok(Event::Token(token))) = submit(&engine, request).next() else { panic!("a token") };
    let logits = expected_logits(&prompt);
    let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    let mut ranked: Vec<usize> = (0..VOCAB).collect();
    ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    for (found, &id) in token.top_logprobs.iter().zip(&ranked) {
        assert_eq!(found.id as usize, id);
        assert!((f64::from(found.logprob) - (f64::from(logits[id]) - total.ln())).abs() < 1e-5);
    }
    assert_eq!(token.top_logprobs.len(), 3);
    assert_eq!(token.logprob, Some(token.top_logprobs[0].logprob));
}
