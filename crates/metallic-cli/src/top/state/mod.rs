//! What is known of a running Metallic: records go in, figures come out. No clock, terminal or file in it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use metallic_telemetry::{
    CacheSummary, Compile, CompileSource, End, Event, Load, Memory, Phase, PoolSummary, ProviderChoice,
    Queue, Request, Start, Step,
};

use crate::top::{
    figures::{self, Spread, Stretch},
    moment::{Cost, Moment, OpsDigest, What, number},
};

/// The stretches of time that figures can be of, in seconds.
pub(crate) const WINDOWS: [f64; 6] = [5.0, 15.0, 60.0, 180.0, 600.0, 1800.0];
/// Of which the third is the first to be shown.
pub(crate) const USUAL_WINDOW: usize = 2;
/// The parts of a window whose rates medians are of.
const PARTS: usize = 60;
/// A step may still be under way: the rate of now is that of the last second that is known, unless that is longer ago than this.
const LATE: f64 = 2.0;

/// What is kept at most: a process may run for days, and a file of strangers may say anything.
const MOST_STEPS: usize = 1 << 17;
const MOST_REQUESTS: usize = 1 << 14;
const MOST_SLOTS: usize = 1 << 11;
const MOST_NAMES: usize = 512;
const MOST_ENTRIES: usize = 2000;

/// A step, as far as figures need it.
#[derive(Clone, Copy, Debug)]
struct StepTime {
    begin: f64,
    seconds: f64,
    decode: f64,
    prefill: f64,
}

/// Which tokens a rate is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tokens {
    Decode,
    Prefill,
}

/// How bad an entry of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Note,
    Warning,
    Fault,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) t: f64,
    pub(crate) level: Level,
    pub(crate) about: String,
    pub(crate) text: String,
    /// How often it came, one after the other.
    pub(crate) times: u64,
}

/// Kernels that were made ready.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Compiled {
    pub(crate) made: u64,
    pub(crate) from_disk: u64,
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
}

/// Operations computed again by the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// Requests and tokens since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) ended: u64,
    pub(crate) failed: u64,
    pub(crate) steps: u64,
    pub(crate) planned: u64,
    pub(crate) decode_tokens: u64,
    pub(crate) prefill_tokens: u64,
}

/// What operations took in one second.
#[derive(Clone, Debug, Default)]
struct Slot {
    second: u64,
    steps: u64,
    by_op: BTreeMap<Arc<str>, Cost>,
    by_layer: BTreeMap<Option<u32>, Cost>,
}

/// All that is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    now: f64,
    first: Option<f64>,
    pub(crate) start: Option<Start>,
    pub(crate) load: Option<Load>,
    pub(crate) queue: Option<Queue>,
    pub(crate) memory: Option<Memory>,
    pub(crate) end: Option<End>,
    pub(crate) compiled: Compiled,
    pub(crate) verified: Verified,
    pub(crate) totals: Totals,
    pub(crate) providers: Vec<ProviderChoice>,
    pub(crate) caches: BTreeMap<String, CacheSummary>,
    pub(crate) pools: BTreeMap<String, PoolSummary>,
    log: VecDeque<Entry>,
    /// Entries that the log has no room for any more.
    pub(crate) forgotten: u64,
    pub(crate) warnings: u64,
    pub(crate) faults: u64,
    steps: VecDeque<StepTime>,
    first_tokens: VecDeque<(f64, f64)>,
    slots: VecDeque<Slot>,
}

impl State {
    /// Takes a record in. The beginning of a process makes a new state: logs may follow each other in one file.
    pub(crate) fn apply(&mut self, moment: &Moment) {
        if let What::Event(Event::Start(start)) = &moment.what {
            *self = State { start: Some(start.clone()), now: moment.t, ..State::default() };
        }
        self.first.get_or_insert(moment.t);
        self.now = self.now.max(moment.t);
        match &moment.what {
            What::Ops(digest) => self.ops(moment.t, digest),
            What::Event(event) => self.event(moment.t, event),
        }
    }

    /// Time went on, whether or not something happened.
    pub(crate) fn pass(&mut self, now: f64) {
        self.now = self.now.max(now);
    }

    fn event(&mut self, t: f64, event: &Event) {
        match event {
            Event::Load(load) => self.load = Some(load.clone()),
            Event::Request(request) => self.request(t, request),
            Event::Step(step) => self.step(step),
            Event::Provider(choice) => self.provider(t, choice),
            Event::Compile(compile) => self.compile(t, compile),
            Event::Cache(cache) => keep(&mut self.caches, &cache.cache, cache),
            Event::Pool(pool) => keep(&mut self.pools, &pool.pool, pool),
            Event::Queue(queue) => self.queue = Some(queue.clone()),
            Event::Preemption(set_aside) => {
                let text = format!(
                    "request {} was set aside, {} tokens to compute again",
                    set_aside.id, set_aside.tokens
                );
                self.tell(t, Level::Warning, "preemption", text);
            }
            Event::Memory(memory) => self.memory = Some(memory.clone()),
            Event::Fault(fault) => self.tell(t, Level::Fault, &fault.at, fault.error.clone()),
            Event::Warning(warning) => self.tell(t, Level::Warning, &warning.about, warning.text.clone()),
            Event::Verify(verify) if verify.passed => self.verified.passed += 1,
            Event::Verify(verify) => {
                self.verified.failed += 1;
                let layer = verify.layer.map(|layer| format!(" of layer {layer}")).unwrap_or_default();
                let text = format!(
                    "{}{layer} in step {} is off by {:.2e}, its types explain {:.2e}",
                    verify.op, verify.step, verify.error, verify.tolerance
                );
                self.tell(t, Level::Fault, "verify", text);
            }
            Event::End(end) => {
                if end.lost > 0 {
                    let text = format!("{} records were lost: figures are too low", end.lost);
                    self.tell(t, Level::Warning, "telemetry", text);
                }
                self.end = Some(end.clone());
            }
            Event::Lost(lost) => {
                let text =
                    format!("{} records were lost on their way here: figures are too low", lost.records);
                self.tell(t, Level::Warning, "telemetry", text);
            }
            // `Start` is taken before, `Ops` are digested; kinds that are added later have no place here yet.
            Event::Start(_) | Event::Ops(_) => {}
            other => {
                let text = format!("this program does not know events of the kind `{}`", other.kind());
                self.tell(t, Level::Note, "telemetry", text);
            }
        }
    }

    fn request(&mut self, t: f64, request: &Request) {
        match request.phase {
            Phase::Queued => self.totals.requests += 1,
            Phase::Started => {}
            Phase::FirstToken => {
                push(&mut self.first_tokens, (t, number(request.ttft_seconds)), MOST_REQUESTS);
            }
            Phase::Ended => {
                self.totals.ended += 1;
                if request.reason == "failed" {
                    self.totals.failed += 1;
                    self.tell(t, Level::Fault, "request", format!("request {} failed", request.id));
                }
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let decode = step.decode_tokens.min(step.tokens);
        let prefill = step.tokens - decode;
        let (begin, seconds) = (number(step.begin), number(step.seconds));
        let totals = &mut self.totals;
        totals.steps += 1;
        totals.planned += u64::from(step.planned);
        totals.decode_tokens = totals.decode_tokens.saturating_add(decode);
        totals.prefill_tokens = totals.prefill_tokens.saturating_add(prefill);
        let time = StepTime { begin, seconds, decode: decode as f64, prefill: prefill as f64 };
        push(&mut self.steps, time, MOST_STEPS);
    }

    fn ops(&mut self, t: f64, digest: &OpsDigest) {
        let second = t as u64;
        if self.slots.back().is_none_or(|slot| slot.second < second) {
            push(&mut self.slots, Slot { second, ..Slot::default() }, MOST_SLOTS);
        }
        let Some(slot) = self.slots.back_mut() else { return };
        slot.steps += 1;
        for (name, cost) in &digest.by_op {
            sum(&mut slot.by_op, name, cost);
        }
        for (layer, cost) in &digest.by_layer {
            sum(&mut slot.by_layer, layer, cost);
        }
    }

    fn provider(&mut self, t: f64, choice: &ProviderChoice) {
        if self.providers.contains(choice) || self.providers.len() >= MOST_NAMES {
            return;
        }
        if choice.why == "fallback" {
            let error = choice.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
            let instead = choice.instead_of.as_deref().unwrap_or("what was asked for");
            let text = format!("{} is by {} instead of {instead}{error}", choice.op, choice.provider);
            self.tell(t, Level::Warning, "provider", text);
        }
        self.providers.push(choice.clone());
    }

    fn compile(&mut self, t: f64, compile: &Compile) {
        self.compiled.seconds += number(compile.seconds);
        match (&compile.error, compile.source) {
            (Some(error), _) => {
                self.compiled.failed += 1;
                self.tell(t, Level::Fault, "compile", format!("{} {}: {error}", compile.what, compile.name));
            }
            (None, CompileSource::Disk) => self.compiled.from_disk += 1,
            (None, CompileSource::Compiled) => self.compiled.made += 1,
        }
    }

    fn tell(&mut self, t: f64, level: Level, about: &str, text: String) {
        match level {
            Level::Note => {}
            Level::Warning => self.warnings += 1,
            Level::Fault => self.faults += 1,
        }
        if let Some(last) = self.log.back_mut()
            && last.level == level
            && last.about == about
            && last.text == text
        {
            (last.times, last.t) = (last.times + 1, t);
            return;
        }
        self.forgotten += u64::from(self.log.len() >= MOST_ENTRIES);
        push(&mut self.log, Entry { t, level, about: about.to_owned(), text, times: 1 }, MOST_ENTRIES);
    }

    /// Seconds on the clock of records.
    #[cfg(test)]
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// Seconds since the first record that was seen.
    pub(crate) fn uptime(&self) -> f64 {
        self.first.map_or(0.0, |first| self.now - first)
    }

    /// Seconds since the first record, of an entry.
    pub(crate) fn age_at(&self, t: f64) -> f64 {
        self.first.map_or(0.0, |first| (t - first).max(0.0))
    }

    /// The log, the newest first.
    pub(crate) fn log(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.log.iter().rev()
    }

    fn steps_within(&self, window: f64) -> impl Iterator<Item = &StepTime> {
        // Steps come about in the order they end.
        let from = self.now - window;
        self.steps.iter().rev().take_while(move |step| step.begin + step.seconds >= from)
    }

    fn stretches(&self, tokens: Tokens, window: f64) -> impl Iterator<Item = Stretch> {
        self.steps_within(window).filter_map(move |step| {
            let amount = if tokens == Tokens::Decode { step.decode } else { step.prefill };
            (amount > 0.0).then_some(Stretch { begin: step.begin, seconds: step.seconds, amount })
        })
    }

    /// Tokens a second in equal parts of the window, the oldest first.
    pub(crate) fn rates(&self, tokens: Tokens, window: f64, parts: usize) -> Vec<f64> {
        figures::rates(self.stretches(tokens, window), self.now, window, parts)
    }

    /// Tokens a second: in the last second that is known, and in those parts of the window that had any.
    pub(crate) fn rate(&self, tokens: Tokens, window: f64) -> Option<Spread> {
        let last = self.steps.back().map(|step| step.begin + step.seconds)?;
        let end = if self.now - last < LATE { last.min(self.now) } else { self.now };
        let current = figures::rate_before(self.stretches(tokens, window), end, 1.0);
        let mut parts = self.rates(tokens, window, PARTS);
        parts.retain(|rate| *rate > 0.0);
        Spread::of(current, parts)
    }

    /// Times to the first token in the window, the oldest first.
    pub(crate) fn first_tokens(&self, window: f64) -> Vec<f64> {
        let from = self.now - window;
        self.first_tokens.iter().filter(|(t, _)| *t >= from).map(|(_, seconds)| *seconds).collect()
    }

    /// What steps of the window took: the last one, in the middle, the slow ones.
    pub(crate) fn latency(&self, window: f64) -> Option<Spread> {
        let current = self.steps.back()?.seconds;
        Spread::of(current, self.steps_within(window).map(|step| step.seconds).collect())
    }

    /// Steps of the window by what they took: up to so many seconds, how many.
    pub(crate) fn latencies(&self, window: f64) -> Vec<(f64, u64)> {
        figures::histogram(self.steps_within(window).map(|step| step.seconds))
    }

    fn slots_within(&self, window: f64) -> impl Iterator<Item = &Slot> {
        let from = (self.now - window).max(0.0) as u64;
        self.slots.iter().rev().take_while(move |slot| slot.second >= from)
    }

    /// Steps of the window whose operations were timed.
    pub(crate) fn timed_steps(&self, window: f64) -> u64 {
        self.slots_within(window).map(|slot| slot.steps).sum()
    }

    /// What operations took in the window, the most first.
    pub(crate) fn by_op(&self, window: f64) -> Vec<(Arc<str>, Cost)> {
        let mut all = BTreeMap::new();
        for (name, cost) in self.slots_within(window).flat_map(|slot| &slot.by_op) {
            sum(&mut all, name, cost);
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
        all
    }

    /// What layers took in the window, in their order; what lies outside of them comes last.
    pub(crate) fn by_layer(&self, window: f64) -> Vec<(Option<u32>, Cost)> {
        let mut all = BTreeMap::new();
        for (layer, cost) in self.slots_within(window).flat_map(|slot| &slot.by_layer) {
            sum(&mut all, layer, cost);
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(layer, _)| layer.map_or(u64::MAX, u64::from));
        all
    }
}

/// Adds to what a name has; past so many names nothing is told of further ones.
fn sum<K: Ord + Clone>(costs: &mut BTreeMap<K, Cost>, name: &K, cost: &Cost) {
    if costs.len() < MOST_NAMES || costs.contains_key(name) {
        costs.entry(name.clone()).or_default().add(cost);
    }
}

fn keep<T: Clone>(known: &mut BTreeMap<String, T>, name: &str, value: &T) {
    if known.len() < MOST_NAMES || known.contains_key(name) {
        known.insert(name.to_owned(), value.clone());
    }
}

fn push<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests;
