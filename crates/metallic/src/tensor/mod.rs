//! Tensors that are computed at once: for tests, notebooks, examples and whatever a model does not need a graph for.
//!
//! A [`Tensor`] lives on an [`OpenDevice`] and every operation runs there. Views (slices, transposes, reshapes,
//! broadcasts) carry an offset and strides and copy nothing. Methods return a `Result`; the operators `+ - * /` return
//! a [`Computed`], which keeps the first error, so that a formula reads as one:
//!
//! ```
//! use metallic::Device;
//! use metallic::tensor::{DType, OpenDevice, Tensor};
//!
//! let device = OpenDevice::open(Device::Auto)?;
//! let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
//! let row = Tensor::from_slice(&device, &[10.0f32, 20.0], [2])?;
//!
//! let y = ((&x + &row) * 0.5 - 1.0).tensor()?;
//! assert_eq!(y.to_vec::<f32>()?, [4.5, 10.0, 5.5, 11.0]);
//!
//! let column = y.slice(1, 0..1)?; // A view: nothing is copied.
//! assert_eq!(column.transpose(0, 1)?.to_vec::<f32>()?, [4.5, 5.5]);
//! assert_eq!(x.matmul(&x.t()?)?.to_vec::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
//!
//! let three = Tensor::zeros(&device, DType::F32, [3])?;
//! let error = (&x + &three).tensor().unwrap_err();
//! assert!(error.to_string().contains("F32 [3]"), "{error}");
//! # Ok::<(), metallic::tensor::Error>(())
//! ```

mod compute;
mod create;
mod device;
mod element;
mod error;
mod operators;
mod views;

use std::fmt;
use std::sync::Arc;

use metallic_core::tensor::{Operand, TensorMemory};
use metallic_core::{Op, Sizes, TensorType, infer};

pub use device::OpenDevice;
pub use element::Element;
pub use error::Error;
pub use metallic_core::sample::Choice;
pub use metallic_core::tensor::{TensorError, View};
pub use metallic_core::{Binary, DType, Mask, Rope, RopePairs, Sdpa, Unary};
pub use operators::{Computed, Term};

/// A tensor on a device. Cloning shares the memory; only [`Tensor::copy_from`] writes to what others may see.
#[derive(Clone)]
pub struct Tensor {
    device: OpenDevice,
    memory: Arc<dyn TensorMemory>,
    view: View,
}

impl Tensor {
    /// Where it lives.
    pub fn device(&self) -> &OpenDevice {
        &self.device
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.view.dtype()
    }

    /// Axis lengths, outermost first; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        self.view.shape()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.view.elements()
    }

    /// Which elements of its memory it is made of: offset and strides.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The memory it lies in.
    pub fn memory(&self) -> &Arc<dyn TensorMemory> {
        &self.memory
    }

    fn operand(&self) -> Operand<'_> {
        Operand { memory: &self.memory, view: &self.view }
    }

    /// A place for a result.
    fn empty(device: &OpenDevice, view: View) -> Result<Tensor, Error> {
        let memory = device.allocate(view.byte_range().end)?;
        Ok(Tensor { device: device.clone(), memory, view })
    }

    /// Carries out an operation on this and further operands, each made contiguous where it is not.
    fn eval(&self, op: &Op, more: &[&Tensor]) -> Result<Tensor, Error> {
        let inputs = || std::iter::once(self).chain(more.iter().copied());
        let types: Vec<TensorType> = inputs().map(|input| input.view.ty()).collect();
        let ty = infer(op, &types)?;
        let shape: Vec<usize> = ty.shape.dims().iter().map(|dim| Sizes::default().of(*dim)).collect();
        let view = View::contiguous(ty.dtype, &shape)?;
        // A view may repeat elements without end: nothing is copied where nothing is made of it.
        if view.is_empty() {
            return Tensor::empty(&self.device, view);
        }
        let inputs = inputs().map(Tensor::contiguous).collect::<Result<Vec<_>, _>>()?;
        let operands: Vec<Operand<'_>> = inputs.iter().map(Tensor::operand).collect();
        let memory = self.device.eval(op, &operands)?;
        Ok(Tensor { device: self.device.clone(), memory, view })
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} on {})", self.view, self.device.info().kind)
    }
}
