//! The tables know every operation, and find mistakes: a device that makes one in every case fails every case.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use metallic_core::quant::{dequantize, quantize};
use metallic_core::reference::Reference;
use metallic_core::tensor::{Evaluated, Operand, TensorDevice, TensorMemory};
use metallic_core::{
    Backend, BackendError, Blocks, CompileOptions, DType, DeviceInfo, Graph, Op, Program, ProgramMemory,
    RunStats, Step,
};

use crate::cases::{self, Case, Exactness, Outcome, RunsAs};
use crate::{Failure, Plan, Results, copies, eager, graphs, run_all};

/// How a device goes wrong after the reference has computed for it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// The last element of a result is off by a fifth.
    LastElement,
    /// Results are missing.
    Nothing,
    /// The byte after an operand is written.
    Beyond,
    /// Nothing was dispatched.
    Elsewhere,
    /// It refuses what it is given.
    Unable,
}

struct Wrong {
    reference: Reference,
    mistake: Mistake,
    info: DeviceInfo,
}

impl Wrong {
    fn new(mistake: Mistake) -> Wrong {
        let reference = Reference::new();
        Wrong { mistake, info: reference.info().clone(), reference }
    }
}

impl Backend for Wrong {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn compile(&self, graph: &Graph, options: CompileOptions) -> Result<Box<dyn Program>, BackendError> {
        if self.mistake == Mistake::Unable {
            let reason = "it cannot".to_owned();
            return Err(BackendError::Unsupported { device: "wrong", op: "any", reason });
        }
        let program = self.reference.compile(graph, options)?;
        Ok(Box::new(WrongProgram { program, mistake: self.mistake, floats: Vec::new(), ids: Vec::new() }))
    }

    fn tensors(&self) -> Arc<dyn TensorDevice> {
        Arc::new(WrongTensors { reference: self.reference.tensors(), mistake: self.mistake })
    }
}

/// A number that no tolerance lets pass for `x`.
fn off(x: f32) -> f32 {
    if x.is_finite() { x + (x.abs() * 0.2 + 0.2).copysign(x) } else { 7.0 }
}

struct WrongProgram {
    program: Box<dyn Program>,
    mistake: Mistake,
    floats: Vec<f32>,
    ids: Vec<u32>,
}

impl Program for WrongProgram {
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

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        self.program.submit(step)
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        let stats = self.program.finish()?;
        (self.floats, self.ids) = (self.program.output(0).to_vec(), self.program.ids(0).to_vec());
        if self.mistake == Mistake::Nothing {
            (self.floats, self.ids) = (Vec::new(), Vec::new());
        }
        self.floats.iter_mut().rev().take(1).for_each(|x| *x = off(*x));
        self.ids.iter_mut().rev().take(1).for_each(|id| *id ^= 1);
        Ok(stats)
    }

    fn output(&self, _: usize) -> &[f32] {
        &self.floats
    }

    fn ids(&self, _: usize) -> &[u32] {
        &self.ids
    }

    fn memory(&self) -> ProgramMemory {
        self.program.memory()
    }
}

struct WrongTensors {
    reference: Arc<dyn TensorDevice>,
    mistake: Mistake,
}

/// Changes the element that ends at `end`.
fn spoil(memory: &dyn TensorMemory, end: usize, dtype: DType) -> Result<(), BackendError> {
    let mut bytes = vec![0; dtype.block_bytes()];
    memory.read(end - bytes.len(), &mut bytes)?;
    if dtype.is_float() {
        let mut value = [0.0];
        dequantize(dtype, &bytes, &mut value).expect("a float");
        quantize(dtype, &[off(value[0])], &mut bytes).expect("a float");
    } else {
        bytes[0] ^= 1;
    }
    memory.write(end - bytes.len(), &bytes)
}

impl TensorDevice for WrongTensors {
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError> {
        self.reference.allocate(bytes)
    }

    fn owns(&self, memory: &dyn TensorMemory) -> bool {
        self.reference.owns(memory)
    }

    fn copy(&self, from: Operand<'_>, to: Operand<'_>) -> Result<RunStats, BackendError> {
        let mut stats = RunStats { dispatches: 1, ..RunStats::default() };
        if self.mistake != Mistake::Nothing {
            stats = self.reference.copy(from, to)?;
        }
        let end = to.view.byte_range().end;
        match self.mistake {
            Mistake::LastElement => spoil(to.memory.as_ref(), end, to.view.dtype())?,
            Mistake::Beyond => to.memory.write(end, &[0])?,
            Mistake::Elsewhere => stats.dispatches = 0,
            Mistake::Nothing | Mistake::Unable => {}
        }
        Ok(stats)
    }

    fn eval(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
        let mut done = self.reference.eval(op, inputs)?;
        match self.mistake {
            Mistake::LastElement => spoil(done.memory.as_ref(), done.memory.len(), done.ty.dtype)?,
            Mistake::Beyond => inputs[0].memory.write(inputs[0].view.byte_range().end, &[0])?,
            Mistake::Elsewhere => done.stats.dispatches = 0,
            Mistake::Nothing => done.memory = self.allocate(0)?,
            Mistake::Unable => {}
        }
        Ok(done)
    }
}

const IN_TENSORS: [Mistake; 4] =
    [Mistake::LastElement, Mistake::Nothing, Mistake::Beyond, Mistake::Elsewhere];

#[test]
fn every_operation_has_a_case() {
    let mut found = BTreeSet::new();
    for case in cases::all() {
        for graph in case.forms().unwrap() {
            found.extend(graph.nodes().iter().map(|node| cases::kind(&node.op)));
        }
    }
    let missing: Vec<_> = cases::KINDS.iter().filter(|kind| !found.contains(**kind)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

#[test]
fn the_reference_passes_its_own_tables() {
    let report = run_all(&Reference::new(), &Plan::default());
    let passed = report.passed;
    report.expect();
    assert!(passed > 3000, "{passed}");
    // The wider tolerance of backends that round must prove something still.
    for exactness in [Exactness::Rounded, Exactness::Units] {
        let differs = |case: &&Case| case.tolerance(exactness) != case.tolerance(Exactness::Exact);
        let plan = Plan { exactness, walks: &[1], ..Plan::default() };
        for case in cases::all().iter().filter(|case| case.place == RunsAs::Anywhere).filter(differs) {
            graphs::check(&Reference::new(), case, &plan).unwrap_or_else(|e| panic!("{}: {e:?}", case.name));
        }
    }
    for case in cases::long() {
        let found = graphs::check_long(&Reference::new(), &case, Exactness::Units);
        found.unwrap_or_else(|e| panic!("{}: {e:?}", case.name));
    }
}

#[test]
fn every_program_finds_every_mistake() {
    for mistake in [Mistake::LastElement, Mistake::Nothing] {
        let wrong = Wrong::new(mistake);
        for case in cases::all().iter().filter(|case| case.place == RunsAs::Anywhere) {
            let found = graphs::check(&wrong, case, &Plan::default());
            assert!(matches!(found, Err(Failure::Wrong(_))), "{} passes with {mistake:?}", case.name);
        }
    }
}

#[test]
fn every_single_operation_finds_every_mistake() {
    let (mut seen, mut count) = (BTreeSet::new(), 0);
    for case in cases::all() {
        for single in eager::singles(&case, &Plan::default(), &mut seen).unwrap() {
            // A result without a dispatch, or without an element, is no mistake where there is nothing to compute.
            let mistakes =
                if single.outcome == Some(Outcome::Zeros) { &[Mistake::Beyond][..] } else { &IN_TENSORS };
            for mistake in mistakes {
                let found = eager::check(&Wrong::new(*mistake), &single);
                assert!(found.is_err(), "{} passes with {mistake:?}", single.name);
            }
            count += 1;
        }
    }
    eprintln!("{count} operations");
}

#[test]
fn every_copy_finds_every_mistake() {
    for mistake in IN_TENSORS {
        let wrong = Wrong::new(mistake);
        for case in copies::all().iter().filter(|case| !case.to.is_empty()) {
            assert!(copies::check(&wrong, case).is_err(), "{} passes with {mistake:?}", case.name);
        }
    }
}

#[test]
fn what_is_unread_passes_however_wrong_and_fails_where_it_is_refused() {
    let plan = Plan { only: "softcap", results: Results::Unread, ..Plan::default() };
    let wrong = Wrong::new(Mistake::LastElement);
    for results in [Results::Unread, Results::Compared] {
        let report = run_all(&wrong, &Plan { results, ..plan });
        assert_eq!(report.failed.is_empty(), results == Results::Unread, "{report:?}");
    }
    let report = graphs::run(&Wrong::new(Mistake::Unable), &plan);
    assert_eq!((report.passed, report.failed.len()), (0, 3), "{report:?}");
    assert!(report.failed.iter().all(|case| case.contains("it cannot")), "{report:?}");
}

#[test]
fn a_refusal_fails_and_says_why() {
    let unable = Wrong::new(Mistake::Unable);
    let plan = Plan { only: "softcap", ..Plan::default() };
    let told = std::cell::RefCell::new(Vec::new());
    let each = |name: &str, result: &Result<(), Failure>| {
        told.borrow_mut().push((name.to_owned(), result.as_ref().unwrap_err().to_string()));
    };
    let report = graphs::run(&unable, &Plan { each: &each, ..plan });
    let told = told.into_inner();
    assert!(
        told.len() == 3
            && told.iter().all(|(name, why)| name.contains("softcap") && why.contains("it cannot"))
    );
    assert_eq!((report.passed, report.failed.len()), (0, 3), "{report:?}");
    assert!(report.failed[0].contains("it cannot"), "{report:?}");
}

#[test]
fn a_backend_that_hands_out_the_references_tensors_is_found() {
    let mut wrong = Wrong::new(Mistake::Unable);
    wrong.info.kind = "gpu";
    let report = eager::run(&wrong, &Plan::default());
    assert_eq!(report.failed, ["tensors: the tensors of gpu are those of the reference"]);
}

#[test]
fn names_tell_cases_apart() {
    let names = cases::all().into_iter().map(|case| case.name);
    let names: Vec<String> = names.chain(copies::all().into_iter().map(|case| case.name)).collect();
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
}
