//! Random traffic on random small engines: whatever happens to a request's neighbours, its tokens are the model's.

use std::time::{Duration, Instant};

use crate::generate_support::*;
use metallic::generate::{EngineConfig, FinishReason, Generation, Request};
use proptest::prelude::*;

/// One request: which of a few beginnings it shares, how much of it, its own tail, its length, and what happens to it.
#[derive(Clone, Debug)]
struct Traffic {
    beginning: u32,
    shared: usize,
    tail: usize,
    generate: usize,
    priority: i32,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Served,
    Cancelled,
    Dropped,
    /// Ends by itself, before any step of it, or never.
    Late,
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let fate = prop_oneof![
        5 => Just(Fate::Served),
        1 => Just(Fate::Cancelled),
        1 => Just(Fate::Dropped),
        1 => Just(Fate::Late),
    ];
    let shape = (0u32..3, 0usize..120, 1usize..30, 0usize..60);
    (shape, -1..2, fate).prop_map(|((beginning, shared, tail, generate), priority, fate)| Traffic {
        beginning,
        shared,
        tail,
        generate,
        priority,
        fate,
    })
}

fn request_of(traffic: &Traffic) -> Request {
    let deadline = (traffic.fate == Fate::Late).then(|| Instant::now() + Duration::from_micros(300));
    greedy_request(prompt_of(traffic), traffic.generate).priority(traffic.priority).deadline(deadline)
}

fn prompt_of(traffic: &Traffic) -> Vec<u32> {
    let mut tokens = prompt(traffic.beginning, traffic.shared);
    tokens.extend(prompt(traffic.shared as u32 + 50, traffic.tail));
    tokens
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_answer_is_the_models_and_every_block_comes_back(
        rounds in prop::collection::vec(prop::collection::vec(traffic(), 1..7), 1..4),
        blocks in 7usize..20,
        (step_tokens, max_sequences) in (5usize..100, 1usize..6),
        (prefix_cache, depth, unread) in (any::<bool>(), 1usize..3, 1usize..40),
        looks in prop_oneof![
            1 => Just(Looks::Back),
            2 => (1usize..90).prop_map(Looks::BackAndThrough),
            1 => (1usize..90).prop_map(Looks::Through),
        ],
        failing in prop::collection::vec(1usize..60, 0..2),
    ) {
        let states = looks.layout();
        let bytes = blocks * states.block_bytes();
        let config = EngineConfig::new(4096, VOCAB, states).kv_budget_bytes(bytes).prefix_cache(prefix_cache);
        let config = config.step_tokens(step_tokens).max_sequences(max_sequences).max_unread(unread);
        let (engine, handle) = engine(config);
        looks.set(&mut handle.log());
        handle.log().depth = depth;
        handle.log().fail_on.clone_from(&failing);
        for round in rounds {
            let answers: Vec<(&Traffic, Generation)> = round
                .iter()
                .map(|t| (t, engine.submit(request_of(t)).expect("it fits")))
                .collect();
            for (traffic, answer) in answers {
                match traffic.fate {
                    Fate::Dropped => continue,
                    Fate::Cancelled => answer.cancel(),
                    Fate::Served | Fate::Late => {}
                }
                let expected = expected_greedy_with(&prompt_of(traffic), traffic.generate, looks);
                match answer.complete() {
                    Ok(done) if done.reason == FinishReason::Cancelled => {
                        prop_assert_eq!(traffic.fate, Fate::Cancelled);
                        prop_assert!(expected.starts_with(&done.tokens));
                    }
                    Ok(done) if done.reason == FinishReason::Deadline => {
                        prop_assert_eq!(traffic.fate, Fate::Late);
                        prop_assert!(expected.starts_with(&done.tokens));
                    }
                    Ok(done) => prop_assert_eq!(done.tokens, expected),
                    Err(error) => prop_assert!(!failing.is_empty(), "{}", error),
                }
            }
        }
        let stats = engine.stats().expect("stats");
        prop_assert_eq!((stats.held_blocks, stats.near_blocks, stats.running, stats.waiting), (0, 0, 0, 0));
        prop_assert!(stats.reserved_blocks <= stats.block_limit);
        prop_assert!(matches!(looks, Looks::BackAndThrough(_)) || stats.block_limit == blocks);
    }
}
