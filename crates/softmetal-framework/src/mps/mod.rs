//! The part of MetalPerformanceShaders that products of matrices and graphs take, on the host, with the meaning and the rules that its
//! headers document.

mod command_buffer;
pub(crate) mod data_type;
mod kernel;
mod matrix;
mod multiply;
pub(crate) mod nd_array;
pub(crate) mod place;

pub(crate) use command_buffer::MpsCommandBuffer;
pub use command_buffer::set_graph_commits;
pub(crate) use multiply::dot;

use crate::metal::device_supports_mps;
use crate::objc::{Class, Id};
use crate::problem::{Rule, refuse};

/// Those that programs ask for by name.
pub(crate) static CLASSES: &[&Class] = &[
    &command_buffer::COMMAND_BUFFER,
    &kernel::KERNEL,
    &matrix::DESCRIPTOR,
    &matrix::MATRIX,
    &multiply::MULTIPLICATION,
    &nd_array::ARRAY,
    &nd_array::DESCRIPTOR,
];

/// Refuses an object that is being initialised, which goes with the attempt.
fn refuse_init(this: Id, rule: Rule, text: String) {
    this.release();
    refuse(rule, text);
}

/// `MPSSupportsMTLDevice`.
pub(crate) fn supports(device: Id) -> bool {
    !device.is_null() && device_supports_mps(device)
}
