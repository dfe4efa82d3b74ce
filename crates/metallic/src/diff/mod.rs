//! Where two ways of computing part: the first operation whose result does not follow from its inputs.
//!
//! Both ways run the same tokens, and every operation's result is read as it is made. Each result is then computed again by the
//! reference *from the inputs that side had*, which tells what an operation introduces from what it inherits, and is held to
//! [what rounding explains](metallic_core::reference). Fused operations are computed again part by part of the graph before fusion.
//!
//! ```no_run
//! use metallic::Model;
//! use metallic::diff::{Run, Way, diff};
//!
//! let model = Model::open("model.gguf".as_ref())?;
//! let (a, b): (Way, Way) = ("cpu,exact".parse()?, "soft".parse()?);
//! let (a, b) = (a.open()?, b.open()?);
//! let report = diff(&a.side(&model), &b.side(&model), &Run { tokens: vec![1, 2, 3], steps: 2 })?;
//! println!("{}", report.verdict);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bisect;
mod check;
mod figures;
mod lineage;
mod record;
mod report;
mod saved;
mod tally;
mod verify;
mod way;
mod weights;

use metallic_core::reference::ProductInputs;
use metallic_core::{Backend, BackendError, CompileOptions, DType};
use serde::{Deserialize, Serialize};

use crate::model::{Model, ModelError};
use check::{Check, Checker};
use lineage::Lineage;
use record::{Fed, Recorder, Stage, StepTaps};
use tally::Tally;

pub use figures::{CLASSES, Deviation, Figures, Place};
pub use report::{Explanation, Finding, OpReport, Report, Verdict};
pub use saved::{SAVED_VERSION, SaveOptions, SavedError, SavedRun, save, saved_bytes};
pub use verify::{Verification, VerifyCounts, VerifyOptions, verified};
pub(crate) use way::products;
pub use way::{OpenWay, Way, WayError};

/// What two ways cannot be compared for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum DiffError {
    /// A device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A model cannot be made ready.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A folder of saved values cannot be used.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// The two models compute other things.
    #[error(
        "the models are not of the same architecture: node {node} is {a} in the first and {b} in the second"
    )]
    Models { node: usize, a: String, b: String },
    /// The program cannot show what its operations make.
    #[error("`{device}` does not show what its operations make")]
    NoTaps { device: &'static str },
    /// The program carries out another graph than the model's.
    #[error("the program carries out a graph of {nodes} nodes, which is not the model's, fused or not")]
    Program { nodes: usize },
    /// Keys and values of a layer were not read.
    #[error("the keys and values of layer state {state} were not read")]
    NotKept { state: usize },
    /// There is nothing to run, or more than the model takes.
    #[error("{tokens} tokens and {steps} steps after them; the model takes 1 to {context} in all")]
    Tokens { tokens: usize, steps: usize, context: usize },
    /// A token is not in the vocabulary.
    #[error("token {index} is {id}, the vocabulary ends at {vocab}")]
    Vocabulary { index: usize, id: u32, vocab: usize },
}

/// One way of computing, opened.
#[derive(Clone)]
pub struct Side<'a> {
    /// What it is called in reports.
    pub name: String,
    /// The model.
    pub model: &'a Model,
    /// Where it runs.
    pub backend: &'a dyn Backend,
    /// How it is compiled; taps are asked for in any case.
    pub options: CompileOptions,
    /// What its products round their inputs to by design.
    pub products: ProductInputs,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The prompt, computed in one step.
    pub tokens: Vec<u32>,
    /// Steps of one token after it, which both sides take from the first one's logits.
    pub steps: usize,
}

impl Run {
    fn check(&self, model: &Model) -> Result<usize, DiffError> {
        let (tokens, context, vocab) = (self.tokens.len(), model.config().context, model.config().vocab);
        let outside = self.tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab);
        if let Some((index, &id)) = outside {
            return Err(DiffError::Vocabulary { index, id, vocab });
        }
        match tokens.checked_add(self.steps) {
            Some(all) if tokens > 0 && all <= context => Ok(all),
            _ => Err(DiffError::Tokens { tokens, steps: self.steps, context }),
        }
    }
}

/// Which result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Its value.
    Output,
    /// The keys it has put into the cache.
    Keys,
    /// The values it has put into the cache.
    Values,
}

/// Runs both sides on the same tokens and compares every operation.
pub fn diff(a: &Side<'_>, b: &Side<'_>, run: &Run) -> Result<Report, DiffError> {
    let capacity = run.check(a.model)?;
    lineage::check_alike(a.model.graph(), b.model.graph())?;
    let mut recorders = [Recorder::new(a, capacity)?, Recorder::new(b, capacity)?];
    let [of_a, of_b] = &mut recorders;
    let plan = Plan { fixed: None, prompt: &run.tokens, steps: run.steps };
    let players = [Player::Live(of_a), Player::Live(of_b)];
    Comparison::new([a, b], players, capacity)?.run(&plan)
}

/// Compares a run with values that were saved, maybe on another machine; they are the second side. Tokens and steps are those of the
/// saved run.
pub fn diff_saved(a: &Side<'_>, saved: &mut SavedRun) -> Result<Report, DiffError> {
    saved.check_model(a.model)?;
    let (steps, way) = (saved.steps().to_vec(), saved.way()?);
    let prompt = steps.first().cloned().unwrap_or_default();
    let run = Run { steps: steps.len().saturating_sub(1), tokens: prompt };
    let capacity = run.check(a.model)?;
    let b = Side { name: saved.name(), options: way.options(), products: way.products(), ..a.clone() };
    let mut recorder = Recorder::new(a, capacity)?;
    let lineage = Lineage::new(a.model.graph(), b.options, saved.is_fused())?;
    saved.check_nodes(lineage.carried.graph.nodes().len())?;
    let plan = Plan { fixed: Some(&steps), prompt: &run.tokens, steps: run.steps };
    let players = [Player::Live(&mut recorder), Player::Saved(saved, Box::new(lineage))];
    Comparison::new([a, &b], players, capacity)?.run(&plan)
}

/// Which tokens run.
struct Plan<'a> {
    /// Those of every step, where they are known before.
    fixed: Option<&'a [Vec<u32>]>,
    prompt: &'a [u32],
    steps: usize,
}

/// Who says what operations have made.
enum Player<'a> {
    Live(&'a mut Recorder),
    Saved(&'a mut SavedRun, Box<Lineage>),
}

impl Player<'_> {
    fn lineage(&self) -> &Lineage {
        match self {
            Player::Live(recorder) => &recorder.lineage,
            Player::Saved(_, lineage) => lineage,
        }
    }

    fn stored(&self) -> DType {
        match self {
            Player::Live(_) => DType::F32,
            Player::Saved(saved, _) => saved.dtype(),
        }
    }

    fn step(&mut self, index: usize, fed: &Fed) -> Result<StepTaps, DiffError> {
        match self {
            Player::Live(recorder) => recorder.run(fed),
            Player::Saved(saved, _) => Ok(saved.step(index)?),
        }
    }
}

struct Comparison<'a> {
    sides: [&'a Side<'a>; 2],
    players: [Player<'a>; 2],
    checkers: [Checker; 2],
    stage: Stage,
    tally: Tally,
}

impl<'a> Comparison<'a> {
    fn new(
        sides: [&'a Side<'a>; 2],
        players: [Player<'a>; 2],
        capacity: usize,
    ) -> Result<Comparison<'a>, DiffError> {
        let checker = |side: usize| {
            let player: &Player<'_> = &players[side];
            Checker::new(sides[side], player.lineage(), player.stored())
        };
        let checkers = [checker(0)?, checker(1)?];
        let stage = Stage::new(sides[0].model, capacity);
        Ok(Comparison { sides, players, checkers, stage, tally: Tally::default() })
    }

    fn run(mut self, plan: &Plan<'_>) -> Result<Report, DiffError> {
        self.tally.weights = weights::compare(self.sides[0].model.graph(), self.sides[1].model.graph())?;
        let mut fed = Fed { tokens: plan.prompt.to_vec(), past: 0 };
        for index in 0..=plan.steps {
            let next = self.step(index, &fed)?;
            // What comes after inherits it.
            if self.tally.has_failed() {
                break;
            }
            let known = plan.fixed.and_then(|steps| steps.get(index + 1).cloned());
            fed = Fed { past: fed.past + fed.tokens.len(), tokens: known.unwrap_or_else(|| vec![next]) };
        }
        let bisected = match self.tally.first_failure() {
            Some((side, check)) => self.bisect(side, &check)?,
            None => None,
        };
        let lineages = [self.players[0].lineage(), self.players[1].lineage()];
        Ok(self.tally.report(self.sides, lineages, bisected))
    }

    /// Runs and compares one step; the token that the first side would choose next.
    fn step(&mut self, index: usize, fed: &Fed) -> Result<u32, DiffError> {
        let taps = [self.players[0].step(index, fed)?, self.players[1].step(index, fed)?];
        let mut checks: [Vec<Check>; 2] = Default::default();
        for side in 0..2 {
            let (checker, lineage) = (&mut self.checkers[side], self.players[side].lineage());
            let checked =
                |step: &metallic_core::Step<'_>| checker.check(lineage, &taps[side], step, |_| true);
            checks[side] = self.stage.with(fed, checked)?;
        }
        let lineages = [self.players[0].lineage(), self.players[1].lineage()];
        self.tally.add(index, fed, lineages, &taps, checks);
        Ok(best(&taps[0].logits))
    }

    /// Looks into a fused operation that failed: which of its parts does, where they run one by one on the same device.
    fn bisect(&self, side: usize, failed: &tally::Failure) -> Result<Option<String>, DiffError> {
        let lineage = self.players[side].lineage();
        if lineage.carried.origins[failed.check.node.0].rule.is_none() {
            return Ok(None);
        }
        match self.players[side] {
            Player::Live(_) => bisect::bisect(self.sides[side], lineage, failed, &self.tally.fed).map(Some),
            Player::Saved(..) => {
                Ok(Some("its parts cannot be run one by one: they were saved elsewhere".to_owned()))
            }
        }
    }
}

/// The index of the largest number.
fn best(logits: &[f32]) -> u32 {
    let ranked = logits.iter().enumerate().filter(|(_, x)| !x.is_nan());
    ranked.max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(index, _)| index as u32)
}
