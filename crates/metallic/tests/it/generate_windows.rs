//! A model of which some layers look back through a window and others as far as there is: whatever becomes of the blocks of
//! either, its answers are those it gives with a cache for everything.

use std::sync::mpsc::channel;
use std::time::Duration;

use metallic::generate::{Engine, EngineConfig, Event, Request, Sampling};
use metallic::model::Model;
use metallic_core::DType;
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::data;

const CONTEXT: usize = 512;

/// OLMo 3 in small: three layers with a window of 16 tokens, one without.
struct Olmo {
    model: Model,
    cpu: Cpu,
}

impl Olmo {
    fn open() -> Olmo {
        let model = Model::open(&data::own().join("families/olmo3")).unwrap();
        Olmo { model, cpu: Cpu::new(CpuOptions::default().threads(1)).unwrap() }
    }

    /// An engine whose cache has the bytes of so many blocks of all layers.
    fn engine(&self, blocks: usize, change: impl FnOnce(EngineConfig) -> EngineConfig) -> Engine {
        let program = self.model.compile(&self.cpu, DType::F32).unwrap();
        let states = self.model.states(DType::F32).unwrap();
        let bytes = blocks * states.block_bytes();
        let config = EngineConfig::new(CONTEXT, self.model.config().vocab, states);
        Engine::new(program, change(config.kv_budget_bytes(bytes).step_tokens(24))).unwrap()
    }

    /// What each request gives alone on a large cache that nothing is shared in.
    fn alone(&self, requests: &[Request]) -> Vec<Vec<u32>> {
        let engine = self.engine(400, |config| config.prefix_cache(false));
        let again = |r: &Request| Request::new(r.prompt.clone()).options(r.options.clone());
        requests.iter().map(|r| engine.submit(again(r)).unwrap().complete().unwrap().tokens).collect()
    }
}

fn prompt(kind: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + (i * i + kind * 31 + i / 5) % 150).collect()
}

/// Chosen by chance, so that any other logits soon give other tokens.
fn request(prompt: Vec<u32>, n: usize) -> Request {
    let sampling = Sampling::default().temperature(1.0).top_k(0).top_p(1.0).min_p(0.0).seed(7);
    Request::new(prompt).max_tokens(n).ignore_eos(true).sampling(sampling)
}

#[test]
fn a_long_answer_holds_few_blocks_of_layers_with_a_window() {
    let olmo = Olmo::open();
    let asked = || request(prompt(1, 50), 440);
    let expected = olmo.alone(&[asked()]);
    // 16 blocks of the layer that looks back at all and 3 of those that do not have the bytes of 7 of all.
    let engine = olmo.engine(7, |config| config.max_sequences(1));
    // It goes on by one token at a time, so that none is missed; and after a while, where it has come further than the question for
    // its statistics, which it cannot answer while it waits.
    let (go, next) = channel();
    let held = asked().hook(move |_, _| {
        let _ = next.recv_timeout(Duration::from_millis(100));
    });
    go.send(()).unwrap();
    let (mut tokens, mut near, mut far) = (Vec::new(), 0, 0);
    for event in engine.submit(held).unwrap() {
        let Event::Token(token) = event.unwrap() else { continue };
        tokens.push(token.id);
        // After the last one nobody listens.
        let _ = go.send(());
        let stats = engine.stats().unwrap();
        (near, far) = (near.max(stats.near_blocks), far.max(stats.held_blocks));
    }
    assert_eq!(tokens, expected[0]);
    assert!(
        (1..=3).contains(&near) && far >= 15,
        "{near} blocks of layers with a window, {far} of the other"
    );
    let stats = engine.stats().unwrap();
    assert_eq!((stats.held_blocks, stats.near_blocks, stats.preemptions), (0, 0, 0));
}

#[test]
fn a_crowd_on_a_small_cache_is_set_aside_and_answers_as_each_would_alone() {
    let olmo = Olmo::open();
    let asked = || (0..5).map(|i| request(prompt(i % 3, 20 + 13 * i as usize), 330)).collect::<Vec<_>>();
    let expected = olmo.alone(&asked());
    for prefix_cache in [false, true] {
        let engine = olmo.engine(16, |config| config.max_sequences(4).prefix_cache(prefix_cache));
        // All of them wait while the first token of another is chosen.
        let (word, heard) = channel();
        let held = request(prompt(30, 3), 1).hook(move |_, _| heard.recv().unwrap());
        let held = engine.submit(held).unwrap();
        let answers: Vec<_> = asked().into_iter().map(|r| engine.submit(r).unwrap()).collect();
        word.send(()).unwrap();
        held.complete().unwrap();
        for (answer, expected) in answers.into_iter().zip(&expected) {
            assert_eq!(answer.complete().unwrap().tokens, *expected);
        }
        let stats = engine.stats().unwrap();
        assert!(stats.preemptions > 0, "{stats:?}");
        assert_eq!((stats.held_blocks, stats.near_blocks), (0, 0));
    }
}

#[test]
fn a_prompt_that_begins_like_another_is_computed_again_where_its_window_is_gone() {
    let olmo = Olmo::open();
    let first = || request(prompt(1, 100), 2);
    let longer = || request([prompt(1, 100), prompt(9, 20)].concat(), 60);
    let other = |kind| request(prompt(kind, 200), 2);
    let expected = olmo.alone(&[longer()]);
    // As many blocks with a window as one sequence has at once, and others in plenty.
    let engine = olmo.engine(16, |config| config.max_sequences(1));
    let run = |request| {
        let done = engine.submit(request).unwrap().complete().unwrap();
        (done.tokens, done.stats.cached_tokens)
    };
    run(first());
    assert_eq!(run(longer()), (expected[0].clone(), 96), "all that is needed is there");
    (20..24).for_each(|kind| drop(run(other(kind))));
    assert_eq!(
        run(longer()),
        (expected[0].clone(), 0),
        "what is seen through the window was put to other use"
    );
    let stats = engine.stats().unwrap();
    assert!(stats.cached_blocks >= 25, "the other layer still has all: {stats:?}");
    assert_eq!((stats.held_blocks, stats.near_blocks), (0, 0));
}
