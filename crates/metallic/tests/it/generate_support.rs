//! A program whose logits depend on the whole history, which it knows only from what was written to its paged cache:
//! a wrong block, position or length changes every token after it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use metallic::generate::{Decode, Detokenize, Engine, EngineConfig, Request, Sampling};
use metallic_core::{
    BLOCK_TOKENS, BackendError, Blocks, DType, KvState, Program, ProgramMemory, RunStats, State, StateLayout,
    Step, StepLimits, sample,
};

pub(crate) const VOCAB: usize = 97;

/// One layer of one head.
pub(crate) fn layout() -> StateLayout {
    layout_of(State::Kv(KvState { kv_heads: 1, key_dim: 4, value_dim: 4, window: None }))
}

/// How far back the layers of a program look.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Looks {
    /// One layer, as far as there is.
    Back,
    /// Such a layer, and one that looks back so many tokens.
    BackAndThrough(usize),
    /// One layer that looks back so many tokens.
    Through(usize),
}

impl Looks {
    pub(crate) fn layout(self) -> StateLayout {
        let kv = |window| Some(State::Kv(KvState { kv_heads: 1, key_dim: 4, value_dim: 4, window }));
        let states = match self {
            Looks::Back => vec![kv(None)],
            Looks::BackAndThrough(window) => vec![kv(None), kv(Some(window))],
            Looks::Through(window) => vec![kv(Some(window))],
        };
        StateLayout::new(DType::F32, states)
    }

    /// Makes a fake look so.
    pub(crate) fn set(self, log: &mut Log) {
        (log.window, log.near) = match self {
            Looks::Back => (None, None),
            Looks::BackAndThrough(window) => (None, Some(window)),
            Looks::Through(window) => (Some(window), None),
        };
    }

    /// What it sees after these tokens.
    fn history(self, tokens: &[u32]) -> Vec<Option<(u32, u32)>> {
        let mut all: Vec<_> = tokens.iter().copied().zip(0..).map(Some).collect();
        let seen = |window: usize| all.len().saturating_sub(window)..;
        match self {
            Looks::Back => {}
            Looks::BackAndThrough(window) => all.extend_from_within(seen(window)),
            Looks::Through(window) => all = all[seen(window)].to_vec(),
        }
        all
    }
}

pub(crate) fn layout_of(state: State) -> StateLayout {
    StateLayout::new(DType::F32, vec![Some(state)])
}

/// What went on inside the program, and what should go wrong in it.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) tokens: usize,
    pub(crate) steps: usize,
    pub(crate) widest_step: usize,
    pub(crate) longest_step: usize,
    /// Rows of logits asked for.
    pub(crate) rows: usize,
    /// Runs (counted from 1) that fail, and runs that panic.
    pub(crate) fail_on: Vec<usize>,
    pub(crate) panic_on: Option<usize>,
    /// Asking it for memory is a panic.
    pub(crate) panic_on_reserve: bool,
    /// A token that makes any step it is in fail.
    pub(crate) poison: Option<u32>,
    /// A token after which all logits are NaN.
    pub(crate) nan_after: Option<u32>,
    /// Steps it takes at once, choosing tokens itself; 0 counts as 1.
    pub(crate) depth: usize,
    /// How far back it looks.
    pub(crate) window: Option<usize>,
    /// How far back its other layer looks, whose blocks are its own.
    pub(crate) near: Option<usize>,
    /// Recurrent states that steps named.
    pub(crate) slots: BTreeSet<u32>,
    /// Steps that took tokens the one before them had yet to give.
    pub(crate) fed_steps: usize,
    /// Makes the token so many places back likelier, by so much: it repeats itself, more or less.
    pub(crate) repeats: Option<(usize, f32)>,
    /// Makes this id always the best one after so many tokens.
    pub(crate) end_with: Option<(usize, u32)>,
    runs: usize,
}

pub(crate) struct Fake {
    /// Token and position by block and place, `None` where nothing was written.
    cache: Vec<Option<(u32, u32)>>,
    /// The same of its other layer.
    near: Vec<Option<(u32, u32)>>,
    output: Vec<f32>,
    /// What the steps under way will give: logits, chosen tokens, cost.
    under_way: VecDeque<(Vec<f32>, Vec<u32>, RunStats)>,
    chosen: Vec<u32>,
    log: Arc<Mutex<Log>>,
    gate: Arc<Gate>,
    room: usize,
}

/// The test's view of a [`Fake`].
#[derive(Clone)]
pub(crate) struct Handle {
    log: Arc<Mutex<Log>>,
    gate: Arc<Gate>,
}

/// Lets steps through: all of them, or as many as a test allows.
#[derive(Default)]
struct Gate {
    allowed: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, allowed: Option<usize>) {
        *self.allowed.lock().unwrap_or_else(PoisonError::into_inner) = allowed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut allowed =
            self.changed.wait_while(allowed, |n| *n == Some(0)).unwrap_or_else(PoisonError::into_inner);
        *allowed = allowed.map(|n| n - 1);
    }
}

/// While it lives, only the steps it allows run.
pub(crate) struct Hold<'h>(&'h Gate);

impl Hold<'_> {
    pub(crate) fn allow(&self, steps: usize) {
        self.0.set(Some(steps));
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl Handle {
    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold_steps(&self) -> Hold<'_> {
        self.gate.set(Some(0));
        Hold(&self.gate)
    }
}

pub(crate) fn fake() -> (Box<dyn Program>, Handle) {
    fake_with_room(usize::MAX)
}

/// A program that can reserve `room` blocks at most.
pub(crate) fn fake_with_room(room: usize) -> (Box<dyn Program>, Handle) {
    let handle = Handle { log: Arc::default(), gate: Arc::default() };
    let fake = Fake {
        cache: Vec::new(),
        near: Vec::new(),
        output: Vec::new(),
        under_way: VecDeque::new(),
        chosen: Vec::new(),
        log: Arc::clone(&handle.log),
        gate: Arc::clone(&handle.gate),
        room,
    };
    (Box::new(fake), handle)
}

fn failed(reason: &str) -> BackendError {
    BackendError::Failed { device: "fake", reason: reason.to_owned() }
}

impl Program for Fake {
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        let panics = self.log.lock().unwrap_or_else(PoisonError::into_inner).panic_on_reserve;
        assert!(!panics, "the fake was told to panic over memory");
        for (cache, blocks) in [(&mut self.cache, blocks.far), (&mut self.near, blocks.near)] {
            if blocks > self.room {
                return Err(BackendError::OutOfMemory { device: "fake", what: "cache", needed: blocks });
            }
            cache.resize(cache.len().max(blocks * BLOCK_TOKENS), None);
        }
        Ok(())
    }

    fn reserved(&self) -> Blocks {
        let [far, near] = [&self.cache, &self.near].map(|cache| cache.len() / BLOCK_TOKENS);
        let is_mixed = self.log.lock().unwrap_or_else(PoisonError::into_inner).near.is_some();
        Blocks { far, near: if is_mixed { near } else { far } }
    }

    fn reserve_slots(&mut self, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn copy_slot(&mut self, _: u32, _: u32) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        self.gate.pass();
        let before = self.under_way.back().map_or(&[][..], |(_, chosen, _)| chosen);
        let (blocks, fed_rows) = (self.reserved(), before.len());
        step.validate(&StepLimits { vocab: VOCAB, blocks, slots: None, fed_rows, adapters: 0 })?;
        let mut tokens = step.tokens.to_vec();
        for fed in step.fed {
            tokens[fed.token as usize] = before[fed.row as usize].min(VOCAB as u32 - 1);
        }
        assert!(self.under_way.len() < self.depth(), "more steps than were asked for");
        let step = &Step { tokens: &tokens, ..step.clone() };
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.runs += 1;
        assert!(log.panic_on != Some(log.runs), "the fake was told to panic");
        if log.fail_on.contains(&log.runs) {
            return Err(failed("told to"));
        }
        if log.poison.is_some_and(|id| step.tokens.contains(&id)) {
            return Err(failed("poison"));
        }
        log.steps += 1;
        log.fed_steps += usize::from(!step.fed.is_empty());
        log.tokens += step.tokens.len();
        log.rows += step.outputs.len();
        log.widest_step = log.widest_step.max(step.sequences.len());
        log.longest_step = log.longest_step.max(step.tokens.len());
        let mut rows = vec![Vec::new(); step.tokens.len()];
        for span in step.sequences {
            log.slots.insert(span.slot);
            let place =
                |table: &[u32], p: usize| table[p / BLOCK_TOKENS] as usize * BLOCK_TOKENS + p % BLOCK_TOKENS;
            let (far, near) = (|p| place(span.blocks, p), |p| place(span.near, p));
            for (p, i) in (span.past..).zip(span.tokens.clone()) {
                let written = Some((step.tokens[i], step.positions[i]));
                self.cache[far(p)] = written;
                if log.near.is_some() {
                    self.near[near(p)] = written;
                }
            }
            for (p, i) in (span.past..).zip(span.tokens.clone()) {
                let first = |window: Option<usize>| window.map_or(0, |w| (p + 1).saturating_sub(w));
                let mut history: Vec<_> = (first(log.window)..=p).map(|q| self.cache[far(q)]).collect();
                if log.near.is_some() {
                    history.extend((first(log.near)..=p).map(|q| self.near[near(q)]));
                }
                rows[i] =
                    if step.outputs.contains(&(i as u32)) { logits_of(&history, &log) } else { Vec::new() };
            }
        }
        let output: Vec<f32> = step.outputs.iter().flat_map(|&row| rows[row as usize].clone()).collect();
        let mut chosen = Vec::new();
        if !step.choices.is_empty() {
            let mut scratch = sample::Scratch::default();
            for (row, logits) in output.chunks(VOCAB).enumerate() {
                let id = sample::choose(step.choices, row, logits, &mut scratch).expect("sound choices");
                chosen.push(id.unwrap_or(sample::NO_CANDIDATE));
            }
        }
        let bytes_read = step.tokens.len() as u64;
        let stats = RunStats { dispatches: 3, bytes_read, ..RunStats::default() };
        self.under_way.push_back((output, chosen, stats));
        Ok(())
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        let (output, chosen, stats) =
            self.under_way.pop_front().ok_or_else(|| failed("nothing under way"))?;
        (self.output, self.chosen) = (output, chosen);
        Ok(stats)
    }

    fn depth(&self) -> usize {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).depth.max(1)
    }

    fn ids(&self, index: usize) -> &[u32] {
        if index == 1 { &self.chosen } else { &[] }
    }

    fn output(&self, index: usize) -> &[f32] {
        if index == 0 { &self.output } else { &[] }
    }

    fn memory(&self) -> ProgramMemory {
        ProgramMemory { kv: self.reserved().far * layout().block_bytes(), ..ProgramMemory::default() }
    }
}

fn mix(state: u64, value: u64) -> u64 {
    (state ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ value
}

fn logits_of(history: &[Option<(u32, u32)>], log: &Log) -> Vec<f32> {
    // What is no number once in a cache stays none.
    if history.iter().flatten().any(|(token, _)| Some(*token) == log.nan_after) {
        return vec![f32::NAN; VOCAB];
    }
    let state = history.iter().fold(1, |state, entry| match entry {
        Some((token, position)) => mix(mix(state, u64::from(*token)), u64::from(*position)),
        None => mix(state, u64::MAX),
    });
    let mut logits: Vec<f32> = (0..VOCAB as u64)
        .map(|id| (mix(mix(state, id), 7) >> 40) as f32 / (1 << 24) as f32 * 8.0 - 4.0)
        .collect();
    if let Some((period, likelier)) = log.repeats
        && let Some(Some((token, _))) = history.len().checked_sub(period).and_then(|i| history.get(i))
    {
        logits[*token as usize] += likelier;
    }
    if let Some((length, id)) = log.end_with
        && history.len() >= length
    {
        logits[id as usize] = 100.0;
    }
    logits
}

/// Logits after `tokens` as they must come out, computed without any cache.
pub(crate) fn expected_logits(tokens: &[u32]) -> Vec<f32> {
    let history: Vec<_> = tokens.iter().copied().zip(0..).map(Some).collect();
    logits_of(&history, &Log::default())
}

/// The greedy continuation as it must come out.
pub(crate) fn expected_greedy(prompt: &[u32], n: usize) -> Vec<u32> {
    expected_greedy_with(prompt, n, Looks::Back)
}

/// The same, of a program that looks back so far.
pub(crate) fn expected_greedy_with(prompt: &[u32], n: usize, looks: Looks) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        let logits = logits_of(&looks.history(&tokens), &Log::default());
        let best = (0..VOCAB).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        tokens.push(best.unwrap_or(0) as u32);
    }
    tokens.split_off(prompt.len())
}

/// A prompt of its own for each `kind`.
pub(crate) fn prompt(kind: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i + kind * 31 + i / 7) % VOCAB as u32).collect()
}

pub(crate) fn greedy_request(prompt: Vec<u32>, n: usize) -> Request {
    Request::new(prompt).max_tokens(n).sampling(Sampling::greedy())
}

/// A context of 4096 tokens and a cache of `blocks` blocks.
pub(crate) fn config(blocks: usize) -> EngineConfig {
    EngineConfig::new(4096, VOCAB, layout()).kv_budget_bytes(blocks * layout().block_bytes())
}

pub(crate) fn engine(config: EngineConfig) -> (Engine, Handle) {
    let (program, handle) = fake();
    (Engine::new(program, config).expect("a valid configuration"), handle)
}

/// Token 0 is `é`, 1 and 2 are the halves of `é`, others are the letters a, b, c … over and over.
pub(crate) struct Letters;

pub(crate) struct LetterDecoder {
    half: bool,
}

pub(crate) fn letter(id: u32) -> char {
    char::from(b'a' + (id % 26) as u8)
}

impl Detokenize for Letters {
    fn decoder(&self) -> Box<dyn Decode + '_> {
        Box::new(LetterDecoder { half: false })
    }
}

impl Decode for LetterDecoder {
    fn push(&mut self, id: u32) -> String {
        match id {
            0 => "é".to_owned(),
            1 => {
                self.half = true;
                String::new()
            }
            2 if std::mem::take(&mut self.half) => "é".to_owned(),
            id => letter(id).to_string(),
        }
    }

    fn finish(&mut self) -> String {
        if std::mem::take(&mut self.half) { "\u{fffd}".to_owned() } else { String::new() }
    }
}
