//! The step loop: which tokens of which sequences run next, and what becomes of the results.

mod admission;
mod ending;
mod formats;
mod layout;
mod prefixes;
mod results;
mod speculating;
mod telling;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use metallic_core::{BLOCK_TOKENS, Blocks, Program};

use super::cache::KvCache;
use super::config::EngineConfig;
use super::flight::{Due, Flight, Inputs};
use super::inbox::Inbox;
use super::pace::Pace;
use super::queue::Queue;
use super::sample::Scratch;
use super::sequence::Sequence;
use super::snapshots::Snapshots;
use super::speculate::{Draft, Speculator};
use super::{Detokenize, EngineError};
use ending::Ends;
use layout::guarded;
use telling::Teller;

/// What time it is: tests have their own.
pub(super) type Clock = Box<dyn Fn() -> Instant + Send>;

/// How long the engine sleeps at most while something waits that it cannot go on with.
const NAP: Duration = Duration::from_secs(1);
/// The same while there is nothing at all.
const SLEEP: Duration = Duration::from_secs(3600);

/// What a scheduler works with besides its program.
pub(super) struct Surroundings<'t> {
    pub(super) config: EngineConfig,
    pub(super) text: Option<&'t dyn Detokenize>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) clock: Clock,
    pub(super) draft: Option<Draft>,
}

/// All sequences, the program and its cache.
pub(super) struct Scheduler<'t> {
    program: Box<dyn Program>,
    config: EngineConfig,
    text: Option<&'t dyn Detokenize>,
    inbox: Arc<Inbox>,
    clock: Clock,
    cache: KvCache,
    /// Recurrent states nobody has.
    free_slots: Vec<u32>,
    snapshots: Snapshots,
    queue: Queue<'t>,
    /// When requests must have ended, those that wait and those that run.
    deadlines: BTreeSet<(Instant, u64)>,
    /// The next to be let in, for whom there was no room, and what of that must change.
    blocked: Option<(u64, (u64, Blocks))>,
    /// In the order they were let in: whoever waits for another's blocks stands after it.
    running: Vec<Sequence<'t>>,
    /// What each would bring to this step, and what it brings.
    dues: Vec<Due>,
    shares: Vec<usize>,
    /// A step that was submitted before the one ahead of it was finished.
    chasing: Option<Flight>,
    /// The program panicked while a step was handed over early.
    broken: Option<EngineError>,
    /// Steps that were laid out, those that failed included.
    launches: u64,
    inputs: Inputs,
    scratch: Scratch,
    speculator: Speculator,
    pace: Pace,
    /// When the last step was finished.
    finished: Option<Instant>,
    ends: Ends,
    teller: Teller,
    totals: Totals,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    requests: u64,
    steps: u64,
    computed_tokens: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
    prefix_tokens: u64,
    preemptions: u64,
    breakdowns: u64,
}

impl<'t> Scheduler<'t> {
    pub(super) fn new(
        mut program: Box<dyn Program>,
        surroundings: Surroundings<'t>,
    ) -> Result<Self, EngineError> {
        let Surroundings { config, text, inbox, clock, draft } = surroundings;
        let slots = slots_of(&config);
        program.reserve_slots(slots)?;
        Ok(Self {
            program,
            text,
            inbox,
            clock,
            cache: new_cache(&config),
            free_slots: (0..slots as u32).rev().collect(),
            snapshots: Snapshots::new(&config),
            speculator: Speculator::new(&config.speculation, draft),
            config,
            queue: Queue::default(),
            deadlines: BTreeSet::new(),
            blocked: None,
            running: Vec::new(),
            dues: Vec::new(),
            shares: Vec::new(),
            chasing: None,
            broken: None,
            launches: 0,
            inputs: Inputs::default(),
            scratch: Scratch::default(),
            pace: Pace::default(),
            finished: None,
            ends: Ends::default(),
            teller: Teller::default(),
            totals: Totals::default(),
        })
    }

    /// How long it has nothing to do, unless something comes.
    pub(super) fn patience(&self) -> Duration {
        let none = self.queue.is_empty() && self.running.is_empty();
        let nap = if none { SLEEP } else { NAP };
        let next = self.deadlines.first().map(|(at, _)| at.saturating_duration_since((self.clock)()));
        next.map_or(nap, |next| next.min(nap))
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty() && self.chasing.is_none()
    }

    /// Runs one step, if there is anything to do, and says whether there was. A panic of what belongs to none ends all that run.
    pub(super) fn step(&mut self) -> bool {
        let under_way = self.running.len() + self.queue.len();
        guarded(|| self.advance()).unwrap_or_else(|error| {
            self.break_down(&error);
            // Where it has ended nobody, it would only come again.
            self.running.len() + self.queue.len() < under_way
        })
    }

    /// While the device has a step, the next one is laid out and handed over where that needs none of its results.
    fn advance(&mut self) -> bool {
        let before = (self.launches, self.totals.preemptions);
        let flight = match self.chasing.take() {
            Some(flight) => Some(flight),
            None => self.begin(),
        };
        let Some(flight) = flight else {
            let ended = self.sweep();
            self.tell();
            // One that failed was taken apart; whoever waited for one that was set aside may go on.
            return ended || before != (self.launches, self.totals.preemptions);
        };
        self.chasing = self.chase(&flight);
        self.prepare_formats(&flight);
        match self.broken.take().map_or_else(|| self.finish(), Err) {
            Ok(cost) => self.complete(flight, cost),
            Err(error) => self.failed(&flight, &error),
        }
        self.sweep();
        self.tell();
        // Readers were woken. Where every core computes, they would wait for the end of a slice, which may be a few steps away.
        thread::yield_now();
        true
    }

    fn sequence(&self, serial: u64) -> Option<&Sequence<'t>> {
        self.running.iter().find(|s| s.serial == serial)
    }
}

fn slots_of(config: &EngineConfig) -> usize {
    if config.states.is_recurrent() { config.max_sequences } else { 0 }
}

fn new_cache(config: &EngineConfig) -> KvCache {
    KvCache::new(&config.states, config.block_limits(), config.at_once(usize::MAX).near)
}

/// Tokens a cache of so many blocks holds.
pub(super) fn tokens_in(blocks: usize) -> usize {
    blocks.saturating_mul(BLOCK_TOKENS)
}

#[cfg(test)]
mod tests;
