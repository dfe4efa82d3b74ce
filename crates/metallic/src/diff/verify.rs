//! Steps that are looked over while a model answers: now and then one operation is computed again by the reference.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use metallic_core::reference::ProductInputs;
use metallic_core::sample::NO_CANDIDATE;
use metallic_core::{
    Aside, BLOCK_TOKENS, BackendError, Blocks, CacheUse, CompileOptions, Fed, KernelCount, KvRows, NodeId,
    Op, PoolUse, Program, ProgramMemory, RunStats, SequenceSpan, StateId, Step, Taps, Wanted,
};
use metallic_telemetry::{Event, Verify, Warning, emit};

use super::check::{Check, Checker};
use super::lineage::Lineage;
use super::record::StepTaps;
use super::{DiffError, What};
use crate::model::{CHOSEN, Model};

/// What looking over steps has found so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    found: Arc<Mutex<VerifyCounts>>,
}

/// Figures of a [`Verification`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyCounts {
    /// Operations that were computed again.
    pub checked: u64,
    /// Those that rounding does not explain.
    pub failed: u64,
    /// What was wrong, and what was done about it; the first few.
    pub warnings: Vec<String>,
}

/// Warnings that are kept.
const WARNINGS: usize = 64;

impl Verification {
    /// What was found so far.
    pub fn found(&self) -> VerifyCounts {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, passed: bool) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.checked += 1;
        found.failed += u64::from(!passed);
    }

    fn warn(&self, text: String) {
        emit(|| Event::Warning(Warning { about: "verify".into(), text: text.clone() }));
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.warnings.len() < WARNINGS && !found.warnings.contains(&text) {
            found.warnings.push(text);
        }
    }
}

/// What a program is looked over with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyOptions {
    /// One operation of every so many steps; 1 or more.
    pub every: usize,
    /// How the program was compiled.
    pub compile: CompileOptions,
    /// What its products round their inputs to by design.
    pub products: ProductInputs,
}

/// Wraps a program that was made with [taps](CompileOptions::taps): in every so many steps one operation, each in its turn, is computed
/// again by the reference from what it was computed from. What rounding does not explain is told, and on a GPU who made it serves no more.
pub fn verified(
    mut program: Box<dyn Program>,
    model: &Model,
    options: VerifyOptions,
) -> Result<(Box<dyn Program>, Verification), DiffError> {
    let taps = program.taps().ok_or(DiffError::NoTaps { device: "the program" })?;
    let lineage = Lineage::of_program(model.graph(), options.compile, taps.graph())?;
    let checkable = |op: &Op| match op {
        // What a recurrent state was before the step is not kept.
        Op::ShortConv { .. } | Op::Recurrence(_) | Op::Sample => false,
        op => !op.is_source(),
    };
    let nodes = lineage.carried.graph.nodes().iter().enumerate();
    let turns = nodes.filter(|(_, node)| checkable(&node.op)).map(|(id, _)| NodeId(id)).collect();
    let log = Verification::default();
    let verified = Verified {
        checker: Checker::of(&lineage, options.compile.kv, options.products)?,
        program,
        lineage,
        turns,
        next: 0,
        every: options.every.max(1) as u64,
        steps: 0,
        under_way: VecDeque::new(),
        held: None,
        lost: None,
        chosen: Vec::new(),
        log: log.clone(),
    };
    Ok((Box::new(verified), log))
}

/// A step that outlives its caller's.
#[derive(Clone, Debug)]
struct OwnStep {
    number: u64,
    tokens: Vec<u32>,
    fed: Vec<Fed>,
    positions: Vec<u32>,
    spans: Vec<OwnSpan>,
    outputs: Vec<u32>,
    choices: Vec<u32>,
    adapters: Vec<f32>,
    wanted: Wanted,
}

#[derive(Clone, Debug)]
struct OwnSpan {
    tokens: Range<usize>,
    past: usize,
    blocks: Vec<u32>,
    near: Vec<u32>,
    slot: u32,
}

impl OwnSpan {
    fn borrow(&self) -> SequenceSpan<'_> {
        let OwnSpan { tokens, past, blocks, near, slot } = self;
        SequenceSpan { tokens: tokens.clone(), past: *past, blocks, near, slot: *slot }
    }
}

impl OwnStep {
    fn new(number: u64, step: &Step<'_>) -> OwnStep {
        let span = |span: &SequenceSpan<'_>| OwnSpan {
            tokens: span.tokens.clone(),
            past: span.past,
            blocks: span.blocks.to_vec(),
            near: span.near.to_vec(),
            slot: span.slot,
        };
        OwnStep {
            number,
            tokens: step.tokens.to_vec(),
            fed: step.fed.to_vec(),
            positions: step.positions.to_vec(),
            spans: step.sequences.iter().map(span).collect(),
            outputs: step.outputs.to_vec(),
            choices: step.choices.to_vec(),
            adapters: step.adapters.to_vec(),
            wanted: step.wanted,
        }
    }

    fn with<T>(&self, run: impl FnOnce(&Step<'_>) -> T) -> T {
        let sequences: Vec<SequenceSpan<'_>> = self.spans.iter().map(OwnSpan::borrow).collect();
        run(&Step {
            tokens: &self.tokens,
            fed: &self.fed,
            positions: &self.positions,
            sequences: &sequences,
            outputs: &self.outputs,
            choices: &self.choices,
            adapters: &self.adapters,
            wanted: self.wanted,
        })
    }

    /// The same with the tokens that the step before has chosen in their places.
    fn resolved(&self, chosen: &[u32]) -> OwnStep {
        let mut own = self.clone();
        for Fed { token, row } in own.fed.drain(..) {
            // Where nothing was chosen the sequence has ended; what stands for its token does not count.
            let id = chosen.get(row as usize).copied().filter(|id| *id != NO_CANDIDATE);
            if let Some(place) = own.tokens.get_mut(token as usize) {
                *place = id.unwrap_or(0);
            }
        }
        own
    }

    /// The same with tables of blocks of its own, from 0 on: the reference keeps the keys and values of this step's sequences alone.
    fn compact(&self, chosen: &[u32]) -> OwnStep {
        let mut own = self.resolved(chosen);
        let mut first = 0;
        for (slot, span) in own.spans.iter_mut().enumerate() {
            let blocks = (span.past + span.tokens.len()).div_ceil(BLOCK_TOKENS) as u32;
            span.blocks = (first..first + blocks).collect();
            (span.near, span.slot) = (Vec::new(), slot as u32);
            first += blocks;
        }
        own
    }
}

/// A program some of whose steps are looked over.
struct Verified {
    program: Box<dyn Program>,
    lineage: Lineage,
    checker: Checker,
    /// What can be computed again, and whose turn it is.
    turns: Vec<NodeId>,
    next: usize,
    every: u64,
    steps: u64,
    /// The steps under way; those that will be looked over as a copy.
    under_way: VecDeque<Option<OwnStep>>,
    /// A step that came while one was under way which must be looked over first: the next writes over what it has made.
    held: Option<OwnStep>,
    /// Why it could not be submitted then.
    lost: Option<BackendError>,
    /// Tokens that the step last finished has chosen.
    chosen: Vec<u32>,
    log: Verification,
}

impl Verified {
    /// Computes the operation whose turn it is again.
    fn look_over(&mut self, step: &OwnStep) {
        for _ in 0..self.turns.len() {
            let Some(node) = self.turns.get(self.next % self.turns.len()).copied() else { return };
            self.next = (self.next + 1) % self.turns.len();
            match self.check(node, step) {
                Ok(checks) if checks.is_empty() => {}
                Ok(checks) => return self.judge(node, step.number, &checks),
                Err(error) => {
                    let op = self.lineage.carried.graph.node(node).op.name();
                    return self.log.warn(format!("`{op}` could not be computed again: {error}"));
                }
            }
        }
    }

    /// None where the step did not compute it.
    fn check(&mut self, node: NodeId, step: &OwnStep) -> Result<Vec<Check>, DiffError> {
        let compact = step.compact(&self.chosen);
        let taps = self.program.taps().ok_or(DiffError::NoTaps { device: "the program" })?;
        let graph = &self.lineage.carried.graph;
        let mut own = StepTaps { values: vec![None; graph.nodes().len()], ..StepTaps::default() };
        for id in graph.node(node).inputs.iter().chain([&node]) {
            own.values[id.0] = taps.value(*id)?;
        }
        let is_write = graph.node(node).op.has_effect();
        if own.values[node.0].is_none() && !is_write {
            return Ok(Vec::new());
        }
        let state = graph.node(node).op.state();
        if let Some(state) = state.filter(|_| is_write) {
            own.kept.resize(state.0 + 1, None);
            let near = self.checker.is_near(state);
            own.kept[state.0] = Some(rows(taps, step, state, near, |span| span.past)?);
        }
        compact.with(|compacted| {
            self.checker.begin_with(compacted, state);
            if let (Some(state), Op::Attention(a)) = (state, graph.node(node).op) {
                let near = self.checker.is_near(state);
                for (real, span) in step.spans.iter().zip(compacted.sequences) {
                    let first = a.window.map_or(0, |window| (span.past + 1).saturating_sub(window));
                    let rows = taps.kept(state, real.borrow().table(near), first..span.kv_len())?;
                    self.checker.give_kept(state, span.blocks, first..span.kv_len(), &rows)?;
                }
            }
            self.checker.check_one(&self.lineage, &own, compacted, node)
        })
    }

    fn judge(&mut self, node: NodeId, step: u64, checks: &[Check]) {
        let passed = checks.iter().all(Check::passed);
        self.log.count(passed);
        let op = self.lineage.carried.graph.node(node).op.name();
        let layer = self.lineage.layer(self.lineage.carried.origins[node.0].node);
        let Some(worst) = checks.iter().max_by(|a, b| a.error.loose.total_cmp(&b.error.loose)) else {
            return;
        };
        let relative = worst.error.largest / worst.error.scale.max(f64::MIN_POSITIVE);
        emit(|| {
            // JSON has no infinity.
            let finite = |x: f64| if x.is_finite() { x } else { f64::MAX };
            let tolerance = if worst.error.loose > 0.0 { relative / worst.error.loose } else { 0.0 };
            Event::Verify(Verify {
                step,
                op: op.into(),
                layer,
                error: finite(relative),
                tolerance: finite(tolerance),
                passed,
            })
        });
        if !passed {
            let text = self.complaint(node, step, worst);
            let done = match self.program.taps().map(|taps| taps.set_aside(node, &text)) {
                Some(Ok(Aside::Done { provider })) => format!("`{provider}` is set aside"),
                Some(Ok(Aside::Kept { provider, reason })) => {
                    format!("`{provider}` goes on serving: {reason}")
                }
                Some(Ok(Aside::Alone)) | None => "there is no other kernel for it".to_owned(),
                Some(Err(error)) => format!("its kernel could not be set aside: {error}"),
            };
            self.log.warn(format!("{text}; {done}"));
        }
    }

    fn complaint(&self, node: NodeId, step: u64, worst: &Check) -> String {
        let graph = &self.lineage.carried.graph;
        let layer = self.lineage.layer(self.lineage.carried.origins[node.0].node);
        let layer = layer.map_or_else(String::new, |layer| format!(" of layer {layer}"));
        let of = match worst.what {
            What::Output => "",
            What::Keys => "the cached keys of ",
            What::Values => "the cached values of ",
        };
        let off = worst.foreign.clone().unwrap_or_else(|| {
            let (loose, found, expected) = (worst.error.loose, worst.error.found, worst.error.expected);
            format!("{found:e} where {expected:e} follows from its inputs, {loose:.0} times what rounding explains")
        });
        format!("{of}`{}`{layer} was wrong in step {step}: {off}", graph.node(node).op.name())
    }
}

/// Rows of the step's tokens as they lie in the cache.
fn rows(
    taps: &mut dyn Taps,
    step: &OwnStep,
    state: StateId,
    near: bool,
    from: impl Fn(&SequenceSpan<'_>) -> usize,
) -> Result<KvRows, BackendError> {
    let mut all = KvRows::default();
    for span in step.spans.iter().map(OwnSpan::borrow) {
        let rows = taps.kept(state, span.table(near), from(&span)..span.kv_len())?;
        all.keys.extend(rows.keys);
        all.values.extend(rows.values);
    }
    Ok(all)
}

impl Program for Verified {
    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        let number = self.steps + 1;
        let is_due = number.is_multiple_of(self.every);
        if self.under_way.iter().any(Option::is_some) && self.held.is_none() && self.lost.is_none() {
            self.held = Some(OwnStep::new(number, step));
        } else {
            self.program.submit(step)?;
        }
        self.steps = number;
        self.under_way.push_back(is_due.then(|| OwnStep::new(number, step)));
        Ok(())
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        let due = self.under_way.pop_front().flatten();
        let finished = match self.lost.take() {
            Some(error) => Err(error),
            None => self.program.finish(),
        };
        if finished.is_err() {
            self.under_way.clear();
            self.held = None;
            return finished;
        }
        if let Some(step) = due {
            self.look_over(&step);
        }
        self.chosen.clear();
        self.chosen.extend_from_slice(self.program.ids(CHOSEN));
        if let Some(held) = self.held.take() {
            self.lost = held.resolved(&self.chosen).with(|step| self.program.submit(step)).err();
        }
        finished
    }

    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        self.program.reserve(blocks)
    }

    fn reserved(&self) -> Blocks {
        self.program.reserved()
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
        self.program.reserve_slots(slots)
    }

    fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.program.copy_slot(from, to)
    }

    fn step_tokens(&self) -> usize {
        self.program.step_tokens()
    }

    fn depth(&self) -> usize {
        self.program.depth()
    }

    fn output(&self, index: usize) -> &[f32] {
        self.program.output(index)
    }

    fn ids(&self, index: usize) -> &[u32] {
        self.program.ids(index)
    }

    fn memory(&self) -> ProgramMemory {
        self.program.memory()
    }

    fn kernels(&self) -> Vec<KernelCount> {
        self.program.kernels()
    }

    fn profile(&mut self, on: bool) {
        self.program.profile(on);
    }

    fn profile_every(&self) -> u64 {
        self.program.profile_every()
    }

    fn caches(&self) -> Vec<CacheUse> {
        self.program.caches()
    }

    fn pools(&self) -> Vec<PoolUse> {
        self.program.pools()
    }

    fn taps(&mut self) -> Option<&mut dyn Taps> {
        self.program.taps()
    }
}
