//! Operands in awkward places.

use metallic_core::DType;
use metallic_core::quant::quantize;
use metallic_core::tensor::View;

use crate::random::Random;

/// How the elements of an operand lie in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
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
    /// The outermost axis repeats one part. For inputs.
    RowsRepeated,
    /// The innermost axis repeats one element. For inputs.
    ColumnsRepeated,
}

impl Layout {
    /// Every layout an output may have.
    pub const OUTPUTS: [Layout; 5] =
        [Layout::Plain, Layout::Offset, Layout::Turned, Layout::Sliced, Layout::Stepped];

    /// A view of this shape that lies so.
    pub fn view(self, dtype: DType, shape: &[usize]) -> View {
        let view = self.try_view(dtype, shape);
        view.unwrap_or_else(|error| panic!("{self:?} {dtype} {shape:?}: {error}"))
    }

    fn try_view(self, dtype: DType, shape: &[usize]) -> Result<View, metallic_core::tensor::TensorError> {
        let plain = View::contiguous(dtype, shape)?;
        let rank = shape.len();
        if rank == 0 || plain.is_empty() {
            return Ok(plain);
        }
        let block = dtype.block_len();
        match self {
            Layout::Plain => Ok(plain),
            Layout::Offset => View::strided(dtype, 3 * block, shape, plain.strides()),
            Layout::Turned => {
                let opposite: Vec<usize> = shape.iter().rev().copied().collect();
                let order: Vec<usize> = (0..rank).rev().collect();
                View::contiguous(dtype, &opposite)?.permute(&order)
            }
            Layout::Sliced => {
                // Along the blocks of a quantised type, neighbours are blocks.
                let pad = |axis: usize| if axis == rank - 1 { block } else { 1 };
                let outer: Vec<usize> = (0..rank).map(|axis| shape[axis] + 2 * pad(axis)).collect();
                let mut view = View::contiguous(dtype, &outer)?;
                for (axis, len) in shape.iter().enumerate() {
                    view = view.slice(axis, pad(axis)..pad(axis) + len)?;
                }
                Ok(view)
            }
            Layout::Stepped => {
                let mut outer = shape.to_vec();
                outer[rank - 1] *= 2;
                View::contiguous(dtype, &outer)?.step(rank - 1, 2)
            }
            Layout::RowsRepeated => {
                let mut one = shape.to_vec();
                one[0] = 1;
                View::contiguous(dtype, &one)?.broadcast(shape)
            }
            Layout::ColumnsRepeated => {
                let mut one = shape.to_vec();
                one[rank - 1] = 1;
                View::contiguous(dtype, &one)?.broadcast(shape)
            }
        }
    }
}

/// An input: a memory's bytes and the view of them.
#[derive(Clone, Debug)]
pub struct Data {
    /// The memory. What is not part of the view is NaN, or the largest integer.
    pub bytes: Vec<u8>,
    /// The elements.
    pub view: View,
}

impl Data {
    /// Numbers in row-major order, laid out. Where elements repeat, the last one given counts.
    pub fn floats(view: View, mut value: impl FnMut(usize) -> f32) -> Data {
        let mut data = Data { bytes: vec![0xff; view.byte_range().end + super::TAIL], view };
        let size = view.dtype().block_bytes();
        for (index, at) in view.offsets().enumerate() {
            let place = &mut data.bytes[at * size..(at + 1) * size];
            quantize(view.dtype(), &[value(index)], place).expect("a float type");
        }
        data
    }

    /// Random numbers of `-scale .. scale`.
    pub fn random(view: View, scale: f32, random: &mut Random) -> Data {
        Data::floats(view, |_| random.signed() * scale)
    }

    /// Integers in row-major order, laid out.
    pub fn integers(view: View, mut value: impl FnMut(usize) -> u32) -> Data {
        let mut data = Data { bytes: vec![0xff; view.byte_range().end + super::TAIL], view };
        for (index, at) in view.offsets().enumerate() {
            data.bytes[at * 4..at * 4 + 4].copy_from_slice(&value(index).to_le_bytes());
        }
        data
    }

    /// Random blocks of a quantised type.
    pub fn blocks(view: View, random: &mut Random) -> Data {
        let (dtype, len) = (view.dtype(), view.byte_range().end);
        let elements = len / dtype.block_bytes() * dtype.block_len();
        let mut bytes = crate::cases::weights(dtype, elements, random);
        bytes.resize(len + super::TAIL, 0xff);
        Data { bytes, view }
    }
}
