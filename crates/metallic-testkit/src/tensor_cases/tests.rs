//! The table finds mistakes: a device that makes one in every case fails every case.

use metallic_core::{DeviceInfo, Graph, KvLayout, Program, RunStats};

use super::*;

/// How a device goes wrong after the reference has computed for it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// Results are not written.
    Nothing,
    /// The last element of the first output is off by a fifth.
    LastElement,
    /// The byte after the last element is written.
    Beyond,
    /// Nothing was dispatched.
    Elsewhere,
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

    fn compile(&self, graph: &Graph, kv: KvLayout) -> Result<Box<dyn Program>, BackendError> {
        self.reference.compile(graph, kv)
    }

    fn tensors(&self) -> Arc<dyn TensorDevice> {
        Arc::new(WrongTensors { reference: self.reference.tensors(), mistake: self.mistake })
    }
}

struct WrongTensors {
    reference: Arc<dyn TensorDevice>,
    mistake: Mistake,
}

impl TensorDevice for WrongTensors {
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError> {
        self.reference.allocate(bytes)
    }

    fn owns(&self, memory: &dyn TensorMemory) -> bool {
        self.reference.owns(memory)
    }

    fn run(
        &self,
        op: &TensorOp,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Result<RunStats, BackendError> {
        let Operand { memory, view } = outputs[0];
        let end = view.byte_range().end;
        match self.mistake {
            Mistake::Nothing => return Ok(RunStats { dispatches: 1, ..RunStats::default() }),
            Mistake::Elsewhere => {
                let stats = self.reference.run(op, inputs, outputs)?;
                return Ok(RunStats { dispatches: 0, ..stats });
            }
            Mistake::LastElement | Mistake::Beyond => {}
        }
        let stats = self.reference.run(op, inputs, outputs)?;
        if self.mistake == Mistake::Beyond {
            memory.write(end, &[0])?;
            return Ok(stats);
        }
        let size = view.dtype().block_bytes();
        let mut bytes = [0; 4];
        memory.read(end - size, &mut bytes[..size])?;
        if view.dtype().is_float() {
            let mut value = [0.0];
            dequantize(view.dtype(), &bytes[..size], &mut value).expect("a float");
            let away = (value[0].abs() * 0.2 + 0.2).copysign(value[0]);
            let wrong = if value[0].is_finite() { value[0] + away } else { 7.0 };
            metallic_core::quant::quantize(view.dtype(), &[wrong], &mut bytes[..size]).expect("a float");
        } else {
            bytes[0] ^= 1;
        }
        memory.write(end - size, &bytes[..size])?;
        Ok(stats)
    }
}

#[test]
fn every_case_finds_every_mistake() {
    let cases = all();
    assert!(cases.len() > 700, "{}", cases.len());
    for mistake in [Mistake::Nothing, Mistake::LastElement, Mistake::Beyond, Mistake::Elsewhere] {
        let wrong = Wrong::new(mistake);
        for case in cases.iter().filter(|case| !case.outputs.iter().all(View::is_empty)) {
            assert!(check(&wrong, case).is_err(), "{} passes with {mistake:?}", case.name);
        }
    }
}

#[test]
fn a_backend_that_hands_out_the_references_tensors_is_found() {
    let mut wrong = Wrong::new(Mistake::Elsewhere);
    wrong.info.kind = "gpu";
    let error = check(&wrong, &all()[0]).unwrap_err();
    assert_eq!(error, "the tensors of gpu are those of the reference");
}

#[test]
fn names_tell_cases_apart() {
    let mut names: Vec<String> = all().into_iter().map(|case| case.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
