//! One table of cases for every operation on tensors, run on any backend against the reference.
//!
//! Operands lie as awkwardly as views allow: at odd offsets, turned, sliced out of something larger, stepped, repeated by a
//! stride of 0. What lies between the elements of an input is NaN, so that reading it shows; what lies between the
//! elements of an output must stay as it was.

mod chance;
mod choice;
mod layout;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use metallic_core::quant::dequantize;
use metallic_core::reference::Reference;
use metallic_core::tensor::{Operand, TensorDevice, TensorError, TensorMemory, TensorOp, View};
use metallic_core::{Backend, BackendError, Binary, DType, Unary};

pub use chance::random;
pub use layout::{Data, Layout};
pub use table::all;

/// How far a result may be from the reference.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Absolute difference.
    pub absolute: f32,
    /// Difference as a share of the expected value.
    pub relative: f32,
    /// Where it comes from.
    pub reason: &'static str,
}

impl Tolerance {
    /// Nothing but the same bits' value.
    pub const EXACT: Tolerance =
        Tolerance { absolute: 0.0, relative: 0.0, reason: "one rounding of one exact operation" };

    /// Room for one more rounding to the type the result is stored in.
    #[must_use]
    pub fn stored_as(mut self, dtype: DType) -> Tolerance {
        // A unit in the last place; and for halves below the normal ones, a step of theirs.
        let (relative, absolute) = match dtype {
            DType::F16 => (1.0 / 1024.0, 6e-8),
            DType::BF16 => (1.0 / 128.0, 0.0),
            _ => (0.0, 0.0),
        };
        self.relative += relative;
        self.absolute += absolute;
        self
    }

    fn allows(&self, expected: f32, found: f32) -> bool {
        if expected.is_nan() || expected.is_infinite() {
            return expected.to_bits() == found.to_bits() || (expected.is_nan() && found.is_nan());
        }
        (found - expected).abs() <= self.absolute + self.relative * expected.abs()
    }
}

/// Where the operands of a case lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Each in a memory of its own.
    Apart,
    /// All in one memory, one after another.
    Together,
    /// The output is the very view of the first input.
    InPlace,
}

/// One operation on operands of one form.
pub struct TensorCase {
    /// What it is.
    pub name: String,
    /// The operation.
    pub op: TensorOp,
    /// What it reads.
    pub inputs: Vec<Data>,
    /// What it writes.
    pub outputs: Vec<View>,
    /// Where operands lie.
    pub placement: Placement,
    /// How far results may be off.
    pub tolerance: Tolerance,
    /// Whether results are zeros, or nothing, by the rules of the operation.
    pub zeros: bool,
}

/// What fills the memory of outputs before they are computed: huge, or no number, in every float type.
const UNTOUCHED: u8 = 0x7f;
/// Bytes after the last element.
const TAIL: usize = 12;

/// An operand's memory, by its index, and its view of it.
type Place = (usize, View);

/// The memories of a case.
struct Laid {
    /// What each holds before the run.
    memories: Vec<Vec<u8>>,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
}

/// The same view, `bytes` later in the memory; `bytes` is a multiple of the type's block.
fn later(view: &View, bytes: usize) -> View {
    let offset = view.offset() + bytes / view.dtype().block_bytes() * view.dtype().block_len();
    View::strided(view.dtype(), offset, view.shape(), view.strides()).expect("the test's own view fits")
}

fn lay(case: &TensorCase) -> Laid {
    let mut laid = Laid { memories: Vec::new(), inputs: Vec::new(), outputs: Vec::new() };
    let mut place = |bytes: &[u8], view: &View| {
        if laid.memories.is_empty() || case.placement != Placement::Together {
            laid.memories.push(Vec::new());
        }
        let memory = laid.memories.len() - 1;
        let all = &mut laid.memories[memory];
        let start = all.len().next_multiple_of(view.dtype().block_bytes());
        all.resize(start, UNTOUCHED);
        all.extend_from_slice(bytes);
        (memory, later(view, start))
    };
    laid.inputs = case.inputs.iter().map(|data| place(&data.bytes, &data.view)).collect();
    laid.outputs =
        case.outputs.iter().map(|view| place(&vec![UNTOUCHED; view.byte_range().end + TAIL], view)).collect();
    if case.placement == Placement::InPlace {
        laid.outputs.truncate(0);
        laid.outputs.push(laid.inputs[0]);
    }
    laid
}

fn operands<'a>(memories: &'a [Arc<dyn TensorMemory>], places: &'a [Place]) -> Vec<Operand<'a>> {
    places.iter().map(|(memory, view)| Operand { memory: &memories[*memory], view }).collect()
}

/// What all memories hold after the run on a device, and the dispatches it took.
fn run(
    device: &dyn TensorDevice,
    case: &TensorCase,
    laid: &Laid,
) -> Result<(Vec<Vec<u8>>, u64), BackendError> {
    let mut memories: Vec<Arc<dyn TensorMemory>> = Vec::new();
    for bytes in &laid.memories {
        let memory = device.allocate(bytes.len())?;
        memory.write(0, bytes)?;
        memories.push(memory);
    }
    let stats =
        device.run(&case.op, &operands(&memories, &laid.inputs), &operands(&memories, &laid.outputs))?;
    let mut after = Vec::new();
    for memory in &memories {
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes)?;
        after.push(bytes);
    }
    Ok((after, stats.dispatches))
}

/// Runs a case on a backend and compares every element of every output with the reference, and every other byte with
/// what it was.
pub fn check(backend: &dyn Backend, case: &TensorCase) -> Result<(), String> {
    let laid = lay(case);
    let reference = Reference::new().tensors();
    computes_itself(backend)?;
    let (expected, _) = run(reference.as_ref(), case, &laid).map_err(|e| format!("reference: {e}"))?;
    let (found, dispatches) = run(backend.tensors().as_ref(), case, &laid).map_err(|e| e.to_string())?;
    let empty = laid.outputs.iter().all(|(_, view)| view.is_empty());
    if dispatches == 0 && !empty {
        return Err("it ran without a dispatch: something else did the work".to_owned());
    }
    let mut peak = 0f32;
    for (index, (memory, view)) in laid.outputs.iter().enumerate() {
        let (expected, found) = (&expected[*memory], &found[*memory]);
        peak = peak
            .max(compare(view, expected, found, case.tolerance).map_err(|e| format!("output {index}: {e}"))?);
    }
    for (memory, (before, after)) in laid.memories.iter().zip(&found).enumerate() {
        let outputs = laid.outputs.iter().filter(|(m, _)| *m == memory);
        let mut is_output = vec![false; before.len()];
        for range in outputs.flat_map(|(_, view)| element_bytes(view)) {
            is_output[range].fill(true);
        }
        let spoiled = (0..before.len()).find(|i| !is_output[*i] && before[*i] != after[*i]);
        if let Some(byte) = spoiled {
            return Err(format!("byte {byte} of memory {memory} is not part of a result, yet it changed"));
        }
    }
    if case.zeros != (peak == 0.0) {
        return Err(format!("results up to {peak}, and zeros expected: {}", case.zeros));
    }
    // Were the results as small as the tolerance, anything would pass.
    if !case.zeros && (peak <= 8.0 * case.tolerance.absolute || case.tolerance.relative > 0.1) {
        return Err(format!("results of at most {peak} prove nothing at {:?}", case.tolerance));
    }
    Ok(())
}

/// A backend whose tensors are those of the reference would be compared with itself.
fn computes_itself(backend: &dyn Backend) -> Result<(), String> {
    let reference = Reference::new();
    if backend.info().kind == reference.info().kind {
        return Ok(());
    }
    let memory = backend.tensors().allocate(4).map_err(|e| e.to_string())?;
    let view = View::contiguous(DType::F32, &[1]).map_err(|e| e.to_string())?;
    let output = [Operand { memory: &memory, view: &view }];
    match reference.tensors().run(&TensorOp::Fill(1.0), &[], &output) {
        Err(BackendError::ForeignMemory { .. }) => Ok(()),
        _ => Err(format!("the tensors of {} are those of the reference", backend.info().kind)),
    }
}

/// The bytes of each element.
fn element_bytes(view: &View) -> Vec<Range<usize>> {
    let size = view.dtype().block_bytes();
    view.offsets().map(|at| at * size..(at + 1) * size).collect()
}

/// The largest expected value, where all values agree.
fn compare(view: &View, expected: &[u8], found: &[u8], tolerance: Tolerance) -> Result<f32, String> {
    let dtype = view.dtype();
    let mut peak = 0f32;
    for (index, range) in element_bytes(view).into_iter().enumerate() {
        let (a, b) = (&expected[range.clone()], &found[range]);
        if !dtype.is_float() {
            let word = |bytes: &[u8]| bytes.try_into().map_or(u32::MAX, u32::from_le_bytes);
            if a != b {
                return Err(format!("element {index} is {}, not {}", word(b), word(a)));
            }
            // An index of 0 is as good as any other.
            peak = peak.max(word(a).saturating_add(1) as f32);
            continue;
        }
        let number = |bytes: &[u8]| {
            let mut out = [0.0];
            dequantize(dtype, bytes, &mut out).map(|()| out[0]).map_err(|e| e.to_string())
        };
        let (a, b) = (number(a)?, number(b)?);
        if !tolerance.allows(a, b) {
            let Tolerance { absolute, relative, reason } = tolerance;
            let off = (a - b).abs();
            return Err(format!(
                "element {index} is {b}, not {a}: off by {off}, allowed are {absolute} + {relative} of it ({reason})"
            ));
        }
        if a.is_finite() {
            peak = peak.max(a.abs());
        }
    }
    Ok(peak)
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
    let (a, b) = (view(&[4]), view(&[5]));
    let at = |memory, view| Operand { memory, view };
    let add = TensorOp::Binary(Binary::Add);
    let out = device.allocate(64).map_err(text)?;
    let tensor = |fits: fn(&TensorError) -> bool| move |error: &BackendError| matches!(error, BackendError::Tensor(error) if fits(error));
    let shapes = device.run(&add, &[at(&here, &a), at(&here, &b)], &[at(&out, &a)]);
    refused("shapes that differ", shapes, &tensor(|e| matches!(e, TensorError::Operand { .. })))?;
    let bounds = device.run(&add, &[at(&here, &a), at(&small, &a)], &[at(&out, &a)]);
    refused("a view beyond its memory", bounds, &tensor(|e| matches!(e, TensorError::Bounds { .. })))?;
    let later = View::strided(DType::F32, 2, &[4], &[1]).expect("a small view");
    let relu = TensorOp::Unary(Unary::Relu);
    let overlap = device.run(&relu, &[at(&here, &a)], &[at(&here, &later)]);
    refused("a result over its input", overlap, &tensor(|e| matches!(e, TensorError::Overlap { .. })))?;
    if backend.info().kind != Reference::new().info().kind {
        let other = device.run(&relu, &[at(&foreign, &a)], &[at(&out, &a)]);
        refused("foreign memory", other, &|e| matches!(e, BackendError::ForeignMemory { .. }))?;
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

/// The operations the table exercises.
pub fn covered() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = all().iter().map(|case| case.op.name()).collect();
    names.sort_unstable();
    names.dedup();
    names
}
