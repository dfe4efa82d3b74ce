//! One operation on operands that lie in memory: what programs and single operations on tensors both run.
//!
//! `F32` values are read and written where they lie. Halves are decoded into a buffer before an operation and rounded from
//! one after it.

use std::sync::Arc;

use metallic_core::quant::{dequantize, quantize};
use metallic_core::{BackendError, DType, NodeId, Op, Rope, Shape, Sizes, Step, TensorType, WeightUse};

use crate::attention::{self, Inputs};
use crate::kept::{Call, Kept, KvRows, Rows};
use crate::linear::{Activated, FEW_ROWS};
use crate::ops::{self, Angles, Norm, PART, Scratches};
use crate::simd::{Isa, PackedMatrix, TILE, Team, floats, floats_mut, softmax, words, words_mut};
use crate::weights::{MatrixShape, matrix_shape, pack};
use crate::{Processor, failed, no_room, sdpa, unsupported};

/// The most inputs an operation has: the way into attention, with everything that may be fused into it.
const MAX_INPUTS: usize = 12;

/// What an operation reads.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    /// Numbers.
    Floats(&'a [f32]),
    /// Indices.
    Words(&'a [u32]),
    /// Matrices ready for products: one, or one for each expert or outer axis.
    Matrices(&'a [PackedMatrix]),
    /// Elements that are decoded on use.
    Encoded(DType, &'a [u8]),
}

impl<'a> Value<'a> {
    /// What stands in these bytes.
    pub(crate) fn stored(dtype: DType, bytes: &'a [u8]) -> Value<'a> {
        match dtype {
            DType::F32 => Value::Floats(floats(bytes)),
            DType::U32 | DType::I32 => Value::Words(words(bytes)),
            dtype => Value::Encoded(dtype, bytes),
        }
    }

    /// What stands in these bytes, as it is used: matrices and tables are left as they lie.
    pub(crate) fn operand(dtype: DType, bytes: &'a [u8], used: WeightUse) -> Value<'a> {
        match used {
            WeightUse::Vector => Value::stored(dtype, bytes),
            WeightUse::Matrix | WeightUse::Table => Value::Encoded(dtype, bytes),
        }
    }
}

/// One input of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) value: Value<'a>,
    pub(crate) ty: &'a TensorType,
    /// Its node, in a program.
    pub(crate) node: Option<NodeId>,
}

/// An operation's inputs and the type of its result.
pub(crate) struct Args<'a> {
    inputs: [Input<'a>; MAX_INPUTS],
    count: usize,
    pub(crate) out: &'a TensorType,
    pub(crate) sizes: Sizes,
}

impl<'a> Args<'a> {
    pub(crate) fn new(out: &'a TensorType, sizes: Sizes) -> Args<'a> {
        let none = Input { value: Value::Floats(&[]), ty: out, node: None };
        Args { inputs: [none; MAX_INPUTS], count: 0, out, sizes }
    }

    pub(crate) fn push(&mut self, input: Input<'a>) -> Result<(), BackendError> {
        let place = self.inputs.get_mut(self.count);
        *place.ok_or_else(|| unsupported("project", "more than 3 matrices side by side"))? = input;
        self.count += 1;
        Ok(())
    }

    pub(crate) fn value(&self, index: usize) -> Value<'a> {
        self.inputs[index].value
    }

    /// The numbers of an input; none where it is missing.
    pub(crate) fn floats(&self, index: usize) -> &'a [f32] {
        if let Value::Floats(floats) = self.value(index) { floats } else { &[] }
    }

    pub(crate) fn words(&self, index: usize) -> &'a [u32] {
        if let Value::Words(words) = self.value(index) { words } else { &[] }
    }

    pub(crate) fn matrices(&self, index: usize) -> &'a [PackedMatrix] {
        if let Value::Matrices(matrices) = self.value(index) { matrices } else { &[] }
    }

    pub(crate) fn matrix(&self, index: usize) -> Result<&'a PackedMatrix, BackendError> {
        self.matrices(index).first().ok_or_else(|| failed("no matrix"))
    }

    pub(crate) fn shape(&self, index: usize) -> &'a Shape {
        &self.inputs[index].ty.shape
    }

    /// Elements of a row; at least 1.
    pub(crate) fn cols(&self, index: usize) -> usize {
        self.shape(index).cols().max(1)
    }

    pub(crate) fn rows(&self, index: usize) -> std::slice::Chunks<'a, f32> {
        self.floats(index).chunks(self.cols(index))
    }

    /// Whether a matrix that is no weight meets so few rows that it is better read as it lies.
    fn is_few(&self, op: &Op) -> bool {
        *op == Op::Linear
            && self.shape(0).rows(self.sizes) / matrix_shape(self.shape(1)).count.max(1) < FEW_ROWS
    }

    /// Decodes halves into `decoded` and packs matrices that are no weights into `made`.
    fn prepare(
        &mut self,
        op: &Op,
        team: &Team,
        decoded: &'a mut [Vec<f32>; MAX_INPUTS],
        made: &'a mut [Vec<PackedMatrix>; MAX_INPUTS],
    ) -> Result<(), BackendError> {
        let mut buffers = decoded.iter_mut().zip(made);
        for index in 0..self.count {
            let (Some((numbers, made)), Input { value: Value::Encoded(dtype, bytes), ty, .. }) =
                (buffers.next(), self.inputs[index])
            else {
                continue;
            };
            match op.weight_use(index) {
                WeightUse::Vector => {
                    let len = bytes.len() / dtype.block_bytes() * dtype.block_len();
                    grow(numbers, len)?;
                    decode(team, dtype, bytes, &mut numbers[..len])?;
                    self.inputs[index].value = Value::Floats(&numbers[..len]);
                }
                WeightUse::Matrix if !self.is_few(op) => {
                    *made = pack(team, ty, bytes, true).map_err(|error| unsupported(op.name(), error))?;
                    self.inputs[index].value = Value::Matrices(made);
                }
                WeightUse::Matrix | WeightUse::Table => {}
            }
        }
        Ok(())
    }
}

/// The most bytes an operation takes beside its operands, where none of them is a weight: halves as numbers, and matrices
/// decoded and packed in tiles.
pub(crate) fn scratch_bytes(op: &Op, inputs: &[TensorType], out: &TensorType) -> usize {
    let numbers =
        |ty: &TensorType| if ty.dtype.block_bytes() == 2 { ty.shape.elements(Sizes::default()) } else { 0 };
    let of_input = |(index, ty): (usize, &TensorType)| {
        if op.weight_use(index) != WeightUse::Matrix {
            return numbers(ty);
        }
        let MatrixShape { count, n, k } = matrix_shape(&ty.shape);
        n.next_multiple_of(TILE).saturating_mul(k).saturating_mul(count.saturating_add(1))
    };
    let elements = inputs.iter().enumerate().map(of_input).fold(numbers(out), usize::saturating_add);
    elements.saturating_mul(size_of::<f32>())
}

/// Where a result goes.
pub(crate) enum Out<'a> {
    Floats(&'a mut [f32]),
    Words(&'a mut [u32]),
    /// Halves.
    Encoded(DType, &'a mut [u8]),
}

impl<'a> Out<'a> {
    /// These bytes.
    pub(crate) fn stored(dtype: DType, bytes: &'a mut [u8]) -> Out<'a> {
        match dtype {
            DType::F32 => Out::Floats(floats_mut(bytes)),
            DType::U32 | DType::I32 => Out::Words(words_mut(bytes)),
            dtype => Out::Encoded(dtype, bytes),
        }
    }

    fn floats(self) -> &'a mut [f32] {
        if let Out::Floats(floats) = self { floats } else { &mut [] }
    }

    fn words(self) -> &'a mut [u32] {
        if let Out::Words(words) = self { words } else { &mut [] }
    }
}

/// The step an operation is part of, and what is kept between steps.
pub(crate) struct Now<'a> {
    pub(crate) step: &'a Step<'a>,
    pub(crate) kept: &'a mut Kept,
}

/// Room for at least so many numbers, kept between steps.
pub(crate) fn grow(values: &mut Vec<f32>, needed: usize) -> Result<(), BackendError> {
    if let Some(more) = needed.checked_sub(values.len()) {
        let full = no_room("intermediates", needed.saturating_mul(size_of::<f32>()));
        values.try_reserve_exact(more).map_err(|_| full)?;
        values.resize(needed, 0.0);
    }
    Ok(())
}

/// Elements of a float or quantised type as numbers.
pub(crate) fn decode(team: &Team, dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), BackendError> {
    if dtype.bytes_for(out.len()) != Some(bytes.len()) {
        return Err(failed(format!("{} numbers in {} bytes of {dtype}", out.len(), bytes.len())));
    }
    team.for_chunks(out, PART, |i, out| {
        let part = i * PART / dtype.block_len() * dtype.block_bytes();
        let len = out.len() / dtype.block_len() * dtype.block_bytes();
        // The lengths belong together; were they not to, it must show.
        if dequantize(dtype, &bytes[part..part + len], out).is_err() {
            out.fill(f32::NAN);
        }
    });
    Ok(())
}

/// Numbers as elements of a float type, rounded to nearest.
fn encode(team: &Team, dtype: DType, values: &[f32], out: &mut [u8]) {
    let size = dtype.block_bytes();
    team.for_chunks(out, PART * size, |i, out| {
        // Halves have no partial blocks; were they to, it must show.
        if quantize(dtype, &values[i * PART..][..out.len() / size], out).is_err() {
            out.fill(0xff);
        }
    });
}

/// The team and the buffers that are kept between operations.
pub(crate) struct Work {
    pub(crate) team: Arc<Team>,
    pub(crate) isa: Isa,
    /// Bytes of weights and of what is kept that were read so far,
    pub(crate) read: u64,
    /// and of what is kept that were written.
    pub(crate) written: u64,
    /// Multiplications with additions so far.
    pub(crate) multiplied: u64,
    /// Halves as numbers: of each input, and of the result before it is rounded.
    decoded: [Vec<f32>; MAX_INPUTS],
    rounded: Vec<f32>,
    pub(crate) activated: Activated,
    pub(crate) gate: Vec<f32>,
    pub(crate) qkv: Vec<f32>,
    /// Rows that choose experts, in the order of the experts.
    pub(crate) order: Vec<u32>,
    attention: attention::Scratch,
    pub(crate) angles: Angles,
    scratches: Scratches,
    /// The positions, frequencies and magnitude they were computed from.
    angles_of: Option<((NodeId, NodeId), f32)>,
}

impl Work {
    pub(crate) fn new(team: Arc<Team>, isa: Isa) -> Work {
        Work {
            team,
            isa,
            read: 0,
            written: 0,
            multiplied: 0,
            decoded: Default::default(),
            rounded: Vec::new(),
            activated: Activated::default(),
            gate: Vec::new(),
            qkv: Vec::new(),
            order: Vec::new(),
            attention: attention::Scratch::default(),
            angles: Angles::default(),
            scratches: Scratches::default(),
            angles_of: None,
        }
    }

    /// Bytes of buffers.
    pub(crate) fn bytes(&self) -> usize {
        [&self.rounded, &self.activated.values, &self.gate, &self.qkv]
            .into_iter()
            .chain(&self.decoded)
            .map(|values| values.capacity() * size_of::<f32>())
            .sum()
    }

    /// Bytes read and written since the step began.
    pub(crate) fn bytes_moved(&self) -> u64 {
        self.read + self.written
    }

    /// Begins a step: counts from nothing, and angles are those of other positions.
    pub(crate) fn begin(&mut self) {
        (self.read, self.written, self.multiplied, self.angles_of) = (0, 0, 0, None);
    }

    /// Carries out one operation.
    pub(crate) fn run(
        &mut self,
        op: &Op,
        args: Args<'_>,
        out: Out<'_>,
        now: Option<Now<'_>>,
    ) -> Result<(), BackendError> {
        let encoded = |input: &Input<'_>| matches!(input.value, Value::Encoded(..));
        if !args.inputs[..args.count].iter().any(encoded) && !matches!(out, Out::Encoded(..)) {
            return self.dispatch(op, &args, out, now);
        }
        let mut made = Default::default();
        // Taken out while they are borrowed.
        let (mut decoded, mut rounded) =
            (std::mem::take(&mut self.decoded), std::mem::take(&mut self.rounded));
        let mut args: Args<'_> = args;
        let prepared = args.prepare(op, &self.team, &mut decoded, &mut made);
        let result = prepared.and_then(|()| match out {
            Out::Encoded(dtype, bytes) => {
                let len = bytes.len() / dtype.block_bytes();
                grow(&mut rounded, len)?;
                self.dispatch(op, &args, Out::Floats(&mut rounded[..len]), now)?;
                encode(&self.team, dtype, &rounded[..len], bytes);
                Ok(())
            }
            out @ (Out::Floats(_) | Out::Words(_)) => self.dispatch(op, &args, out, now),
        });
        (self.decoded, self.rounded) = (decoded, rounded);
        result
    }

    fn dispatch(
        &mut self,
        op: &Op,
        args: &Args<'_>,
        out: Out<'_>,
        now: Option<Now<'_>>,
    ) -> Result<(), BackendError> {
        let p = Processor { isa: self.isa, team: &self.team };
        let x = |index: usize| args.floats(index);
        let now = || now.ok_or_else(|| failed(format!("`{}` without a step", op.name())));
        match *op {
            Op::Tokens
            | Op::Positions
            | Op::OutputRows
            | Op::Choices
            | Op::Adapters { .. }
            | Op::Weight(_) => {}
            Op::Embed(_) => self.read += ops::embed(args, out.floats())?,
            Op::SelectRows => ops::select_rows(x(0), args.words(1), out.floats()),
            Op::Slice { start, len } => {
                for (x, out) in args.rows(0).zip(out.floats().chunks_exact_mut(len.max(1))) {
                    out.copy_from_slice(&x[start..start + len]);
                }
            }
            Op::Gather => ops::gather(args, out.floats()),
            Op::Cast(_) => out.floats().copy_from_slice(x(0)),
            Op::Unary(f) => ops::map(p, x(0), out.floats(), |x| ops::apply(p, f, x)),
            Op::Binary(f) => ops::binary(p, f, [x(0), x(1)], out.floats()),
            Op::Scalar { op, value, reversed } => {
                ops::map(p, x(0), out.floats(), |x| ops::scalar(p, op, value, reversed, x));
            }
            Op::Softcap(cap) => {
                let capped = |x: &mut [f32]| x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
                ops::map(p, x(0), out.floats(), capped);
            }
            Op::Gated(act) => ops::gated(p, act, [x(0), x(1)], out.floats()),
            Op::RmsNorm { eps, groups } => {
                let part = args.cols(0) / groups.max(1);
                Norm { w: x(1), eps, part }.rows(p, args.cols(0), x(0), out.floats());
            }
            Op::LayerNorm { eps } => ops::layer_norm(p, args, eps, out.floats()),
            Op::Softmax => {
                let out = out.floats();
                out.copy_from_slice(x(0));
                p.team.for_chunks(out, args.cols(0), |_, row| softmax(p.isa, row));
            }
            Op::Linear => self.linear(args, out.floats())?,
            Op::ExpertLinear => self.expert_linear(args, out.floats())?,
            Op::Combine => ops::combine(p, args, out.floats()),
            Op::Rope(rope) => {
                let out = out.floats();
                out.copy_from_slice(x(0));
                let pairs = self.turn(&rope, args, 1);
                let angles = &self.angles;
                self.team.for_chunks(out, args.cols(0), |token, row| angles.rotate(&rope, pairs, token, row));
            }
            Op::KvWrite { state, .. } => {
                let Now { step, kept } = now()?;
                let all = |index: usize| Rows { data: x(index), stride: args.cols(index), at: 0 };
                self.written += kept.store(p, state, step, &KvRows { keys: all(0), values: all(1) });
            }
            Op::Attention(a) => {
                let Now { step, kept } = now()?;
                let inputs = Inputs { p, kept, step, q: x(0), sinks: x(2) };
                let looks = attention::looks(&a, step);
                self.multiplied += looks * (a.heads * (a.head_dim + a.value_dim)) as u64;
                self.read += attention::attend(&a, &inputs, &mut self.attention, out.floats())?;
            }
            Op::Sdpa(spec) => sdpa::attend(p, &spec, args, out.floats()),
            Op::ShortConv { state } => {
                let Now { step, kept } = now()?;
                kept.short_conv(state, &Call { p, step, args }, out.floats());
            }
            Op::Recurrence(r) => {
                let Now { step, kept } = now()?;
                kept.recurrence(&r, &Call { p, step, args }, out.floats())?;
            }
            Op::Argmax | Op::TopK { .. } => ops::top_k(p, x(0), args.cols(0), out.words()),
            Op::Sample => ops::choose(p, args, &self.scratches, out.words()),
            Op::Project(spec) => self.project(&spec, args, out.floats())?,
            Op::GatedProject { norm, act } => self.gated(norm, act, args, out.floats())?,
            Op::Qkv(spec) => self.qkv(&spec, args, now()?, out.floats())?,
        }
        Ok(())
    }

    /// Prepares the angles of the positions at input `at`, for the frequencies that follow them; returns their pairs.
    pub(crate) fn turn(&mut self, rope: &Rope, args: &Args<'_>, at: usize) -> usize {
        let [positions, freqs] = [at, at + 1].map(|index| args.inputs[index].node);
        let wanted = positions.zip(freqs).map(|nodes| (nodes, rope.magnitude));
        if wanted.is_none() || self.angles_of != wanted {
            self.angles.set(args.words(at), args.floats(at + 1), rope.magnitude);
            self.angles_of = wanted;
        }
        args.floats(at + 1).len()
    }
}
