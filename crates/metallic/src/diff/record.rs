//! What every operation of a program makes of some tokens.

use metallic_core::{
    BLOCK_TOKENS, CompileOptions, KvRows, NodeId, Program, SequenceSpan, StateId, StateLayout, Step, Tapped,
    Wanted,
};

use super::lineage::Lineage;
use super::{DiffError, Side};
use crate::model::{HIDDEN, LOGITS, Model};

/// Everything a step has made, by node of the graph that is carried out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepTaps {
    pub(crate) values: Vec<Option<Tapped>>,
    /// The keys and values of the step's tokens as they lie in the cache, by state.
    pub(crate) kept: Vec<Option<KvRows>>,
    /// The logits after the last token.
    pub(crate) logits: Vec<f32>,
}

/// The tokens of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fed {
    pub(crate) tokens: Vec<u32>,
    pub(crate) past: usize,
}

/// One sequence that has a program to itself: what a step needs besides its tokens.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    blocks: Vec<u32>,
    shares: Vec<f32>,
    positions: Vec<u32>,
    adapters: Vec<f32>,
    outputs: [u32; 1],
}

impl Stage {
    /// For so many tokens in all.
    pub(crate) fn new(model: &Model, capacity: usize) -> Stage {
        Stage {
            blocks: (0..capacity.div_ceil(BLOCK_TOKENS) as u32).rev().collect(),
            shares: model.adapters().iter().map(|adapter| adapter.scale).collect(),
            positions: Vec::new(),
            adapters: Vec::new(),
            outputs: [0],
        }
    }

    /// Calls `run` with the step of these tokens.
    pub(crate) fn with<T>(&mut self, fed: &Fed, run: impl FnOnce(&Step<'_>) -> T) -> T {
        let len = fed.tokens.len();
        self.positions = (fed.past..fed.past + len).map(|position| position as u32).collect();
        self.adapters = (0..len).flat_map(|_| self.shares.iter().copied()).collect();
        self.outputs = [len.saturating_sub(1) as u32];
        let span = SequenceSpan { tokens: 0..len, past: fed.past, blocks: &self.blocks, near: &[], slot: 0 };
        run(&Step {
            tokens: &fed.tokens,
            positions: &self.positions,
            sequences: &[span],
            outputs: &self.outputs,
            adapters: &self.adapters,
            wanted: Wanted::only(LOGITS).and(HIDDEN),
            ..Step::default()
        })
    }
}

/// A program whose operations can be seen.
pub(crate) struct Recorder {
    program: Box<dyn Program>,
    pub(crate) lineage: Lineage,
    layout: StateLayout,
    stage: Stage,
}

impl Recorder {
    pub(crate) fn new(side: &Side<'_>, capacity: usize) -> Result<Recorder, DiffError> {
        let options = CompileOptions { taps: true, ..side.options };
        let mut program = side.model.compile(side.backend, options)?;
        let stage = Stage::new(side.model, capacity);
        program.reserve_blocks(stage.blocks.len())?;
        program.reserve_slots(1)?;
        let device = side.backend.info().kind;
        let taps = program.taps().ok_or(DiffError::NoTaps { device })?;
        let lineage = Lineage::of_program(side.model.graph(), options, taps.graph())?;
        let layout = side.model.states(side.options.kv)?;
        Ok(Recorder { program, lineage, layout, stage })
    }

    /// Runs a step and reads what it has made.
    pub(crate) fn run(&mut self, fed: &Fed) -> Result<StepTaps, DiffError> {
        let program = &mut self.program;
        self.stage.with(fed, |step| program.run(step))?;
        let logits = self.program.output(LOGITS).to_vec();
        let taps = self.program.taps().ok_or(DiffError::NoTaps { device: "the program" })?;
        let nodes = self.lineage.carried.graph.nodes().len();
        let values = (0..nodes).map(|id| taps.value(NodeId(id))).collect::<Result<_, _>>()?;
        let mut kept = Vec::new();
        for state in (0..self.layout.states().len()).map(StateId) {
            let positions = fed.past..fed.past + fed.tokens.len();
            let holds = self.layout.kv(state).is_some();
            let rows = holds.then(|| taps.kept(state, &self.stage.blocks, positions)).transpose()?;
            kept.push(rows);
        }
        Ok(StepTaps { values, kept, logits })
    }
}
