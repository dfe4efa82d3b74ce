//! The commands of one operation while they are put together.

use metallic_core::DType;
use metallic_core::tensor::View;

use crate::backend::Shared;
use crate::command::{Access, Binding, Command, Dispatch, Region};
use crate::error::GpuError;
use crate::gpu::{Limits, Storage};
use crate::kernels::Launch;
use crate::kernels::axes::Axes;
use crate::kernels::copy;
use crate::pipelines::HeldKernels;
use crate::pool::PooledBuffer;

/// Bytes bound where an argument is not used.
const STAND_IN: usize = 16;

/// A tensor: its elements and the bytes from the first to the last of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    pub(super) region: Region,
    pub(super) view: View,
}

impl Tensor {
    /// The tensor of a view, which lies inside its memory.
    pub(super) fn of(memory: Region, view: &View) -> Result<Tensor, GpuError> {
        let range = view.byte_range();
        Ok(Tensor { region: memory.slice(range.start, range.len())?, view: *view })
    }

    pub(super) fn dtype(&self) -> DType {
        self.view.dtype()
    }
}

/// Commands of one operation, and what has to stay until they are done.
pub(super) struct Work<'a> {
    pub(super) shared: &'a Shared,
    op: &'static str,
    limits: Limits,
    /// Threads a kernel allows, where it was to be launched with more.
    fewer: Option<u32>,
    pub(super) commands: Vec<Command>,
    pub(super) scratch: Vec<PooledBuffer>,
    pub(super) held: HeldKernels,
}

impl<'a> Work<'a> {
    /// What `plan` puts together, planned again where the compiler left a kernel fewer threads than the device has.
    pub(super) fn planned(
        shared: &'a Shared,
        op: &'static str,
        plan: impl Fn(&mut Work<'a>) -> Result<(), GpuError>,
    ) -> Result<Work<'a>, GpuError> {
        let mut limits = *shared.gpu.limits();
        loop {
            let (commands, scratch, held) = Default::default();
            let mut work = Work { shared, op, limits, fewer: None, commands, scratch, held };
            match (plan(&mut work), work.fewer) {
                (Err(_), Some(most)) if most < limits.max_threads => limits.max_threads = most,
                (done, _) => return done.map(|()| work),
            }
        }
    }

    pub(super) fn op(&self) -> &'static str {
        self.op
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn unsupported(&self, reason: impl Into<String>) -> GpuError {
        GpuError::Unsupported { op: self.op, reason: reason.into() }
    }

    /// A count as kernels take it.
    pub(super) fn count(&self, n: usize) -> Result<u32, GpuError> {
        u32::try_from(n).map_err(|_| self.unsupported(format!("{n} elements or bytes, at most {}", u32::MAX)))
    }

    /// Appends a launch; an argument without a region is one that its constants leave unused.
    pub(super) fn launch(&mut self, launch: &Launch, regions: &[Option<Region>]) -> Result<(), GpuError> {
        let pipeline = self.held.take(&self.shared.pipelines, &launch.kernel)?;
        if launch.threads.iter().product::<u32>() > pipeline.max_threads() {
            self.fewer = Some(pipeline.max_threads());
        }
        launch.check(&pipeline.limits(&self.limits))?;
        // An unused argument is bound all the same, at a place that suits any type.
        let stand_in = if regions.iter().any(Option::is_none) { Some(self.scratch(STAND_IN)?) } else { None };
        let bind = |(region, access): (&Option<Region>, Access)| -> Option<Binding> {
            Some(match (region, access) {
                (None, _) => stand_in?.unused(),
                (Some(region), Access::Unused) => region.unused(),
                (Some(region), Access::Read) => region.read(),
                (Some(region), Access::Write) => region.write(),
                (Some(region), Access::ReadWrite) => region.read_write(),
            })
        };
        let args = launch.kernel.args.iter().map(|arg| arg.access);
        let bindings: Vec<Binding> = regions.iter().zip(args).filter_map(bind).collect();
        let dispatch = Dispatch::new(self.op, pipeline.id(), launch, &bindings)?;
        self.commands.push(Command::Dispatch(dispatch));
        Ok(())
    }

    /// Memory of this operation alone.
    pub(super) fn scratch(&mut self, bytes: usize) -> Result<Region, GpuError> {
        let buffer = self.shared.pool.transient("scratch of a tensor operation", bytes, Storage::Private)?;
        let region = buffer.region();
        self.scratch.push(buffer);
        Ok(region)
    }

    /// Words of the host, in memory of this operation alone.
    pub(super) fn words(&mut self, words: &[u32]) -> Result<Region, GpuError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let buffer =
            self.shared.pool.transient("words of a tensor operation", bytes.len(), Storage::Shared)?;
        let region = buffer.region();
        self.shared.gpu.write(region.buffer(), region.offset(), &bytes)?;
        self.scratch.push(buffer);
        Ok(region)
    }

    /// A contiguous tensor in memory of this operation alone.
    pub(super) fn scratch_tensor(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor, GpuError> {
        let view = View::contiguous(dtype, shape).map_err(|error| self.unsupported(error.to_string()))?;
        let region = self.scratch(view.byte_range().len())?;
        Tensor::of(region, &view)
    }

    /// Copies elements, with a cast among floats.
    pub(super) fn copy(&mut self, from: Tensor, to: Tensor) -> Result<(), GpuError> {
        let strides = [from.view.strides(), to.view.strides()];
        let axes = Axes::new(self.op, to.view.shape(), strides)?;
        let launch = copy::copy((from.dtype(), to.dtype()), &axes, self.limits())?;
        self.launch(&launch, &[Some(from.region), Some(to.region)])
    }

    /// The same elements one after another, as this type: the tensor itself, or a copy.
    pub(super) fn dense(&mut self, tensor: Tensor, dtype: DType) -> Result<Tensor, GpuError> {
        if tensor.view.is_contiguous() && tensor.dtype() == dtype {
            return Ok(tensor);
        }
        let made = self.scratch_tensor(dtype, tensor.view.shape())?;
        self.copy(tensor, made)?;
        Ok(made)
    }

    /// Where a kernel that writes contiguous results of a type puts them: the output itself, or scratch that
    /// [`Work::deliver`] copies from.
    pub(super) fn target(&mut self, output: Tensor, dtype: DType) -> Result<Tensor, GpuError> {
        if output.view.is_contiguous() && output.dtype() == dtype {
            return Ok(output);
        }
        self.scratch_tensor(dtype, output.view.shape())
    }

    /// Brings a target's elements to the output, where they are not there yet.
    pub(super) fn deliver(&mut self, target: Tensor, output: Tensor) -> Result<(), GpuError> {
        if target.region == output.region {
            return Ok(());
        }
        self.copy(target, output)
    }
}
