//! Whether guessing ahead pays, on programs whose steps take a time of their own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metallic_core::{
    BackendError, Blocks, DType, KvState, Program, ProgramMemory, RunStats, State, StateLayout, Step,
};

use super::super::{Scheduler, Surroundings};
use crate::generate::generation::Outlet;
use crate::generate::inbox::Inbox;
use crate::generate::sequence::Submission;
use crate::generate::{EngineConfig, Generation, Request, Sampling, Speculation};

const VOCAB: u32 = 60;
/// Microseconds of a step of one token.
const STEP: f64 = 10_000.0;

/// What a program says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// What it said 20 tokens before.
    TheSame,
    /// Anything.
    Anything,
    /// The one for a hundred tokens, then the other.
    Both,
}

/// A device.
#[derive(Clone, Copy, Debug)]
struct Device {
    /// What a token more costs, as a part of a step of one.
    token: f64,
    /// What a step costs more that is handed over after the one before was done; 0 for a device that takes one step at a time.
    latency: f64,
}

fn hash(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
}

struct Talker {
    says: Says,
    device: Device,
    time: Arc<AtomicU64>,
    /// When each step under way is done, and the tokens it chooses.
    under_way: VecDeque<(f64, Vec<u32>)>,
    /// When the device is done with all it has.
    busy_until: f64,
    steps: u64,
    chosen: Vec<u32>,
    output: Vec<f32>,
}

impl Talker {
    /// What follows the token at a position.
    fn next(&self, token: u32, position: u32) -> u32 {
        let repeats = match self.says {
            Says::TheSame => true,
            Says::Anything => false,
            Says::Both => (position / 100).is_multiple_of(2),
        };
        if repeats { (token + 1) % 20 } else { (hash(u64::from(position), 1) % u64::from(VOCAB)) as u32 }
    }
}

impl Program for Talker {
    fn reserve(&mut self, _: Blocks) -> Result<(), BackendError> {
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

    fn depth(&self) -> usize {
        if self.device.latency > 0.0 { 2 } else { 1 }
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        let now = self.time.load(Ordering::Relaxed) as f64;
        let before = self.under_way.back().map(|(_, chosen)| chosen.clone());
        let mut tokens = step.tokens.to_vec();
        for fed in step.fed {
            tokens[fed.token as usize] = before.as_ref().expect("a step before")[fed.row as usize];
        }
        let late = if self.under_way.is_empty() { self.device.latency } else { 0.0 };
        self.steps += 1;
        // No two steps take quite the same.
        let noise = 0.95 + hash(self.steps, 2) as f64 / f64::from(1 << 31) * 0.1;
        let seconds = STEP * (1.0 + self.device.token * (tokens.len() - 1) as f64 + late) * noise;
        self.busy_until = self.busy_until.max(now) + seconds;
        let next = |row: &u32| self.next(tokens[*row as usize], step.positions[*row as usize]);
        self.under_way.push_back((self.busy_until, step.outputs.iter().map(next).collect()));
        Ok(())
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        let (done, chosen) = self.under_way.pop_front().expect("a step under way");
        self.time.fetch_max(done as u64, Ordering::Relaxed);
        let row = |id: &u32| (0..VOCAB).map(|other| f32::from(u8::from(other == *id))).collect::<Vec<_>>();
        self.output = chosen.iter().flat_map(row).collect();
        self.chosen = chosen;
        Ok(RunStats::default())
    }

    fn ids(&self, _: usize) -> &[u32] {
        &self.chosen
    }

    fn output(&self, _: usize) -> &[f32] {
        &self.output
    }

    fn memory(&self) -> ProgramMemory {
        ProgramMemory::default()
    }
}

/// Seconds that so many answers of so many tokens take side by side, once after another answer.
fn seconds(says: Says, device: Device, speculation: Speculation, (answers, tokens): (usize, usize)) -> f64 {
    let kv = KvState { kv_heads: 1, key_dim: 4, value_dim: 4, window: None };
    let states = StateLayout::new(DType::F32, vec![Some(State::Kv(kv))]);
    let bytes = 4096 * states.block_bytes();
    let config = EngineConfig::new(1 << 15, VOCAB as usize, states).kv_budget_bytes(bytes);
    let (time, inbox, start) = (Arc::<AtomicU64>::default(), Arc::<Inbox>::default(), Instant::now());
    let talker = Talker {
        says,
        device,
        time: Arc::clone(&time),
        under_way: VecDeque::new(),
        busy_until: 0.0,
        steps: 0,
        chosen: Vec::new(),
        output: Vec::new(),
    };
    let now = Arc::clone(&time);
    let clock = Box::new(move || start + Duration::from_micros(now.load(Ordering::Relaxed)));
    let config = config.speculation(speculation).max_unread(1 << 20);
    let surroundings = Surroundings { config, text: None, inbox: Arc::clone(&inbox), clock, draft: None };
    let mut scheduler = Scheduler::new(Box::new(talker), surroundings).expect("a scheduler");
    let asked: Vec<Generation> = (0..answers as u64)
        .map(|id| {
            let (outlet, generation) = Outlet::pair(id, Arc::clone(&inbox));
            let prompt: Vec<u32> = (0..120).map(|i| (i + id as u32) % 20).collect();
            let request = Request::new(prompt).max_tokens(tokens).sampling(Sampling::greedy());
            let (most_tokens, place) = (120 + tokens, inbox.place(1000, 0).expect("room"));
            scheduler.submit(Submission {
                request,
                most_tokens,
                mix: Vec::new(),
                seed: 0,
                outlet,
                place,
                at: start,
                id,
            });
            generation
        })
        .collect();
    while scheduler.step() {}
    for answer in asked {
        assert_eq!(answer.complete().expect("an answer").tokens.len(), tokens);
    }
    time.load(Ordering::Relaxed) as f64 / 1e6
}

fn gain(says: Says, device: Device, answers: usize, tokens: usize) -> f64 {
    let of = |speculation| seconds(says, device, speculation, (answers, tokens));
    of(Speculation::Off) / of(Speculation::lookup())
}

const TOKENS: [f64; 6] = [0.02, 0.1, 0.2, 0.35, 0.6, 1.0];

#[test]
fn answers_that_repeat_themselves_gain_where_tokens_side_by_side_are_cheap() {
    for (token, needed) in [(0.02, 5.0), (0.1, 3.0), (0.2, 2.2), (0.35, 1.6), (0.6, 1.2), (1.0, 0.98)] {
        for latency in [0.0, 0.1, 0.5] {
            let gain = gain(Says::TheSame, Device { token, latency }, 1, 300);
            // What is handed over early was faster to begin with.
            let needed = (needed / (1.0 + latency)).max(0.97);
            assert!(gain > needed, "a token costs {token}, latency {latency}: {gain:.2}");
        }
    }
}

#[test]
fn answers_that_cannot_be_guessed_lose_next_to_nothing() {
    for token in TOKENS {
        for latency in [0.0, 0.1, 0.5] {
            for tokens in [64, 128, 1000] {
                let gain = gain(Says::Anything, Device { token, latency }, 1, tokens);
                assert!(gain > 0.97, "a token costs {token}, latency {latency}, {tokens} tokens: {gain:.3}");
            }
        }
    }
}

#[test]
fn crowds_gain_where_there_is_something_to_gain_and_lose_nothing_elsewhere() {
    for token in TOKENS {
        for answers in [2, 8] {
            let device = Device { token, latency: 0.0 };
            let (repeats, anything) =
                (gain(Says::TheSame, device, answers, 200), gain(Says::Anything, device, answers, 200));
            assert!(repeats > 0.99, "a token costs {token}, {answers} answers: {repeats:.3}");
            assert!(repeats > 1.3 || token > 0.1, "a token costs {token}, {answers} answers: {repeats:.3}");
            assert!(anything > 0.97, "a token costs {token}, {answers} answers: {anything:.3}");
        }
    }
}

#[test]
fn an_answer_that_changes_is_followed() {
    for latency in [0.0, 0.2] {
        let gain = gain(Says::Both, Device { token: 0.1, latency }, 1, 1000);
        assert!(gain > 1.3, "latency {latency}: {gain:.2}");
    }
}
