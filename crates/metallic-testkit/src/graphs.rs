//! The table as programs: steps of awkward sizes, plain and fused, in every type of activations.

use metallic_core::reference::Reference;
use metallic_core::{
    BLOCK_TOKENS, Backend, BackendError, CompileOptions, DType, Graph, Op, Program, SequenceSpan,
    StateLayout, Step, Wanted, rewrite,
};

use crate::cases::{self, Case, Exactness, RunsAs, VOCAB};
use crate::compare;
use crate::random::Random;
use crate::{Failure, Plan, Report, Results, Tolerance};

/// The steps of the first of two sequences; the second takes two tokens in each. One token and many, ragged tiles, a past
/// that crosses the border of a block in large steps and in small ones.
pub const WALKS: [&[usize]; 4] = [&[1, 1, 33], &[40, 1, 5], &[3, 29, 1], &[29, 1, 1, 1]];
/// A context that a device may split.
const LONG: &[usize] = &[1090, 1, 3];

/// Recurrent states of the two sequences, and of the one the first branches to.
const SLOTS: [u32; 3] = [2, 0, 1];

/// What a step has given.
enum Output {
    Floats(Vec<f32>),
    Ids(Vec<u32>),
}

/// Which results of a walk are asked for.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    /// Those of every step.
    All,
    /// All but those of the first step, which must fill what is kept nevertheless.
    AllButFirst,
}

/// A program and what is known of it.
struct Walker {
    program: Box<dyn Program>,
    has_choices: bool,
    recurrent: bool,
    adapters: usize,
    ids: bool,
}

impl Walker {
    fn new(backend: &dyn Backend, graph: &Graph, options: CompileOptions) -> Result<Walker, BackendError> {
        let program = backend.compile(graph, options)?;
        let has_choices = graph.nodes().iter().any(|node| node.op == Op::Choices);
        let recurrent = StateLayout::of(graph, options.kv)?.is_recurrent();
        let ids = graph.node(graph.outputs()[0]).ty.dtype == DType::U32;
        Ok(Walker { program, has_choices, recurrent, adapters: graph.adapters(), ids })
    }

    fn walk(&mut self, steps: &[usize], asked: Asked) -> Result<Vec<Output>, BackendError> {
        let capacity = (steps.iter().sum::<usize>() + 2 * steps.len()).div_ceil(BLOCK_TOKENS) as u32;
        // Blocks in no particular order.
        let first: Vec<u32> = (0..capacity).rev().map(|i| 2 * i + 1).collect();
        let second: Vec<u32> = (0..capacity).map(|i| 2 * i).collect();
        // Layers with a window have others, where they have blocks of their own: as many, and one.
        let [near_first, near_second] = [&first, &second].map(|table| {
            table.iter().map(|block| (block + capacity) % (2 * capacity) + 1).collect::<Vec<u32>>()
        });
        self.program.reserve_blocks(2 * capacity as usize + 1)?;
        self.program.reserve_slots(SLOTS.len())?;
        let (mut past, mut random, mut slot) = ((0, 0), Random::new(3), SLOTS[0]);
        let mut results = Vec::new();
        for (index, len) in steps.iter().enumerate() {
            let n = len + 2;
            let tokens: Vec<u32> = (0..n).map(|_| random.below(VOCAB) as u32).collect();
            let positions: Vec<u32> =
                (past.0..past.0 + len).chain(past.1..past.1 + 2).map(|p| p as u32).collect();
            if self.recurrent && index + 1 == steps.len() {
                self.program.copy_slot(slot, SLOTS[2])?;
                slot = SLOTS[2];
            }
            let sequences = [
                SequenceSpan { tokens: 0..*len, past: past.0, blocks: &first, near: &near_first, slot },
                SequenceSpan {
                    tokens: *len..n,
                    past: past.1,
                    blocks: &second,
                    near: &near_second,
                    slot: SLOTS[1],
                },
            ];
            let outputs = [n as u32 - 1, 0, (n / 2) as u32];
            let choices = if self.has_choices { cases::packed(outputs.len(), index) } else { Vec::new() };
            let quiet = asked == Asked::AllButFirst && index == 0;
            self.program.run(&Step {
                tokens: &tokens,
                positions: &positions,
                sequences: &sequences,
                outputs: &outputs,
                choices: &choices,
                adapters: &cases::shares(n, self.adapters),
                wanted: if quiet { Wanted::NONE } else { Wanted::ALL },
                ..Step::default()
            })?;
            results.push(if self.ids {
                Output::Ids(self.program.ids(0).to_vec())
            } else {
                Output::Floats(self.program.output(0).to_vec())
            });
            past = (past.0 + len, past.1 + 2);
        }
        Ok(results)
    }
}

/// Runs a case on a backend, plain and fused, and compares every result of every step with the reference.
pub fn check(backend: &dyn Backend, case: &Case, plan: &Plan<'_>) -> Result<(), Failure> {
    let options = CompileOptions::kv(case.kv);
    let mut reference = Walker::new(&Reference::new(), &case.graph, options)?;
    let mut forms = Vec::new();
    for graph in case.forms()? {
        forms.push(Walker::new(backend, &graph, options)?);
    }
    for &index in plan.walks {
        let steps = WALKS[index];
        let expected = reference.walk(steps, Asked::All)?;
        for found in &mut forms {
            let asked = if index == 1 { Asked::AllButFirst } else { Asked::All };
            let found = found.walk(steps, asked)?;
            compare(&expected, &found, case.tolerance(plan.exactness), asked)?;
        }
    }
    Ok(())
}

/// The same with activations of another type: no farther from the exact result than twice what rounding makes of it.
pub fn check_rounded(backend: &dyn Backend, case: &Case, plan: (Exactness, DType)) -> Result<(), Failure> {
    let ((exactness, dtype), steps) = (plan, WALKS[1]);
    let options = CompileOptions { activations: dtype, ..CompileOptions::kv(case.kv) };
    let reference = |options| Walker::new(&Reference::new(), &case.widened, options)?.walk(steps, Asked::All);
    let (exact, rounded) = (reference(CompileOptions::kv(case.kv))?, reference(options)?);
    let mut moved = 0f32;
    for pair in exact.iter().zip(&rounded) {
        if let (Output::Floats(a), Output::Floats(b)) = pair {
            let finite = a.iter().zip(b).filter(|(a, b)| a.is_finite() && b.is_finite());
            moved = finite.fold(moved, |moved, (a, b)| moved.max((a - b).abs()));
        }
    }
    let Tolerance { absolute, relative } = case.tolerance(exactness).stored_as(dtype);
    let tolerance = Tolerance { absolute: absolute + 2.0 * moved, relative };
    // What is chosen among rounded numbers is another thing than what is chosen among exact ones.
    let expected = if matches!(exact[0], Output::Ids(_)) { rounded } else { exact };
    let fused = rewrite::fuse(&case.widened).map_err(|e| e.to_string())?;
    let mut forms = Vec::new();
    for graph in [&case.widened, &fused] {
        forms.push(Walker::new(backend, graph, options)?);
    }
    for found in &mut forms {
        compare(&expected, &found.walk(steps, Asked::All)?, tolerance, Asked::All)?;
    }
    Ok(())
}

/// As [`check`], over contexts of more than a thousand tokens.
pub fn check_long(backend: &dyn Backend, case: &Case, exactness: Exactness) -> Result<(), Failure> {
    let options = CompileOptions::kv(case.kv);
    let expected = Walker::new(&Reference::new(), &case.graph, options)?.walk(LONG, Asked::All)?;
    let found = Walker::new(backend, &case.graph, options)?.walk(LONG, Asked::All)?;
    Ok(compare(&expected, &found, case.tolerance(exactness), Asked::All)?)
}

/// Walks a program of each graph on a backend that computes nothing, over all steps: each is planned and submitted.
fn plan_only(
    backend: &dyn Backend,
    graphs: &[Graph],
    options: CompileOptions,
    walks: &[&[usize]],
) -> Result<(), Failure> {
    for graph in graphs {
        let mut walker = Walker::new(backend, graph, options)?;
        for steps in walks {
            walker.walk(steps, Asked::All)?;
        }
    }
    Ok(())
}

fn compare(expected: &[Output], found: &[Output], tolerance: Tolerance, asked: Asked) -> Result<(), String> {
    let mut peak = None;
    for (step, pair) in expected.iter().zip(found).enumerate() {
        let quiet = asked == Asked::AllButFirst && step == 0;
        let same = match pair {
            (Output::Floats(_), Output::Floats(found)) if quiet => compare::floats(&[], found, tolerance),
            (Output::Ids(_), Output::Ids(found)) if quiet => compare::ids(&[], found),
            (Output::Floats(expected), Output::Floats(found)) => {
                peak = Some(peak.unwrap_or(0f32).max(compare::peak(expected)));
                compare::floats(expected, found, tolerance)
            }
            (Output::Ids(expected), Output::Ids(found)) => compare::ids(expected, found),
            _ => Err("indices where there should be numbers, or the reverse".to_owned()),
        };
        same.map_err(|what| format!("step {step}: {what}"))?;
    }
    peak.map_or(Ok(()), |peak| compare::proves(peak, tolerance))
}

/// The programs that [`check`] and [`check_rounded`] run, without results.
fn plan_case(
    backend: &dyn Backend,
    case: &Case,
    (plan, activations): (&Plan<'_>, DType),
) -> Result<(), Failure> {
    let options = CompileOptions { activations, ..CompileOptions::kv(case.kv) };
    if activations == DType::F32 {
        let walks: Vec<&[usize]> = plan.walks.iter().map(|index| WALKS[*index]).collect();
        return plan_only(backend, &case.forms()?, options, &walks);
    }
    let fused = rewrite::fuse(&case.widened).map_err(|e| e.to_string())?;
    plan_only(backend, &[case.widened.clone(), fused], options, &[WALKS[1]])
}

/// Every case that has a place in a program.
pub fn run(backend: &dyn Backend, plan: &Plan<'_>) -> Report {
    let mut report = Report::default();
    for case in cases::all().iter().filter(|case| case.place == RunsAs::Anywhere) {
        for dtype in case.activations {
            let name = match dtype {
                DType::F32 => case.name.clone(),
                dtype => format!("{}, activations {dtype}", case.name),
            };
            if !name.contains(plan.only) {
                continue;
            }
            // Rounded ones go the second walk.
            if *dtype != DType::F32 && !plan.walks.contains(&1) {
                continue;
            }
            let result = match (plan.results, *dtype) {
                (Results::Compared, DType::F32) => check(backend, case, plan),
                (Results::Compared, dtype) => check_rounded(backend, case, (plan.exactness, dtype)),
                (Results::Unread, dtype) => plan_case(backend, case, (plan, dtype)),
            };
            report.add(plan, &name, result);
        }
    }
    report
}

/// Every case of a context that a device may split.
pub fn run_long(backend: &dyn Backend, plan: &Plan<'_>) -> Report {
    let mut report = Report::default();
    for case in cases::long().iter().filter(|case| case.name.contains(plan.only)) {
        let result = match plan.results {
            Results::Compared => check_long(backend, case, plan.exactness),
            Results::Unread => {
                let options = CompileOptions::kv(case.kv);
                plan_only(backend, std::slice::from_ref(&case.graph), options, &[LONG])
            }
        };
        report.add(plan, &case.name, result);
    }
    report
}
