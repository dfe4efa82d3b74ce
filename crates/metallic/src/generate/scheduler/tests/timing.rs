use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use metallic_core::{
    BackendError, Blocks, DType, KvState, Program, ProgramMemory, RunStats, State, StateLayout, Step,
};

use super::super::{Scheduler, Surroundings};
use crate::generate::generation::Outlet;
use crate::generate::inbox::Inbox;
use crate::generate::sequence::Submission;
use crate::generate::{EngineConfig, EngineError, Event, FinishReason, Generation, Request, Sampling};

const VOCAB: usize = 11;

/// Microseconds of a step, and of each token in it.
const STEP: u64 = 6000;
const TOKEN: u64 = 3000;

/// What a step of so many tokens takes.
fn takes(tokens: u64) -> Duration {
    Duration::from_micros(STEP + TOKEN * tokens)
}

/// Chooses token 3 always, and lets time pass.
struct Slow {
    time: Arc<AtomicU64>,
    rows: usize,
    output: Vec<f32>,
    told: mpsc::Sender<Vec<(usize, usize)>>,
    /// Blocks it has memory for.
    room: usize,
}

impl Program for Slow {
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        if blocks.far > self.room {
            return Err(BackendError::OutOfMemory { device: "slow", what: "cache", needed: blocks.far });
        }
        Ok(())
    }

    fn reserved(&self) -> Blocks {
        Blocks::both(1 << 20)
    }

    fn reserve_slots(&mut self, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn copy_slot(&mut self, _: u32, _: u32) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        self.rows = step.outputs.len();
        self.time.fetch_add(takes(step.tokens.len() as u64).as_micros() as u64, Ordering::Relaxed);
        let members = step.sequences.iter().map(|span| (span.past, span.tokens.len())).collect();
        // A test that does not look drops the other end.
        let _ = self.told.send(members);
        Ok(())
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        self.output =
            (0..self.rows).flat_map(|_| (0..VOCAB).map(|id| f32::from(u8::from(id == 3)))).collect();
        Ok(RunStats::default())
    }

    fn ids(&self, _: usize) -> &[u32] {
        &[]
    }

    fn output(&self, _: usize) -> &[f32] {
        &self.output
    }

    fn memory(&self) -> ProgramMemory {
        ProgramMemory::default()
    }
}

/// A scheduler, and the time as its program makes it pass.
struct World {
    scheduler: Scheduler<'static>,
    inbox: Arc<Inbox>,
    start: Instant,
    time: Arc<AtomicU64>,
    steps: mpsc::Receiver<Vec<(usize, usize)>>,
    asked: u64,
}

impl World {
    fn new(config: EngineConfig) -> World {
        Self::with_room(config, usize::MAX)
    }

    fn with_room(config: EngineConfig, room: usize) -> World {
        let (time, inbox, start) = (Arc::<AtomicU64>::default(), Arc::<Inbox>::default(), Instant::now());
        let (told, steps) = mpsc::channel();
        let program = Slow { time: Arc::clone(&time), rows: 0, output: Vec::new(), told, room };
        let now = Arc::clone(&time);
        let clock = Box::new(move || start + Duration::from_micros(now.load(Ordering::Relaxed)));
        let (inbox_too, draft) = (Arc::clone(&inbox), None);
        let surroundings = Surroundings { config, text: None, inbox: inbox_too, clock, draft };
        let scheduler = Scheduler::new(Box::new(program), surroundings).expect("a scheduler");
        World { scheduler, inbox, start, time, steps, asked: 0 }
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.time.load(Ordering::Relaxed))
    }

    fn since(&self, before: Duration) -> Duration {
        self.now().saturating_sub(before)
    }

    /// A prompt of its own of so many tokens.
    fn ask(&mut self, tokens: usize, answer: usize) -> Generation {
        let kind = self.asked as u32;
        let prompt: Vec<u32> =
            (0..tokens as u32).map(|i| (i * i + kind * 7 + i / 5) % VOCAB as u32).collect();
        self.submit(Request::new(prompt).max_tokens(answer))
    }

    fn submit(&mut self, request: Request) -> Generation {
        self.asked += 1;
        let id = self.asked;
        let (outlet, generation) = Outlet::pair(id, Arc::clone(&self.inbox));
        let most_tokens = request.prompt.len() + request.options.max_tokens.unwrap_or(1);
        let request = request.sampling(Sampling::greedy());
        let place = self.inbox.place(1000, 0).expect("room");
        let at = self.start + self.now();
        let submission = Submission { request, most_tokens, mix: Vec::new(), seed: 0, outlet, place, at, id };
        self.scheduler.submit(submission);
        generation
    }

    /// What the engine's thread does between two looks into its inbox.
    fn step(&mut self) -> bool {
        let mail = self.inbox.take(Duration::ZERO);
        self.scheduler.heed(&mail.noted);
        self.scheduler.expire();
        self.scheduler.step()
    }
}

fn config() -> EngineConfig {
    let kv = KvState { kv_heads: 1, key_dim: 4, value_dim: 4, window: None };
    let states = StateLayout::new(DType::F32, vec![Some(State::Kv(kv))]);
    let bytes = 4096 * states.block_bytes();
    EngineConfig::new(1 << 15, VOCAB, states).kv_budget_bytes(bytes)
}

/// How many tokens came.
fn read(generation: &mut Generation) -> usize {
    let mut tokens = 0;
    while let Some(event) = generation.next_timeout(Duration::ZERO) {
        tokens += usize::from(matches!(event, Ok(Event::Token(_))));
    }
    tokens
}

#[test]
fn no_answer_waits_longer_than_three_ordinary_steps_while_a_long_prompt_is_computed() {
    for running in [1, 4, 15] {
        let mut world = World::new(config());
        let mut answers: Vec<Generation> = (0..running).map(|_| world.ask(20, 5000)).collect();
        for _ in 0..40 {
            world.step();
        }
        assert!(answers.iter_mut().all(|answer| read(answer) > 10));
        let mut long = world.ask(4096, 2);
        let (began, ordinary) = (world.now(), takes(running));
        let mut longest = Duration::ZERO;
        while read(&mut long) == 0 {
            let before = world.now();
            world.step();
            longest = longest.max(world.since(before));
            assert!(answers.iter_mut().all(|answer| read(answer) == 1), "every answer goes on in every step");
        }
        assert!(longest <= 3 * ordinary, "{running} answers: {longest:?} in place of {ordinary:?}");
        // The prompt does not starve either: alone it takes 4096 tokens' time.
        let took = world.since(began);
        assert!(took < 3 * takes(4096), "{running} answers: {took:?}");
    }
}

#[test]
fn a_crowd_of_short_prompts_answers_together_and_no_step_is_longer_than_twice_theirs() {
    let mut world = World::new(config().max_sequences(64));
    let mut first = world.ask(20, 5000);
    (0..20).for_each(|_| assert!(world.step()));
    let mut crowd: Vec<Generation> = (0..48).map(|_| world.ask(20, 5000)).collect();
    let (mut begun, mut steps) = (vec![false; crowd.len()], 0);
    while !begun.iter().all(|begun| *begun) {
        let before = world.now();
        world.step();
        steps += 1;
        let took = world.since(before);
        assert!(took <= 2 * takes(49), "{took:?}");
        begun.iter_mut().zip(&mut crowd).for_each(|(begun, answer)| *begun |= read(answer) > 0);
        assert!(read(&mut first) > 0, "what ran before goes on");
    }
    // 960 tokens, twice 48 in most of the steps.
    assert!(steps <= 24, "{steps}");
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    for running in [0, 1] {
        let mut world = World::new(config());
        let mut answers: Vec<Generation> = (0..running).map(|_| world.ask(20, 5000)).collect();
        (0..20 * running).for_each(|_| assert!(world.step()));
        let mut long = world.ask(8000, 3);
        for _ in 0..5 {
            world.step();
        }
        let (mut short, asked) = (world.ask(16, 5), world.now());
        while read(&mut short) == 0 {
            world.step();
            answers.iter_mut().map(read).for_each(|_| {});
        }
        let took = world.since(asked);
        assert!(took < Duration::from_secs(1), "{running} answers: {took:?}");
        assert_eq!(read(&mut long), 0, "which is not done yet");
    }
}

#[test]
fn a_stream_of_short_prompts_does_not_keep_a_long_one_from_its_end() {
    let mut world = World::new(config());
    let mut long = world.ask(2000, 1);
    let mut short = Vec::new();
    for _ in 0..100 {
        // Always more of them than a step has room for.
        while world.scheduler.stats().running + world.scheduler.stats().waiting < 12 {
            short.push(world.ask(300, 1));
            world.scheduler.admit();
        }
        world.step();
        if read(&mut long) == 1 {
            assert!(short.len() > 20, "others were served meanwhile");
            return;
        }
    }
    panic!("it did not come to its end");
}

#[test]
fn deadlines_end_those_that_run_and_those_that_wait() {
    let mut world = World::new(config().max_sequences(1));
    let soon = world.start + Duration::from_millis(200);
    let prompt = |kind: u32| vec![kind; 10];
    let running = world.submit(Request::new(prompt(1)).max_tokens(5000).deadline(soon));
    let waiting = world.submit(Request::new(prompt(2)).max_tokens(5000).deadline(soon));
    let patient =
        world.submit(Request::new(prompt(3)).max_tokens(4).deadline(soon + Duration::from_secs(60)));
    while world.step() {}
    let running = running.complete().expect("an end");
    assert_eq!(running.reason, FinishReason::Deadline);
    assert!((10..25).contains(&running.tokens.len()), "{} tokens in 200 ms", running.tokens.len());
    let waiting = waiting.complete().expect("an end");
    assert_eq!((waiting.reason, waiting.tokens.len()), (FinishReason::Deadline, 0));
    assert_eq!(patient.complete().expect("an answer").tokens.len(), 4);
    let stats = world.scheduler.stats();
    assert_eq!((stats.expired, stats.full, stats.held_blocks), (2, 1, 0));
    assert!(world.scheduler.deadlines.is_empty());
}

#[test]
fn a_cancelled_request_frees_its_blocks_before_the_next_step() {
    let mut world = World::new(config().prefix_cache(false).max_sequences(1));
    let (running, waiting) = (world.ask(100, 1000), world.ask(100, 1000));
    (0..5).for_each(|_| assert!(world.step()));
    assert!(world.scheduler.stats().held_blocks >= 4);
    running.cancel();
    waiting.cancel();
    let (steps, mail) = (world.scheduler.stats().steps, world.inbox.take(Duration::ZERO));
    world.scheduler.heed(&mail.noted);
    let stats = world.scheduler.stats();
    assert_eq!((stats.held_blocks, stats.running, stats.waiting, stats.steps), (0, 0, 0, steps));
    assert_eq!(running.complete().expect("an end").reason, FinishReason::Cancelled);
    assert_eq!(waiting.complete().expect("an end").reason, FinishReason::Cancelled);
}

#[test]
fn the_cost_of_a_step_does_not_grow_with_the_queue() {
    let mut world = World::new(config().max_sequences(4));
    let mut running: Vec<Generation> = (0..4).map(|_| world.ask(20, 30_000)).collect();
    let time = |world: &mut World, running: &mut Vec<Generation>| {
        let mut best = Duration::MAX;
        for _ in 0..30 {
            let start = Instant::now();
            (0..20).for_each(|_| assert!(world.step()));
            best = best.min(start.elapsed());
            running.iter_mut().map(read).for_each(|_| {});
        }
        best
    };
    let few = time(&mut world, &mut running);
    let waiting: Vec<Generation> = (0..900).map(|_| world.ask(20, 5)).collect();
    let many = time(&mut world, &mut running);
    assert_eq!(world.scheduler.stats().waiting, 900);
    // A walk over 900 sequences takes longer than a step of this program.
    assert!(many < 4 * few, "{few:?} with none, {many:?} with 900");
    drop(waiting);
}

#[test]
fn sixteen_prompts_that_begin_alike_are_computed_once() {
    let mut world = World::new(config().max_sequences(20).step_stretch(f64::INFINITY));
    let begin: Vec<u32> = (0..1000).map(|i| (i * i / 3 + i) % VOCAB as u32).collect();
    let answers: Vec<Generation> = (0..16_u32)
        .map(|kind| {
            world.submit(
                Request::new([&begin[..], &[kind % 11, kind / 11, 5, kind % 7][..]].concat()).max_tokens(1),
            )
        })
        .collect();
    while world.step() {}
    for answer in answers {
        assert_eq!(answer.complete().expect("an answer").tokens, [3]);
    }
    let computed = world.scheduler.stats().computed_tokens;
    // 31 full blocks once, and of each what follows: 12 tokens.
    assert_eq!(computed, 992 + 16 * 12);
    assert_eq!(world.scheduler.stats().prefix_tokens, 15 * 992);
    let widest = world.steps.try_iter().map(|members| members.len()).max();
    assert_eq!(widest, Some(15), "they go on together");
}

#[test]
fn whoever_waits_for_one_that_is_set_aside_goes_on_at_once() {
    // The one that computes what both begin with is set aside for lack of memory, because the other comes first.
    let mut world = World::with_room(config().step_tokens(128), 14);
    let begin: Vec<u32> = (0..640).map(|i| (i * i / 3 + i) % VOCAB as u32).collect();
    let first = world.submit(Request::new(begin.clone()).max_tokens(1));
    assert!(world.step());
    let other = [&begin[..416], &[5, 5, 5]].concat();
    let second = world.submit(Request::new(other).max_tokens(1).priority(5));
    assert!(world.step());
    assert_eq!((world.scheduler.stats().running, world.scheduler.stats().preemptions), (2, 0));
    while world.step() {}
    assert_eq!(second.complete().expect("an answer").tokens, [3]);
    let failed = first.complete().expect_err("no memory for it");
    assert!(matches!(failed, EngineError::Backend(BackendError::OutOfMemory { .. })), "{failed}");
}
