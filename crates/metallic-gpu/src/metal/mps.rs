//! Apple's own kernels: products by MetalPerformanceShaders. What they are asked for stands in `driver::mps`.

use std::sync::{Arc, Mutex};

use metallic_core::DType;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2::{AnyThread, msg_send};
use objc2_metal::MTLCommandBuffer;
use objc2_metal_performance_shaders::{MPSDataType, MPSMatrix, MPSMatrixDescriptor, MPSMatrixMultiplication};

use super::buffer::Buffer;
use super::device::RawDevice;
use super::graph::{BoundGraph, Graphs};
use crate::cache::Cache;
use crate::driver::check;
use crate::driver::mps::{self, MatrixForm, ProductKey};
use crate::driver::steps::Step;
use crate::error::GpuError;
use crate::kernels::{Call, Gemm};
use crate::lock;
use crate::pipelines::{LibraryMetrics, ReadyKey};

/// Kernels of products that are kept, and forms of matrices.
const PRODUCTS: usize = 256;

/// A kernel of MPS. Only one thread may encode with it at a time.
pub(super) struct Kernel(Mutex<Retained<MPSMatrixMultiplication>>);

// SAFETY: kernels of MPS may be used from any thread, by one at a time, for which the lock is.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// What matrices look like.
struct Descriptor(Retained<MPSMatrixDescriptor>);

// SAFETY: it is not changed after it was made, and its reference count is atomic.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

/// What Apple's libraries have made ready for a device.
pub(super) struct Mps {
    device: RawDevice,
    kernels: Cache<ProductKey, Kernel, GpuError>,
    descriptors: Cache<MatrixForm, Descriptor, GpuError>,
    graphs: Graphs,
}

impl Mps {
    pub(super) fn new(device: RawDevice) -> Mps {
        // What could not be made may be made the next time: no memory, most of the time.
        let lasting = |_: &GpuError| false;
        Mps {
            graphs: Graphs::new(device.clone()),
            device,
            kernels: Cache::remembering(PRODUCTS, lasting),
            descriptors: Cache::remembering(PRODUCTS, lasting),
        }
    }

    pub(super) fn metrics(&self) -> LibraryMetrics {
        LibraryMetrics { products: self.kernels.metrics(), graphs: self.graphs.metrics() }
    }

    pub(super) fn keys(&self) -> Vec<ReadyKey> {
        let products = ReadyKey::of("mps", self.kernels.keys(), |key| format!("{key:?}"));
        products.chain(ReadyKey::of("mpsgraph", self.graphs.keys(), |key| format!("{key:?}"))).collect()
    }

    /// Makes ready what does not depend on memory.
    pub(super) fn prepare(&self, call: &Call) -> Result<(), GpuError> {
        match call {
            Call::Product(gemm) => {
                let (key, forms) = mps::product(gemm)?;
                self.kernel(&key)?;
                forms.iter().try_for_each(|form| self.descriptor(form).map(drop))
            }
            Call::Graph(graph) => self.graphs.compiled(graph).map(drop),
        }
    }

    /// A step that a library does, on the memory that its dispatch is bound to.
    pub(super) fn bind(&self, step: &Step<'_>, buffers: &[Arc<Buffer>]) -> Result<Option<Bound>, GpuError> {
        match &step.call {
            None => Ok(None),
            Some(Call::Product(gemm)) => self.bind_product(step, gemm, buffers).map(Some),
            Some(Call::Graph(graph)) => {
                self.graphs.bind(&step.dispatch, graph, buffers).map(|bound| Some(Bound::Graph(bound)))
            }
        }
    }

    fn bind_product(&self, step: &Step<'_>, gemm: &Gemm, buffers: &[Arc<Buffer>]) -> Result<Bound, GpuError> {
        check::product(&step.dispatch, gemm)?;
        let (key, forms) = mps::product(gemm)?;
        let kernel = self.kernel(&key)?;
        let bound = step.dispatch.bindings().zip(buffers).zip(&forms);
        let matrix = |(((_, binding), buffer), form): (
            ((u32, &crate::command::Binding), &Arc<Buffer>),
            _,
        )| {
            let descriptor = self.descriptor(form)?;
            let offset = binding.region.offset();
            // SAFETY: the region is inside the buffer (`check::binding`) and as long as the product says of it (above); its
            // offset is a multiple of 16; `Kept` holds the buffer until the GPU is done. MPS says that nil may come back.
            let made: Option<Retained<MPSMatrix>> = unsafe {
                msg_send![MPSMatrix::alloc(), initWithBuffer: &*buffer.raw, offset: offset, descriptor: &*descriptor.0]
            };
            made.ok_or_else(|| GpuError::execution(step.dispatch.name(), "MPS makes no matrix of its memory"))
        };
        let matrices = bound.map(matrix).collect::<Result<Vec<_>, GpuError>>()?;
        let short = || GpuError::execution(step.dispatch.name(), "a product has three matrices");
        Ok(Bound::Product(kernel, matrices.try_into().map_err(|_| short())?))
    }

    fn kernel(&self, key: &ProductKey) -> Result<Arc<Kernel>, GpuError> {
        self.kernels.get_or_make(key, || {
            let ProductKey { rows, columns, interior, adds } = *key;
            let (alpha, beta) = (1.0f64, if adds { 1.0f64 } else { 0.0 });
            // SAFETY: a device that MPS supports (`Limits::apple`), and sizes that are not 0 (`mps::product`). MPS says that nil may
            // come back.
            let made: Option<Retained<MPSMatrixMultiplication>> = unsafe {
                msg_send![
                    MPSMatrixMultiplication::alloc(),
                    initWithDevice: &*self.device,
                    transposeLeft: false,
                    transposeRight: true,
                    resultRows: rows,
                    resultColumns: columns,
                    interiorColumns: interior,
                    alpha: alpha,
                    beta: beta
                ]
            };
            let none = || GpuError::compile("MPSMatrixMultiplication", format!("none for {key:?}"));
            Ok(Kernel(Mutex::new(made.ok_or_else(none)?)))
        })
    }

    fn descriptor(&self, form: &MatrixForm) -> Result<Arc<Descriptor>, GpuError> {
        self.descriptors.get_or_make(form, || {
            let MatrixForm { rows, columns, matrices, row_bytes, matrix_bytes, dtype } = *form;
            let data_type = if dtype == DType::F16 { MPSDataType::Float16 } else { MPSDataType::Float32 };
            // SAFETY: rows are whole elements and hold their columns, matrices are whole rows (`mps::product`).
            let made = unsafe {
                MPSMatrixDescriptor::matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType(
                    rows,
                    columns,
                    matrices,
                    row_bytes,
                    matrix_bytes,
                    data_type,
                )
            };
            Ok(Descriptor(made))
        })
    }
}

/// Work of a library on memory.
pub(super) enum Bound {
    Product(Arc<Kernel>, [Retained<MPSMatrix>; 3]),
    Graph(BoundGraph),
}

// SAFETY: matrices are not changed after they were made, any thread may release them, and the rest is behind locks.
unsafe impl Send for Bound {}
// SAFETY: as above.
unsafe impl Sync for Bound {}

impl Bound {
    /// Encodes it into a command buffer that has no open encoder; the command buffer to go on with, which is another where the library
    /// has committed this one.
    pub(super) fn encode(
        &self,
        command_buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    ) -> Retained<ProtocolObject<dyn MTLCommandBuffer>> {
        match self {
            Bound::Product(kernel, [left, right, result]) => {
                let kernel = lock(&kernel.0);
                // SAFETY: the matrices are as large as the kernel was made for, and of types that it multiplies (`mps::product`);
                // no encoder is open.
                unsafe {
                    kernel.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix(
                        &command_buffer,
                        left,
                        right,
                        result,
                    );
                }
                command_buffer
            }
            Bound::Graph(graph) => graph.encode(&command_buffer),
        }
    }
}
