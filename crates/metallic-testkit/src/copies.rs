//! Copies between views: turned, sliced, stepped, repeated, in every type.
//!
//! What lies between the elements of the source is NaN, so that reading it shows; what lies between those of the target must
//! stay as it was.

use std::ops::Range;

use metallic_core::quant::{dequantize, quantize};
use metallic_core::reference::Reference;
use metallic_core::tensor::{Operand, TensorDevice, TensorError, View};
use metallic_core::{Backend, BackendError, DType};

use crate::cases::{FLOATS, weights};
use crate::compare;
use crate::random::Random;
use crate::{Failure, Plan, Report, Results, Tolerance};

/// What fills the target before the copy: huge, or no number, in every float type.
const UNTOUCHED: u8 = 0x7f;
/// Bytes after the last element.
const TAIL: usize = 12;

/// How the elements of a view lie in their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Row-major from the first byte.
    Plain,
    /// Row-major from the third element or block.
    Offset,
    /// Column-major: axes in the opposite order.
    Turned,
    /// Inside a larger tensor: every axis has neighbours on both sides.
    Sliced,
    /// Every second element of the last axis.
    Stepped,
    /// The outermost axis repeats one part. For sources.
    RowsRepeated,
    /// The innermost axis repeats one element. For sources.
    ColumnsRepeated,
}

impl Layout {
    fn view(self, dtype: DType, shape: &[usize]) -> View {
        self.try_view(dtype, shape).unwrap_or_else(|error| panic!("{self:?} {dtype} {shape:?}: {error}"))
    }

    fn try_view(self, dtype: DType, shape: &[usize]) -> Result<View, TensorError> {
        let plain = View::contiguous(dtype, shape)?;
        let rank = shape.len();
        if rank == 0 || plain.is_empty() {
            return Ok(plain);
        }
        let with = |axis: usize, len: usize| {
            let mut outer = shape.to_vec();
            outer[axis] = len;
            View::contiguous(dtype, &outer)
        };
        match self {
            Layout::Plain => Ok(plain),
            Layout::Offset => View::strided(dtype, 3 * dtype.block_len(), shape, plain.strides()),
            Layout::Turned => {
                let opposite: Vec<usize> = shape.iter().rev().copied().collect();
                View::contiguous(dtype, &opposite)?.permute(&(0..rank).rev().collect::<Vec<_>>())
            }
            Layout::Sliced => {
                let outer: Vec<usize> = shape.iter().map(|len| len + 2).collect();
                let whole = View::contiguous(dtype, &outer)?;
                (0..rank).try_fold(whole, |view, axis| view.slice(axis, 1..shape[axis] + 1))
            }
            Layout::Stepped => with(rank - 1, shape[rank - 1] * 2)?.step(rank - 1, 2),
            Layout::RowsRepeated => with(0, 1)?.broadcast(shape),
            Layout::ColumnsRepeated => with(rank - 1, 1)?.broadcast(shape),
        }
    }
}

/// One copy.
pub struct CopyCase {
    /// What it is.
    pub name: String,
    /// The source's memory.
    pub bytes: Vec<u8>,
    /// What is read of it.
    pub from: View,
    /// What is written.
    pub to: View,
    tolerance: Tolerance,
}

fn element_bytes(view: &View) -> impl Iterator<Item = Range<usize>> {
    let size = view.dtype().block_bytes();
    view.offsets().map(move |at| at * size..(at + 1) * size)
}

/// A copy of plain elements, each encoded from its index.
fn copy(name: String, from: View, to: View, encode: impl FnMut(usize, &mut [u8])) -> CopyCase {
    let mut bytes = vec![0xff; from.byte_range().end + TAIL];
    let mut encode = encode;
    element_bytes(&from).enumerate().for_each(|(index, range)| encode(index, &mut bytes[range]));
    CopyCase { name, bytes, from, to, tolerance: Tolerance::EXACT }
}

/// A copy of floats by their index.
fn floats(name: String, from: View, to: View, mut value: impl FnMut(usize) -> f32) -> CopyCase {
    copy(name, from, to, |index, place| {
        quantize(from.dtype(), &[value(index)], place).expect("a float type");
    })
}

/// Every copy.
pub fn all() -> Vec<CopyCase> {
    use Layout::{ColumnsRepeated, Offset, Plain, RowsRepeated, Sliced, Stepped, Turned};
    let mut cases = Vec::new();
    let mut random = Random::new(5);
    for &source in FLOATS {
        for &target in FLOATS {
            for (from, to) in [
                (Plain, Plain),
                (Turned, Offset),
                (Offset, Turned),
                (Sliced, Stepped),
                (Stepped, Sliced),
                (RowsRepeated, Plain),
                (ColumnsRepeated, Offset),
            ] {
                let (name, shape) = (format!("copy {source} {from:?} to {target} {to:?}"), [3, 5, 7, 33]);
                let (from, to) = (from.view(source, &shape), to.view(target, &shape));
                cases.push(floats(name, from, to, |_| 3.0 * random.signed()));
            }
            // Too large and too small for a half; exactly between two of its numbers.
            let extremes = [1e30, -1e30, 1e-30, 65519.0, 65520.0, 1.000_488_3, 6e-8, f32::INFINITY, -0.0];
            let (from, to) = (Plain.view(source, &[9]), Plain.view(target, &[9]));
            cases.push(floats(format!("copy extremes {source} to {target}"), from, to, |i| extremes[i]));
        }
        for shape in [&[][..], &[1], &[31], &[1025], &[33, 257], &[70, 1], &[1, 2, 65], &[0, 4]] {
            let (from, to) = (Turned.view(source, shape), Plain.view(source, shape));
            cases.push(floats(format!("copy {source} {shape:?} turned"), from, to, |_| random.signed()));
        }
    }
    for dtype in DType::all().filter(|dtype| dtype.is_quantized()) {
        let whole = Plain.view(dtype, &[5, 512]);
        let part = whole.slice(0, 1..4).and_then(|w| w.slice(1, 256..512)).expect("whole blocks");
        for (&to, (name, from)) in FLOATS.iter().flat_map(|to| {
            [("", whole), (" sliced", part), (" turned", whole.transpose(0, 1).expect("two axes"))]
                .map(|v| (to, v))
        }) {
            let mut bytes = weights(dtype, 5 * 512, 0.3, &mut random);
            bytes.resize(bytes.len() + TAIL, 0xff);
            // Backends may decode by another order of the same few operations.
            let tolerance = Tolerance { absolute: 1e-7, relative: 1e-6 }.stored_as(to);
            let (name, to) = (format!("copy {dtype}{name} to {to}"), Offset.view(to, from.shape()));
            cases.push(CopyCase { name, bytes, from, to, tolerance });
        }
    }
    for dtype in [DType::U32, DType::I32] {
        let (from, to) = (Turned.view(dtype, &[9, 33]), Sliced.view(dtype, &[9, 33]));
        cases.push(copy(format!("copy {dtype}"), from, to, |i, place| {
            place.copy_from_slice(&(i as u32).wrapping_mul(0x0101_0101).to_le_bytes());
        }));
    }
    cases
}

/// A view of this shape with axes in any order, gaps between elements, neighbours on both sides, and where `repeats` allows
/// it strides of 0.
fn anyhow(dtype: DType, shape: &[usize], repeats: bool, random: &mut Random) -> View {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    let (mut stride, mut offset) = (1, random.below(3));
    let mut strides = vec![0; shape.len()];
    for axis in order {
        if repeats && random.below(6) == 0 {
            continue;
        }
        let step = if random.below(4) == 0 { 2 } else { 1 };
        let (before, after) = if random.below(3) == 0 { (random.below(3), random.below(3)) } else { (0, 0) };
        strides[axis] = stride * step;
        offset += stride * before;
        stride *= before + shape[axis] * step + after;
    }
    View::strided(dtype, offset, shape, &strides).expect("a small view")
}

/// A copy made of a seed: any float types, views that lie anyhow.
pub fn random(seed: u64) -> CopyCase {
    let mut random = Random::new(seed);
    let rank = random.below(5);
    let most = if rank == 4 { 8 } else { 40 };
    let shape: Vec<usize> = (0..rank).map(|_| 1 + random.below(most)).collect();
    let mut dtype = || FLOATS[random.below(FLOATS.len())];
    let (source, target) = (dtype(), dtype());
    let from = anyhow(source, &shape, true, &mut random);
    let to = anyhow(target, &shape, false, &mut random);
    floats(format!("copy by chance {seed}: {from:?} to {to:?}"), from, to, |_| 3.0 * random.signed())
}

/// What the target's memory holds after a copy on a device, and the dispatches it took.
fn copied(device: &dyn TensorDevice, case: &CopyCase) -> Result<(Vec<u8>, u64), BackendError> {
    let memory = device.allocate(case.bytes.len())?;
    memory.write(0, &case.bytes)?;
    let mut after = vec![UNTOUCHED; case.to.byte_range().end + TAIL];
    let target = device.allocate(after.len())?;
    target.write(0, &after)?;
    let stats = device
        .copy(Operand { memory: &memory, view: &case.from }, Operand { memory: &target, view: &case.to })?;
    target.read(0, &mut after)?;
    Ok((after, stats.dispatches))
}

/// Copies on a backend and compares every element with the reference, and every other byte with what it was.
pub fn check(backend: &dyn Backend, case: &CopyCase) -> Result<(), Failure> {
    let (expected, _) = copied(Reference::new().tensors().as_ref(), case)?;
    let (found, dispatches) = copied(backend.tensors().as_ref(), case)?;
    if dispatches == 0 && !case.to.is_empty() {
        return Err("it ran without a dispatch: something else did the work".to_owned().into());
    }
    let dtype = case.to.dtype();
    let mut is_element = vec![false; found.len()];
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for range in element_bytes(&case.to) {
        is_element[range.clone()].fill(true);
        a.extend_from_slice(&expected[range.clone()]);
        b.extend_from_slice(&found[range]);
    }
    if let Some(byte) = (0..found.len()).find(|i| !is_element[*i] && found[*i] != UNTOUCHED) {
        return Err(format!("byte {byte} is not part of the target, yet it changed").into());
    }
    if !dtype.is_float() {
        return if a == b { Ok(()) } else { Err("the elements differ".to_owned().into()) };
    }
    let number = |bytes: &[u8]| {
        let mut out = vec![0.0; bytes.len() / dtype.block_bytes()];
        dequantize(dtype, bytes, &mut out).map(|()| out).map_err(|e| e.to_string())
    };
    let (a, b) = (number(&a)?, number(&b)?);
    compare::floats(&a, &b, case.tolerance)?;
    if a.is_empty() { Ok(()) } else { Ok(compare::proves(compare::peak(&a), case.tolerance)?) }
}

/// Every copy, and some by chance.
pub fn run(backend: &dyn Backend, plan: &Plan<'_>) -> Report {
    let mut report = Report::default();
    for case in all().into_iter().chain((0..300).map(random)).filter(|case| case.name.contains(plan.only)) {
        let result = match plan.results {
            Results::Compared => check(backend, &case),
            Results::Unread => copied(backend.tensors().as_ref(), &case).map(drop).map_err(Failure::from),
        };
        report.add(plan, &case.name, result);
    }
    report
}
