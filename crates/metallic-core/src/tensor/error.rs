//! What can be wrong with a view or an operation on tensors.

use crate::DType;

/// Why a view or an operation on tensors is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TensorError {
    /// More axes than tensors have, or strides that do not belong to the shape.
    #[error(
        "a tensor has at most {} axes, each with a stride; found are {axes} axes and {strides} strides",
        crate::MAX_RANK
    )]
    Rank { axes: usize, strides: usize },
    /// An order of axes that does not name each of them.
    #[error("a permutation of {shape} names each of its {axes} axes once; found is {order}")]
    Order { order: String, shape: String, axes: usize },
    /// Elements or bytes beyond what can be counted.
    #[error("{dtype} {shape} is larger than the address space")]
    TooLarge { dtype: DType, shape: String },
    /// A view, with its shape, strides and offset, that would cut a block of a quantised type.
    #[error(
        "a view of {dtype} is {found}; it needs an axis of stride 1 in whole blocks of {}, and every other stride and the offset at block borders",
        dtype.block_len()
    )]
    Blocks { dtype: DType, found: String },
    /// An axis that is not there.
    #[error("axis {axis} of {shape} is not there")]
    Axis { axis: usize, shape: String },
    /// A slice that does not lie inside its axis, or a step of 0.
    #[error("{range} of axis {axis} is outside {shape}")]
    Slice { range: String, axis: usize, shape: String },
    /// A shape that this view cannot take; the action is `reshaped to` or `broadcast to`.
    #[error("{found} cannot be {action} {needed}: {reason}")]
    Shape { found: String, action: &'static str, needed: String, reason: &'static str },
    /// A copy between views that differ in shape, or to a type that cannot be made of the other.
    #[error("{found} cannot be copied to {needed}")]
    Copy { found: String, needed: String },
    /// An operation that has no meaning without a step.
    #[error("`{op}` uses what a program keeps between steps; it cannot be carried out alone")]
    Alone { op: &'static str },
    /// An operand (`input 1`) whose elements do not lie one after another.
    #[error("{operand} of `{op}` is {found}; it must be contiguous")]
    Strided { op: &'static str, operand: String, found: String },
    /// Shapes that cannot be brought together.
    #[error("{operand} of `{op}` is {found}, it needs {needed}")]
    Operand { op: &'static str, operand: String, found: String, needed: String },
    /// A view reaches beyond its memory; both are counted in bytes.
    #[error("{operand} of `{op}` reaches byte {needed} of a memory of {found}")]
    Bounds { op: &'static str, operand: String, needed: usize, found: usize },
    /// An output shares memory with something that must stay as it is.
    #[error("{operand} of `{op}` overlaps {with}; results need a place of their own")]
    Overlap { op: &'static str, operand: String, with: String },
    /// Numbers that do not fill a shape.
    #[error("{found} numbers were given for {shape}, which holds {needed}")]
    Count { found: usize, shape: String, needed: usize },
}
