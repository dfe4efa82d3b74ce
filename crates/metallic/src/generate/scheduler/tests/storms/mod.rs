//! Storms: requests that come, are read, left, cancelled, late or broken at random, on small models of several families. Each gets
//! the tokens it gets alone, and all that it took comes back.
//!
//! `METALLIC_STORMS` is how many storms there are of each kind, `METALLIC_STORM` the seed of the first. A seed makes the same storm
//! each time: time passes by the steps, and nothing happens between two of them.

mod program;
mod requests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use metallic_core::{Backend, DType};
use metallic_testkit::data;

use self::program::{RUNNING, Unsure, Watched, Weather};
use self::requests::{Alone, Asked, Kind, prompts};
use super::super::{Scheduler, Surroundings, slots_of};
use crate::generate::generation::Outlet;
use crate::generate::inbox::Inbox;
use crate::generate::sequence::Submission;
use crate::generate::{Draft, DraftOptions, EngineConfig, EngineStats, LookupOptions, Speculation};
use crate::model::Model;

/// Most tokens of an answer.
const ANSWER: usize = 40;
/// What happens in a storm: so many things.
const TURNS: usize = 160;
/// A storm that is not over after so many steps more never will be.
const PATIENCE: usize = 20_000;

/// A stream of numbers that look random.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

/// How a storm guesses ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guesses {
    Nothing,
    Lookup,
    Draft,
}

impl Guesses {
    fn speculation(self, dice: &mut Dice) -> Speculation {
        let (tokens, adaptive) = (1 + dice.below(9), dice.below(4) == 0);
        match self {
            Self::Nothing => Speculation::Off,
            Self::Lookup => Speculation::Lookup(LookupOptions::default().tokens(tokens).adaptive(adaptive)),
            Self::Draft => Speculation::Draft(DraftOptions::default().tokens(tokens).adaptive(adaptive)),
        }
    }
}

/// What storms have seen together.
#[derive(Debug, Default)]
struct Seen {
    stats: EngineStats,
    /// Sequences that waited for what another one computes.
    awaited: u64,
    /// Steps that were handed over early.
    chased: u64,
    /// Whether the device takes steps early.
    is_deep: bool,
}

impl Seen {
    fn add(&mut self, storm: &Storm) {
        let (all, one) = (&mut self.stats, storm.scheduler.stats());
        all.preemptions += one.preemptions;
        all.prefix_tokens += one.prefix_tokens;
        all.accepted_tokens += one.accepted_tokens;
        all.drafted_tokens += one.drafted_tokens;
        all.cancelled += one.cancelled;
        all.expired += one.expired;
        all.failed += one.failed;
        all.breakdowns += one.breakdowns;
        all.full += one.full;
        self.awaited += storm.awaited;
        self.chased += storm.weather.fed.load(Ordering::Relaxed);
        self.is_deep |= storm.scheduler.program.depth() > 1;
    }
}

/// A scheduler in a storm.
struct Storm {
    scheduler: Scheduler<'static>,
    inbox: Arc<Inbox>,
    weather: Arc<Weather>,
    start: Instant,
    config: EngineConfig,
    asked: Vec<Asked>,
    next: u64,
    awaited: u64,
    /// Requests that ended with an error that was not their own.
    failed: u64,
}

impl Storm {
    fn new(model: &Model, backend: &dyn Backend, guesses: Guesses, dice: &mut Dice) -> Self {
        let weather = Arc::<Weather>::default();
        let compile = || model.compile(backend, DType::F32).unwrap_or_else(|e| panic!("{e}"));
        let states = model.states(DType::F32).expect("a layout");
        let (context, vocab) = (model.config().context, model.config().vocab);
        let blocks = |dice: &mut Dice| (5 + dice.below(9)) * states.block_bytes();
        let base = EngineConfig::new(context, vocab, states.clone());
        let config = base.clone().kv_budget_bytes(blocks(dice)).prefix_cache(dice.below(5) > 0);
        let config = config.max_sequences(1 + dice.below(RUNNING)).max_waiting(dice.below(12));
        let config = config.step_tokens(6 + dice.below(70)).max_unread(1 + dice.below(25));
        let stretch = [1.0, 2.4, f64::INFINITY][dice.below(3)];
        let config = config.step_stretch(stretch).speculation(guesses.speculation(dice));
        let draft = (guesses == Guesses::Draft).then(|| {
            let program = Box::new(Unsure::new(compile()));
            let config = base.kv_budget_bytes(blocks(dice)).step_tokens(5 + dice.below(60));
            Draft::new(program, config.max_sequences(1)).expect("a draft model")
        });
        let (inbox, start, now) = (Arc::<Inbox>::default(), Instant::now(), Arc::clone(&weather));
        let surroundings = Surroundings {
            config: config.clone(),
            text: None,
            inbox: Arc::clone(&inbox),
            clock: Box::new(move || start + now.passed()),
            draft,
        };
        let program = Box::new(Watched::new(compile(), Arc::clone(&weather)));
        let scheduler = Scheduler::new(program, surroundings).expect("a scheduler");
        let (asked, next, awaited, failed) = (Vec::new(), 0, 0, 0);
        Self { scheduler, inbox, weather, start, config, asked, next, awaited, failed }
    }

    /// One more request, where it fits and one more may wait.
    fn ask(&mut self, alone: &mut Alone, dice: &mut Dice) {
        let (which, wanted) = (dice.below(alone.prompts.len()), dice.below(ANSWER));
        let kind = Kind::ALL[dice.below(Kind::ALL.len())];
        let breaks = (dice.below(20) == 0).then(|| dice.below(ANSWER));
        let late = Duration::from_micros(dice.below(60_000) as u64);
        let deadline = (dice.below(9) == 0).then(|| self.start + self.weather.passed() + late);
        let request = kind.request(&alone.prompts[which], wanted, breaks);
        let request = request.priority(dice.below(4) as i32 / 2).deadline(deadline);
        let Ok(most_tokens) = self.config.most_tokens(&request, false) else { return };
        let Ok(place) = self.inbox.place(self.config.max_sequences, self.config.max_waiting) else {
            assert!(self.under_way() >= self.config.max_sequences + self.config.max_waiting);
            return;
        };
        self.next += 1;
        let id = self.next;
        let (outlet, answer) = Outlet::pair(id, Arc::clone(&self.inbox));
        let (mix, at) = (self.config.mix(None).expect("no adapters"), self.start);
        let submission = Submission { request, most_tokens, mix, seed: 5, outlet, place, at, id };
        self.scheduler.submit(submission);
        let expected = alone.answer(which, kind)[..wanted].to_vec();
        // Of a prompt without an answer the hook sees what follows it all the same.
        let mut asked = Asked::new(id, expected, answer);
        asked.breaks = breaks.is_some_and(|after| after < wanted.max(1));
        asked.is_late = deadline.is_some();
        self.asked.push(asked);
    }

    fn under_way(&self) -> usize {
        self.scheduler.running.len() + self.scheduler.queue.len()
    }

    /// One thing that may happen between two steps.
    fn turn(&mut self, alone: &mut Alone, dice: &mut Dice) {
        let some = dice.below(self.asked.len());
        let unread = self.config.max_unread + 20;
        match dice.below(20) {
            0..6 => self.ask(alone, dice),
            6 if some < self.asked.len() => self.asked[some].cancel(),
            7 if some < self.asked.len() => drop(self.asked.swap_remove(some)),
            8..12 if some < self.asked.len() => {
                let most = dice.below(2 * unread);
                self.read(some, most);
            }
            12 => self.weather.passes(Duration::from_millis(dice.below(20) as u64)),
            13 if dice.below(6) == 0 => self.weather.bring(dice),
            14 => (0..self.asked.len()).for_each(|index| self.read(index, usize::MAX)),
            _ => {}
        }
        self.asked.retain(|asked| !asked.is_over());
    }

    fn read(&mut self, index: usize, most: usize) {
        let limit = self.config.max_unread + 20;
        self.failed += u64::from(self.asked[index].read(most, limit));
    }

    /// What the engine's thread does between two looks into its inbox.
    fn step(&mut self) -> bool {
        let mail = self.inbox.take(Duration::ZERO);
        self.scheduler.heed(&mail.noted);
        self.scheduler.expire();
        let gone = |serial: u64| {
            let running =
                self.scheduler.running.iter().any(|s| s.serial == serial && s.outlet.is_cancelled());
            running || self.scheduler.queue.get(serial).is_some_and(|s| s.outlet.is_cancelled())
        };
        assert!(!(1..=self.next).any(gone), "whoever has cancelled has nothing any more");
        self.check();
        let goes_on = self.scheduler.step();
        self.check();
        let waits = self.scheduler.running.iter().all(|s| s.paused) && self.scheduler.queue.is_empty();
        assert!(goes_on || waits, "there is something to do, and it sleeps");
        self.awaited += self.scheduler.running.iter().filter(|s| s.awaits.is_some()).count() as u64;
        goes_on
    }

    /// What is so between any two steps.
    fn check(&self) {
        let Scheduler { running, queue, free_slots, deadlines, .. } = &self.scheduler;
        assert!(running.len() <= self.config.max_sequences);
        for (index, sequence) in running.iter().enumerate() {
            assert!(sequence.outcome.is_none(), "whoever has ended is gone");
            let before = |serial| running[..index].iter().any(|s| s.serial == serial);
            let after = |serial| running[index..].iter().any(|s| s.serial == serial);
            let awaited = sequence.awaits.map(|awaited| awaited.serial);
            assert!(
                awaited.is_none_or(|serial| before(serial) || !after(serial)),
                "those wait for each other"
            );
        }
        let slots = slots_of(&self.config);
        if slots > 0 {
            let owned = running.iter().map(|s| s.slot).chain(free_slots.iter().copied());
            assert_eq!(owned.clone().collect::<BTreeSet<_>>().len(), slots, "each slot has one owner");
            assert_eq!(owned.count(), slots);
        }
        let has_deadline =
            |serial: &u64| running.iter().any(|s| s.serial == *serial) || queue.get(*serial).is_some();
        assert!(deadlines.iter().all(|(_, serial)| has_deadline(serial)), "of nobody that is gone");
        let guesses = self.scheduler.speculator.drafted_for();
        assert!(
            guesses.iter().all(|serial| running.iter().any(|s| s.serial == *serial)),
            "of those that run"
        );
        let stats = self.scheduler.stats();
        if stats.running == 0 {
            let held = (stats.held_blocks, stats.near_blocks, stats.draft_blocks);
            assert_eq!(held, (0, 0, 0), "nobody runs");
        }
        assert!(stats.reserved_blocks <= stats.block_limit);
        let under_way = self.under_way();
        assert!(self.inbox.place(under_way, 0).is_err(), "a place for each that is under way");
        assert!(self.inbox.place(under_way + 1, 0).is_ok(), "and for nobody else");
    }

    /// Reads and steps until all have their end.
    fn calm(&mut self) {
        for _ in 0..PATIENCE {
            (0..self.asked.len()).for_each(|index| self.read(index, usize::MAX));
            self.asked.retain(|asked| !asked.is_over());
            if !self.step() && self.under_way() == 0 && self.asked.is_empty() {
                return;
            }
        }
        panic!("{} requests never end: {:?}", self.asked.len(), self.scheduler.stats());
    }

    fn run(mut self, alone: &mut Alone, dice: &mut Dice) -> Self {
        for _ in 0..TURNS {
            self.turn(alone, dice);
            if dice.below(4) > 0 {
                self.step();
            }
        }
        self.calm();
        assert!(self.failed <= self.weather.excused(), "{} failed by what befell others", self.failed);
        assert_eq!((self.scheduler.deadlines.len(), self.scheduler.is_idle()), (0, true));
        self
    }
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Storms on these families; each must have seen all that makes a storm.
fn storms(backend: &dyn Backend, families: &[&str], each: u64) -> Seen {
    let mut seen = Seen::default();
    for family in families {
        let path = data::own().join("families").join(family);
        let model = Model::open(&path).unwrap_or_else(|e| panic!("{e}"));
        let prompts = prompts(model.config().vocab, model.config().context - ANSWER);
        let mut alone = Alone::new(&model, backend, prompts, ANSWER);
        let recurrent = model.states(DType::F32).expect("a layout").is_recurrent();
        let all = [Guesses::Lookup, Guesses::Draft, Guesses::Nothing];
        for (at, guesses) in (0..).zip(if recurrent { &all[2..] } else { &all[..] }) {
            let first = number("METALLIC_STORM", 1);
            for seed in first..first + number("METALLIC_STORMS", each) {
                eprintln!("{family}, {guesses:?}, METALLIC_STORM={seed}");
                let mut dice = Dice(seed * 7919 + at);
                let storm = Storm::new(&model, backend, *guesses, &mut dice);
                seen.add(&storm.run(&mut alone, &mut dice));
            }
        }
    }
    let EngineStats { preemptions, prefix_tokens, accepted_tokens, drafted_tokens, .. } = seen.stats;
    assert!(preemptions > 0 && prefix_tokens > 0 && seen.awaited > 0, "{seen:?}");
    assert!(accepted_tokens > 0 && accepted_tokens < drafted_tokens, "{seen:?}");
    assert!(seen.stats.cancelled > 0 && seen.stats.expired > 0 && seen.stats.full > 0, "{seen:?}");
    assert!(seen.stats.failed > 0 && (seen.chased > 0) == seen.is_deep, "{seen:?}");
    seen
}

#[test]
fn storms_on_the_processor_leave_every_answer_as_it_is_alone() {
    let cpu = metallic_cpu::Cpu::new(metallic_cpu::CpuOptions::default().threads(1)).expect("a CPU");
    let families = [
        "llama_yarn", // all layers see all
        "olmo3",      // some have a window
        "qwen2_sliding",
        "gemma",
        "qwen3_moe",
        "deepseek_v3",
        "mamba2",    // recurrent alone
        "falcon_h1", // both
        "lfm2_moe",
    ];
    let seen = storms(&cpu, &families, 2);
    assert!(seen.stats.breakdowns > 0, "{seen:?}");
}

#[cfg(feature = "soft")]
#[test]
fn storms_through_the_metal_kernels_leave_every_answer_as_it_is_alone() {
    use metallic_gpu::{GpuBackend, GpuOptions, Soft, SoftOptions};

    let Some(soft) = metallic_testkit::needed(Soft::new(SoftOptions::default().threads(2))) else { return };
    let backend = GpuBackend::new(Arc::new(soft), GpuOptions::default());
    storms(&backend, &["llama_yarn", "olmo3", "granitemoe", "falcon_h1"], 1);
}
