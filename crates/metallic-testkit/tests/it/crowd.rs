//! Many requests on a cache too small for them: some are set aside and computed again, what they kept with them.

use std::sync::Arc;
use std::sync::mpsc::channel;

use metallic::core::{DType, Program};
use metallic::generate::{Engine, EngineConfig, Event, FinishReason, Generation, greedy};
use metallic::{Device, Model, Request, Sampling};
use metallic_gpu::fault::{Fault, Faulty};
use metallic_gpu::{GpuBackend, GpuOptions, Soft, SoftOptions};
use metallic_testkit::{golden, needed};

use crate::agree::{devices, prompt};
use crate::tiny::Tiny;

/// Tokens of an answer.
const ANSWER: usize = 60;
/// Blocks of the cache: two of five requests fit to their end.
const BLOCKS: usize = 7;

fn ask(prompt: &[u32], tokens: usize) -> Request {
    Request::new(prompt).max_tokens(tokens).sampling(Sampling::greedy())
}

/// An engine whose cache has so many blocks.
fn engine(model: &Model, program: Box<dyn Program>, blocks: usize) -> Engine {
    let states = model.states(DType::F32).expect("a layout");
    let budget = blocks * states.block_bytes();
    let config = EngineConfig::new(model.config().context, model.config().vocab, states);
    let config = config.kv_budget_bytes(budget).step_tokens(40).max_sequences(5);
    Engine::new(program, config).expect("an engine")
}

/// The answers to requests that run together: the engine is held until all have come.
fn together(engine: &Engine, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let (word, all_here) = channel();
    let first = ask(&[1], 1).hook(move |_, _| all_here.recv().expect("a word"));
    let first = engine.submit(first).expect("it fits");
    let answers: Vec<Generation> =
        prompts.iter().map(|p| engine.submit(ask(p, ANSWER)).expect("it fits")).collect();
    word.send(()).expect("an engine that waits");
    first.complete().expect("a token");
    answers.into_iter().map(|answer| answer.complete().expect("an answer").tokens).collect()
}

#[test]
fn a_crowd_on_a_small_cache_gets_the_answers_each_gets_alone() {
    let prompts: Vec<Vec<u32>> = [3, 9, 20, 31, 32].map(|len| prompt(len, len as usize)).to_vec();
    for tiny in Tiny::all() {
        let model = tiny.open().unwrap_or_else(|e| panic!("{e}"));
        for (name, backend) in devices().filter(|(name, _)| !["reference", "exact cpu"].contains(name)) {
            let mut program = model.compile(backend.as_ref(), DType::F32).expect("a program");
            let depth = if name == "cpu" { 1 } else { 2 };
            assert_eq!(program.depth(), depth, "{name} hands steps over early, or not");
            let alone: Vec<Vec<u32>> =
                prompts.iter().map(|p| greedy(program.as_mut(), p, ANSWER).expect("an answer")).collect();
            let engine = engine(&model, program, BLOCKS);
            assert_eq!(together(&engine, &prompts), alone, "{} on {name}", tiny.name);
            let stats = engine.stats().expect("stats");
            assert!(stats.preemptions > 0, "{} on {name}: {stats:?}", tiny.name);
            let mut tokens = alone.concat();
            tokens.sort_unstable();
            tokens.dedup();
            assert!(tokens.len() > 20, "{}: answers of {} ids prove little", tiny.name, tokens.len());
        }
    }
}

#[test]
fn every_family_gives_a_crowd_the_answers_each_gets_alone() {
    // The last two share what they begin with, and come again when it is there.
    let (shared, vocab) = (prompt(7, 33), 100);
    let mut prompts: Vec<Vec<u32>> = [3, 9, 20].map(|len| prompt(len, len as usize)).to_vec();
    prompts.extend([[shared.clone(), vec![5]].concat(), [shared, vec![9, 4]].concat()]);
    prompts.iter_mut().flatten().for_each(|id| *id %= vocab);
    let mut preempted = 0;
    for folder in golden::folders() {
        let model = Model::open(&folder).unwrap_or_else(|e| panic!("{e}"));
        let cpu = Device::Cpu.open(2).expect("it is always there");
        let mut program = model.compile(cpu.as_ref(), DType::F32).expect("a program");
        let alone: Vec<Vec<u32>> =
            prompts.iter().map(|p| greedy(program.as_mut(), p, ANSWER).expect("an answer")).collect();
        let engine = engine(&model, program, BLOCKS);
        for round in 0..2 {
            assert_eq!(together(&engine, &prompts), alone, "{}, round {round}", folder.display());
        }
        // What they begin with need not be computed again, a recurrent state included.
        let again = engine.submit(ask(&prompts[4], 1)).expect("it fits").complete().expect("a token");
        assert_eq!((again.tokens[0], again.stats.cached_tokens), (alone[4][0], 32), "{}", folder.display());
        let stats = engine.stats().expect("stats");
        // Windows and states that do not grow leave room for all.
        preempted += usize::from(stats.preemptions > 0);
    }
    assert!(preempted > 20, "{preempted} families ran out of blocks");
}

#[test]
fn a_step_that_fails_leaves_no_trace_in_what_is_kept() {
    let Some(soft) = needed(Soft::new(SoftOptions::default().threads(2))) else { return };
    let gpu = Arc::new(Faulty::new(Arc::new(soft)));
    let backend = GpuBackend::new(gpu.clone(), GpuOptions::default());
    let prompts = vec![prompt(1, 9), prompt(2, 50)];
    for tiny in Tiny::all() {
        let model = tiny.open().unwrap_or_else(|e| panic!("{e}"));
        let mut program = model.compile(&backend, DType::F32).expect("a program");
        let alone: Vec<Vec<u32>> =
            prompts.iter().map(|p| greedy(program.as_mut(), p, ANSWER).expect("an answer")).collect();
        let engine = engine(&model, program, 4 * BLOCKS);
        // Late: what it was to write is written, and so is what follows it.
        for (fault, after) in [(Fault::Wait, 30), (Fault::Execute, 31), (Fault::Submit, 32)] {
            gpu.fail(fault, after);
            assert_eq!(together(&engine, &prompts), alone, "{} after {fault:?}", tiny.name);
        }
    }
}

/// A stream of numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A request under way: which prompt, how many tokens it asked for, and what came of it.
struct Asked {
    which: usize,
    wanted: usize,
    cancelled: bool,
    tokens: Vec<u32>,
    answer: Generation,
}

impl Asked {
    /// Takes the next event; `false` once there is none.
    fn read(&mut self, alone: &[Vec<u32>]) -> bool {
        let expected = &alone[self.which][..self.wanted];
        match self.answer.next() {
            None => return false,
            Some(Ok(Event::Token(token))) => self.tokens.push(token.id),
            Some(Ok(Event::Finished(end))) if end.reason == FinishReason::Cancelled => {
                assert!(self.cancelled && expected.starts_with(&self.tokens));
            }
            Some(Ok(Event::Finished(end))) => {
                assert_eq!((end.reason, &self.tokens[..]), (FinishReason::Length, expected));
            }
            Some(other) => panic!("{other:?}"),
        }
        true
    }
}

/// Requests that come, are read, cancelled and dropped at random.
fn any_traffic(engine: &Engine, prompts: &[Vec<u32>], alone: &[Vec<u32>], dice: &mut Dice) {
    let mut under_way: Vec<Asked> = Vec::new();
    for _ in 0..60 {
        let some = dice.below(under_way.len().max(1));
        match dice.below(8) {
            0..4 => {
                let (which, wanted) = (dice.below(prompts.len()), dice.below(ANSWER / 2));
                let request = ask(&prompts[which], wanted).priority(dice.below(3) as i32);
                let answer = engine.submit(request).expect("it fits");
                under_way.push(Asked { which, wanted, cancelled: false, tokens: Vec::new(), answer });
            }
            4 if some < under_way.len() => {
                under_way[some].answer.cancel();
                under_way[some].cancelled = true;
            }
            5 if some < under_way.len() => drop(under_way.swap_remove(some)),
            _ if some < under_way.len() => while dice.below(12) > 0 && under_way[some].read(alone) {},
            _ => {}
        }
    }
    for asked in &mut under_way {
        while asked.read(alone) {}
    }
}

#[test]
fn whatever_comes_when_each_gets_the_answer_it_gets_alone() {
    // Few beginnings, so that what one computes others wait for.
    let [one, other] = [prompt(7, 70), prompt(8, 40)];
    let tails = [1, 5, 30, 33].map(|len| prompt(len, len as usize));
    let prompts =
        [&one, &other].into_iter().flat_map(|begin| tails.iter().map(|tail| [&begin[..], tail].concat()));
    let prompts: Vec<Vec<u32>> = prompts.chain([prompt(3, 9)]).collect();
    for tiny in Tiny::all() {
        let model = tiny.open().unwrap_or_else(|e| panic!("{e}"));
        let mut preemptions = 0;
        for (name, backend) in devices().filter(|(name, _)| !["reference", "exact cpu"].contains(name)) {
            let mut program = model.compile(backend.as_ref(), DType::F32).expect("a program");
            let alone: Vec<Vec<u32>> =
                prompts.iter().map(|p| greedy(program.as_mut(), p, ANSWER / 2).expect("an answer")).collect();
            let states = model.states(DType::F32).expect("a layout");
            let budget = 2 * BLOCKS * states.block_bytes();
            let config = EngineConfig::new(model.config().context, model.config().vocab, states);
            let config = config.kv_budget_bytes(budget).step_tokens(40).max_sequences(4).max_unread(9);
            let engine = Engine::new(program, config).expect("an engine");
            for seed in 0..3 {
                eprintln!("{} on {name}, seed {seed}", tiny.name);
                any_traffic(&engine, &prompts, &alone, &mut Dice(seed * 7919 + 1));
            }
            let stats = engine.stats().expect("stats");
            assert_eq!((stats.held_blocks, stats.running, stats.waiting, stats.failed), (0, 0, 0, 0));
            preemptions += stats.preemptions;
        }
        assert!(preemptions > 0, "{}: nobody was set aside", tiny.name);
    }
}
