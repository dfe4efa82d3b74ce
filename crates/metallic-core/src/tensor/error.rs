//! What can be wrong with a view or an operation on tensors.

use crate::DType;

/// Why a view or an operation on tensors is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// More axes than tensors have, or strides that do not belong to the shape.
    #[error(
        "a tensor has at most {} axes, each with a stride; found are {axes} axes and {strides} strides",
        crate::MAX_RANK
    )]
    Rank {
        /// Axes of the shape.
        axes: usize,
        /// Strides given with them.
        strides: usize,
    },
    /// An order of axes that does not name each of them.
    #[error("a permutation of {shape} names each of its {axes} axes once; found is {order}")]
    Order {
        /// The order.
        order: String,
        /// The shape.
        shape: String,
        /// Axes of the shape.
        axes: usize,
    },
    /// Elements or bytes beyond what can be counted.
    #[error("{dtype} {shape} is larger than the address space")]
    TooLarge {
        /// Element type.
        dtype: DType,
        /// The shape.
        shape: String,
    },
    /// A view that would cut a block of a quantised type.
    #[error(
        "a view of {dtype} is {found}; it needs an axis of stride 1 in whole blocks of {}, and every other stride and the offset at block borders",
        dtype.block_len()
    )]
    Blocks {
        /// Element type.
        dtype: DType,
        /// Shape, strides and offset.
        found: String,
    },
    /// An axis that is not there.
    #[error("axis {axis} of {shape} is not there")]
    Axis {
        /// The axis.
        axis: usize,
        /// The shape.
        shape: String,
    },
    /// A slice that does not lie inside its axis, or a step of 0.
    #[error("{range} of axis {axis} is outside {shape}")]
    Slice {
        /// What was asked for.
        range: String,
        /// The axis.
        axis: usize,
        /// The shape.
        shape: String,
    },
    /// A shape that this view cannot take.
    #[error("{found} cannot be {action} {needed}: {reason}")]
    Shape {
        /// The view.
        found: String,
        /// `reshaped to` or `broadcast to`.
        action: &'static str,
        /// The shape asked for.
        needed: String,
        /// Why not.
        reason: &'static str,
    },
    /// A copy between views that differ in shape, or to a type that cannot be made of the other.
    #[error("{found} cannot be copied to {needed}")]
    Copy {
        /// What is read.
        found: String,
        /// What is to be written.
        needed: String,
    },
    /// An operation that has no meaning without a step.
    #[error("`{op}` uses what a program keeps between steps; it cannot be carried out alone")]
    Alone {
        /// The operation.
        op: &'static str,
    },
    /// An operand whose elements do not lie one after another.
    #[error("{operand} of `{op}` is {found}; it must be contiguous")]
    Strided {
        /// The operation.
        op: &'static str,
        /// Which operand.
        operand: String,
        /// The view.
        found: String,
    },
    /// Shapes that cannot be brought together.
    #[error("{operand} of `{op}` is {found}, it needs {needed}")]
    Operand {
        /// The operation.
        op: &'static str,
        /// Which operand: `input 1`.
        operand: String,
        /// What it is.
        found: String,
        /// What would fit.
        needed: String,
    },
    /// A view reaches beyond its memory.
    #[error("{operand} of `{op}` reaches byte {needed} of a memory of {found}")]
    Bounds {
        /// The operation.
        op: &'static str,
        /// Which operand.
        operand: String,
        /// Bytes the view needs.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// An output shares memory with something that must stay as it is.
    #[error("{operand} of `{op}` overlaps {with}; results need a place of their own")]
    Overlap {
        /// The operation.
        op: &'static str,
        /// Which output.
        operand: String,
        /// What it overlaps.
        with: String,
    },
    /// Numbers that do not fill a shape.
    #[error("{found} numbers were given for {shape}, which holds {needed}")]
    Count {
        /// Numbers given or asked for.
        found: usize,
        /// The shape.
        shape: String,
        /// Elements of the shape.
        needed: usize,
    },
}
