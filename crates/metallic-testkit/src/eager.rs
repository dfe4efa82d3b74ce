//! The table on tensors: every operation of every case that needs no step, alone, on operands at odd places in a memory.

use std::collections::BTreeSet;

use metallic_core::quant::dequantize;
use metallic_core::reference::Reference;
use metallic_core::tensor::{Evaluated, Operand, TensorDevice, TensorError, View};
use metallic_core::{
    Backend, BackendError, Binary, DType, Dim, Graph, Op, OpClass, Shape, Sizes, StateId, TensorType, Unary,
    infer,
};

use crate::cases::{self, Case, Outcome, VOCAB, encode};
use crate::compare::{self, unit};
use crate::random::Random;
use crate::{Failure, Plan, Report, Results, Tolerance};

/// Bytes after the last element of a memory.
const TAIL: usize = 12;
/// Tokens of the operands: no whole number of tiles, and one.
const TOKENS: [usize; 2] = [35, 1];

/// A tensor whose elements lie one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// What it is, without symbolic axes.
    pub ty: TensorType,
    /// Its elements.
    pub bytes: Vec<u8>,
}

impl Dense {
    fn ids(ids: impl IntoIterator<Item = u32>) -> Dense {
        let bytes: Vec<u8> = ids.into_iter().flat_map(u32::to_le_bytes).collect();
        Dense { ty: TensorType::new(DType::U32, Shape::vector(bytes.len() / size_of::<u32>())), bytes }
    }

    fn floats(&self) -> Vec<f32> {
        let dtype = self.ty.dtype;
        let mut out = vec![0.0; self.bytes.len() / dtype.block_bytes() * dtype.block_len()];
        dequantize(dtype, &self.bytes, &mut out).expect("a type of numbers");
        out
    }

    fn words(&self) -> Vec<u32> {
        self.bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    fn cast(&self, dtype: DType) -> Dense {
        Dense { ty: TensorType { dtype, ..self.ty }, bytes: encode(dtype, &self.floats()) }
    }

    fn shape(&self) -> Vec<usize> {
        self.ty.shape.dims().iter().map(|dim| Sizes::default().of(*dim)).collect()
    }
}

/// One operation and its operands.
pub struct Single {
    /// Which case it is of, and how it differs from others of it.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// What it is given.
    pub inputs: Vec<Dense>,
    /// How far results may be off.
    pub tolerance: Tolerance,
    /// What comes out, where it is the result of a case and not something on the way to it.
    pub outcome: Option<Outcome>,
}

/// The operations of a case in every type of activations, but for those in `seen`.
pub fn singles(case: &Case, plan: &Plan<'_>, seen: &mut BTreeSet<String>) -> Result<Vec<Single>, String> {
    let mut all = Vec::new();
    for graph in case.forms()? {
        for tokens in TOKENS {
            for (index, op, inputs, fixed) in evaluated(&graph, tokens)? {
                // One token may happen to give little.
                let known = graph.outputs()[0].0 == index && tokens > 1;
                let outcome = known.then_some(case.outcome);
                for dtype in case.activations {
                    // The activations alone in this type; and all vectors with them, where the rules let them.
                    for keep_fixed in [true, false] {
                        let cast = |(input, fixed): (&Dense, &bool)| match input.ty.dtype {
                            DType::F32 if !(keep_fixed && *fixed) => input.cast(*dtype),
                            _ => input.clone(),
                        };
                        let inputs: Vec<Dense> = inputs.iter().zip(&fixed).map(cast).collect();
                        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
                        if infer(&op, &types).is_err()
                            || !seen.insert(format!("{op:?} {types:?} {:?}", case.outcome))
                        {
                            continue;
                        }
                        let text: Vec<String> = types.iter().map(ToString::to_string).collect();
                        let name = format!("{}: {} of {}", case.name, op.name(), text.join(", "));
                        let tolerance = case.tolerance(plan.exactness);
                        all.push(Single { name, op, inputs, tolerance, outcome });
                    }
                }
            }
        }
    }
    Ok(all)
}

/// An operation of a graph: its node, itself, its operands, and which of those are weights.
type Found = (usize, Op, Vec<Dense>, Vec<bool>);

/// Every operation that can be carried out alone, with the operands a step of so many tokens gives it.
fn evaluated(graph: &Graph, tokens: usize) -> Result<Vec<Found>, String> {
    let device = Reference::new().tensors();
    let mut random = Random::new(tokens as u64);
    let outputs: Vec<u32> = (0..3).map(|i| (i * 7 % tokens) as u32).collect();
    let mut values: Vec<Option<Dense>> = Vec::new();
    let mut found = Vec::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let inputs: Option<Vec<Dense>> = node.inputs.iter().map(|id| values[id.0].clone()).collect();
        values.push(match (node.op, inputs.filter(|_| node.op.class() == OpClass::Pure)) {
            (Op::Tokens, _) => Some(Dense::ids((0..tokens).map(|_| random.below(VOCAB) as u32))),
            (Op::Positions, _) => Some(Dense::ids((0..tokens as u32).map(|i| i * 2 + 1))),
            (Op::OutputRows, _) => Some(Dense::ids(outputs.clone())),
            (Op::Choices, _) => Some(Dense::ids(cases::packed(outputs.len(), tokens))),
            (Op::Adapters { count }, _) => {
                let shares = cases::shares(tokens, count);
                let ty = TensorType::f32(Shape::matrix(tokens, count));
                Some(Dense { ty, bytes: encode(DType::F32, &shares) })
            }
            (Op::Weight(id), _) => Some(Dense { ty: node.ty, bytes: graph.weights()[id.0].data.to_vec() }),
            (op, Some(inputs)) => {
                let (value, _) = eval(device.as_ref(), &op, &inputs).map_err(|e| format!("{e:?}"))?;
                let fixed = node.inputs.iter().map(|id| graph.weight(*id).is_some()).collect();
                found.push((index, op, inputs, fixed));
                Some(value)
            }
            (_, None) => None,
        });
    }
    Ok(found)
}

/// The result of an operation whose operands lie one after another in one memory, each at an odd element or block, and the
/// dispatches it took.
fn eval(device: &dyn TensorDevice, op: &Op, inputs: &[Dense]) -> Result<(Dense, u64), Failure> {
    let (mut bytes, mut views) = (Vec::new(), Vec::new());
    for input in inputs {
        let (len, size) = (input.ty.dtype.block_len(), input.ty.dtype.block_bytes());
        let start = bytes.len().div_ceil(size) / 2 * 2 + 3;
        bytes.resize(start * size, 0xff); // NaN in every float type: reading beside an operand shows.
        bytes.extend_from_slice(&input.bytes);
        let plain = View::contiguous(input.ty.dtype, &input.shape()).map_err(BackendError::from)?;
        let view = View::strided(plain.dtype(), start * len, plain.shape(), plain.strides());
        views.push(view.map_err(BackendError::from)?);
    }
    bytes.resize(bytes.len() + TAIL, 0xff);
    let memory = device.allocate(bytes.len())?;
    memory.write(0, &bytes)?;
    let operands: Vec<Operand<'_>> = views.iter().map(|view| Operand { memory: &memory, view }).collect();
    let Evaluated { memory: result, ty, stats } = device.eval(op, &operands)?;
    let needed = ty.bytes(Sizes::default()).unwrap_or(0);
    if result.len() != needed || ty.shape.dims().iter().any(|dim| !matches!(dim, Dim::Fixed(_))) {
        return Err(format!("{} bytes for {ty}", result.len()).into());
    }
    let (mut out, mut after) = (vec![0; needed], vec![0; bytes.len()]);
    result.read(0, &mut out)?;
    memory.read(0, &mut after)?;
    if let Some(byte) = after.iter().zip(&bytes).position(|(a, b)| a != b) {
        return Err(format!("byte {byte} of the operands' memory has changed").into());
    }
    Ok((Dense { ty, bytes: out }, stats.dispatches))
}

/// The share of the largest result that a sum may be off by, in units of the activations' type, where a device holds
/// factors in it: probabilities of attention, each off by half a unit; normed rows, whose errors mostly cancel.
fn held(op: &Op) -> f32 {
    match op {
        Op::Sdpa(_) => 1.0,
        Op::Linear | Op::ExpertLinear | Op::Project(_) | Op::GatedProject { .. } => 0.25,
        _ => 0.0,
    }
}

/// Carries out an operation on a backend and compares the result with the reference.
pub fn check(backend: &dyn Backend, single: &Single) -> Result<(), Failure> {
    let Single { op, inputs, tolerance, outcome, .. } = single;
    let (expected, _) = eval(Reference::new().tensors().as_ref(), op, inputs)?;
    let (found, dispatches) = eval(backend.tensors().as_ref(), op, inputs)?;
    if expected.ty != found.ty {
        return Err(format!("{} instead of {}", found.ty, expected.ty).into());
    }
    let zeros = *outcome == Some(Outcome::Zeros);
    if dispatches == 0 && !zeros {
        return Err("it ran without a dispatch: something else did the work".to_owned().into());
    }
    if expected.ty.dtype == DType::U32 {
        return Ok(compare::ids(&expected.words(), &found.words())?);
    }
    let (expected, found, dtype) = (expected.floats(), found.floats(), expected.ty.dtype);
    let peak = compare::peak(&expected);
    let mut tolerance = tolerance.stored_as(dtype);
    tolerance.absolute += held(op) * unit(dtype) * peak;
    compare::floats(&expected, &found, tolerance)?;
    match outcome {
        Some(Outcome::Numbers) => Ok(compare::proves(peak, tolerance)?),
        Some(Outcome::Zeros) if peak > 0.0 => Err(format!("results up to {peak} instead of zeros").into()),
        Some(Outcome::Zeros) | None => Ok(()),
    }
}

/// Every operation of every case, alone.
pub fn run(backend: &dyn Backend, plan: &Plan<'_>) -> Report {
    let mut report = Report::default();
    let mut seen = BTreeSet::new();
    if let Err(what) = computes_itself(backend) {
        report.add(plan, "tensors", Err(Failure::Wrong(what)));
        return report;
    }
    for case in cases::all().into_iter().chain((0..100).map(cases::random)) {
        let wanted = |op: &Op| case.name.contains(plan.only) || op.name().contains(plan.only);
        match case.forms() {
            // To find the operands of its operations takes longest.
            Ok(forms) if !forms.iter().flat_map(Graph::nodes).any(|node| wanted(&node.op)) => continue,
            _ => {}
        }
        match singles(&case, plan, &mut seen) {
            Ok(singles) => {
                for single in singles.iter().filter(|single| wanted(&single.op)) {
                    let result = match plan.results {
                        Results::Compared => check(backend, single),
                        Results::Unread => {
                            eval(backend.tensors().as_ref(), &single.op, &single.inputs).map(drop)
                        }
                    };
                    report.add(plan, &single.name, result);
                }
            }
            Err(what) => report.add(plan, &case.name, Err(Failure::Wrong(what))),
        }
    }
    report
}

fn is_reference(backend: &dyn Backend) -> bool {
    backend.info().kind == Reference::new().info().kind
}

/// A backend whose tensors are those of the reference would be compared with itself.
fn computes_itself(backend: &dyn Backend) -> Result<(), String> {
    let memory = backend.tensors().allocate(4).map_err(|e| e.to_string())?;
    if is_reference(backend) || !Reference::new().tensors().owns(memory.as_ref()) {
        return Ok(());
    }
    Err(format!("the tensors of {} are those of the reference", backend.info().kind))
}

/// What a backend must refuse, whatever it can compute: operands that break the rules, memory of another device, bytes
/// outside a memory.
pub fn check_refusals(backend: &dyn Backend) -> Result<(), String> {
    let device = backend.tensors();
    let text = |e: BackendError| e.to_string();
    let view = |shape: &[usize]| View::contiguous(DType::F32, shape).expect("a small view");
    let (here, small) = (device.allocate(64).map_err(text)?, device.allocate(8).map_err(text)?);
    let foreign = Reference::new().tensors().allocate(64).map_err(text)?;
    if !device.owns(here.as_ref()) {
        return Err("memory of its own passes for foreign".to_owned());
    }
    let (a, b, turned) = (view(&[4]), view(&[5]), view(&[2, 2]).transpose(0, 1).expect("two axes"));
    let at = |memory, view| Operand { memory, view };
    let (add, relu) = (Op::Binary(Binary::Add), Op::Unary(Unary::Relu));
    let tensor = |fits: fn(&TensorError) -> bool| move |e: &BackendError| matches!(e, BackendError::Tensor(e) if fits(e));
    let shapes = device.eval(&add, &[at(&here, &a), at(&here, &b)]);
    refused("shapes that differ", shapes, &|e| matches!(e, BackendError::Type(_)))?;
    let bounds = device.eval(&add, &[at(&here, &a), at(&small, &a)]);
    refused("a view beyond its memory", bounds, &tensor(|e| matches!(e, TensorError::Bounds { .. })))?;
    let strided = device.eval(&relu, &[at(&here, &turned)]);
    refused("an operand with strides", strided, &tensor(|e| matches!(e, TensorError::Strided { .. })))?;
    let stateful = device.eval(&Op::ShortConv { state: StateId(0) }, &[at(&here, &a), at(&here, &a)]);
    refused("an operation with a state", stateful, &tensor(|e| matches!(e, TensorError::Alone { .. })))?;
    let later = View::strided(DType::F32, 2, &[4], &[1]).expect("a small view");
    let overlap = device.copy(at(&here, &a), at(&here, &later));
    refused("a copy over its source", overlap, &tensor(|e| matches!(e, TensorError::Overlap { .. })))?;
    let shapes = device.copy(at(&here, &a), at(&here, &b));
    refused("a copy to another shape", shapes, &tensor(|e| matches!(e, TensorError::Copy { .. })))?;
    if !is_reference(backend) {
        let is_foreign = |e: &BackendError| matches!(e, BackendError::ForeignMemory { .. });
        refused("foreign memory", device.eval(&relu, &[at(&foreign, &a)]), &is_foreign)?;
        refused("a copy of foreign memory", device.copy(at(&foreign, &a), at(&here, &a)), &is_foreign)?;
        refused("a copy to foreign memory", device.copy(at(&here, &a), at(&foreign, &a)), &is_foreign)?;
        if device.owns(foreign.as_ref()) {
            return Err("foreign memory passes for its own".to_owned());
        }
    }
    let outside = |e: &BackendError| matches!(e, BackendError::Range { .. });
    refused("a read outside", small.read(5, &mut [0; 4]), &outside)?;
    refused("a read far outside", small.read(usize::MAX, &mut [0; 4]), &outside)?;
    refused("a write outside", small.write(8, &[0]), &outside)
}

fn refused<T>(
    what: &str,
    result: Result<T, BackendError>,
    fits: &dyn Fn(&BackendError) -> bool,
) -> Result<(), String> {
    match result {
        Err(error) if fits(&error) => Ok(()),
        Err(error) => Err(format!("{what}: refused by the wrong error: {error}")),
        Ok(_) => Err(format!("{what}: it was not refused")),
    }
}
