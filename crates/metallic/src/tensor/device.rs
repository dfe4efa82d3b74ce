//! An open device that tensors live on.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use metallic_core::tensor::{Evaluated, Operand, TensorDevice, TensorMemory};
use metallic_core::{Backend, BackendError, DeviceInfo, Op, RunStats};

use super::Error;
use crate::Device;

/// An open device that tensors live on: a cheap handle, shared by all of them.
///
/// ```
/// use metallic::Device;
/// use metallic::tensor::{DType, OpenDevice, Tensor};
///
/// let device = OpenDevice::open(Device::Auto)?;
/// let ones = Tensor::ones(&device, DType::F32, [2, 2])?;
/// assert_eq!((&ones + &ones).tensor()?.to_vec::<f32>()?, [2.0; 4]);
/// assert!(device.stats().dispatches > 0); // The device did the work.
/// # Ok::<(), metallic::tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct OpenDevice(Arc<Inner>);

struct Inner {
    info: DeviceInfo,
    tensors: Arc<dyn TensorDevice>,
    stats: Mutex<RunStats>,
}

impl OpenDevice {
    /// Opens a device with its default options.
    #[expect(clippy::needless_pass_by_value, reason = "a device is named where it is opened")]
    pub fn open(device: Device) -> Result<OpenDevice, Error> {
        Ok(OpenDevice::new(device.open(0)?.as_ref()))
    }

    /// The tensors of a backend that is open already.
    pub fn new(backend: &dyn Backend) -> OpenDevice {
        let (info, tensors) = (backend.info().clone(), backend.tensors());
        OpenDevice(Arc::new(Inner { info, tensors, stats: Mutex::default() }))
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// What all operations on it have cost so far.
    pub fn stats(&self) -> RunStats {
        self.0.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Memory of `bytes` bytes for [`super::Tensor::from_region`].
    pub fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, Error> {
        Ok(self.0.tensors.allocate(bytes)?)
    }

    /// Refuses memory of another device.
    pub(super) fn own(&self, memory: &dyn TensorMemory) -> Result<(), Error> {
        if self.0.tensors.owns(memory) {
            return Ok(());
        }
        let (device, operand) = (self.0.info.kind, "the region".to_owned());
        Err(BackendError::ForeignMemory { device, operand }.into())
    }

    /// Carries out one operation.
    pub(super) fn eval(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Arc<dyn TensorMemory>, Error> {
        let Evaluated { memory, stats, .. } = self.0.tensors.eval(op, inputs)?;
        self.count(&stats);
        Ok(memory)
    }

    /// Copies the elements of a view to those of another.
    pub(super) fn copy(&self, from: Operand<'_>, to: Operand<'_>) -> Result<(), Error> {
        let stats = self.0.tensors.copy(from, to)?;
        self.count(&stats);
        Ok(())
    }

    fn count(&self, stats: &RunStats) {
        self.0.stats.lock().unwrap_or_else(PoisonError::into_inner).add(stats);
    }
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenDevice({}: {})", self.info().kind, self.info().name)
    }
}
