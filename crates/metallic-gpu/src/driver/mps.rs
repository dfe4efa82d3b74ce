//! What a library of Apple's is asked for: products as MPS describes them, and graphs against the memory they are bound to.

use metallic_core::DType;

use crate::command::Dispatch;
use crate::error::GpuError;
use crate::graph::{Graph, Typed};
use crate::kernels::Gemm;

/// What a kernel of MPS is made for: `result [rows, columns] (+)= left [rows, interior] · right [columns, interior]ᵀ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProductKey {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) interior: usize,
    /// Whether it is added to what is there.
    pub(crate) adds: bool,
}

/// What a descriptor says of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatrixForm {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) matrices: usize,
    pub(crate) row_bytes: usize,
    pub(crate) matrix_bytes: usize,
    pub(crate) dtype: DType,
}

impl MatrixForm {
    fn new([rows, columns, pitch]: [u32; 3], matrices: u32, dtype: DType) -> MatrixForm {
        let [rows, columns, pitch, matrices] = [rows, columns, pitch, matrices].map(|n| n as usize);
        let row_bytes = pitch.saturating_mul(dtype.block_bytes());
        let matrix_bytes = rows.saturating_mul(row_bytes);
        MatrixForm { rows, columns, matrices, row_bytes, matrix_bytes, dtype }
    }
}

/// A product as MPS takes it: its kernel, and the left, the right and the result matrices.
pub(crate) fn product(gemm: &Gemm) -> Result<(ProductKey, [MatrixForm; 3]), GpuError> {
    let Gemm { m, n, k, pitch, dtype, batches, adds } = *gemm;
    if !matches!(dtype, DType::F16 | DType::F32) {
        let reason = format!("matrices of {dtype} by MPS: F16 or F32 are needed");
        return Err(GpuError::unsupported("gemm", reason));
    }
    if [m, n, k, batches].contains(&0) || pitch < n {
        let reason = format!("a product of {batches} × [{m}, {k}] · [{n}, {k}] into rows of {pitch} by MPS");
        return Err(GpuError::unsupported("gemm", reason));
    }
    let key = ProductKey { rows: m as usize, columns: n as usize, interior: k as usize, adds };
    let forms = [
        MatrixForm::new([m, k, k], batches, dtype),
        MatrixForm::new([n, k, k], batches, dtype),
        MatrixForm::new([m, n, pitch], batches, DType::F32),
    ];
    Ok((key, forms))
}

/// A graph against the arguments of the launch that it stands for: each is as long as its tensor.
pub(crate) fn graph(dispatch: &Dispatch, graph: &Graph) -> Result<(), GpuError> {
    let given = graph.placeholders().map(|(_, argument, typed)| (argument, typed));
    let wanted = graph.output().map(|(_, argument, typed)| (argument, typed));
    given.chain(wanted).try_for_each(|(argument, typed)| tensor(dispatch, argument, typed))
}

fn tensor(dispatch: &Dispatch, argument: usize, typed: &Typed) -> Result<(), GpuError> {
    let bound = dispatch.bindings().nth(argument).map(|(_, binding)| binding.region);
    let problem = match bound {
        None => "nothing is bound to it".to_owned(),
        Some(region) if region.len() < typed.bytes() => {
            format!("{} bytes, the graph's tensor {:?} has {}", region.len(), typed.shape, typed.bytes())
        }
        Some(region) if !region.offset().is_multiple_of(typed.element.bytes()) => {
            format!("byte offset {}, {} is needed", region.offset(), typed.element.bytes())
        }
        Some(_) => return Ok(()),
    };
    let (kernel, label) = (dispatch.launch.kernel.function, dispatch.label);
    Err(GpuError::Binding { kernel, index: argument + 1, argument: label, problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Region;
    use crate::gpu::{AppleKernels, BufferId, Limits, PipelineId};
    use crate::kernels::attention::scene::{GROUPED, Scene};
    use crate::kernels::{Call, attention_staged};
    use crate::threadgroup::tests::LIMITS;

    const GEMM: Gemm = Gemm { m: 9, n: 40, k: 64, pitch: 48, dtype: DType::F16, batches: 3, adds: true };

    #[test]
    fn rows_pitches_and_batches_reach_the_descriptors() {
        let (key, [left, right, result]) = product(&GEMM).unwrap();
        assert_eq!(key, ProductKey { rows: 9, columns: 40, interior: 64, adds: true });
        assert_eq!((left.rows, left.columns, left.row_bytes, left.matrix_bytes), (9, 64, 128, 9 * 128));
        assert_eq!((right.rows, right.columns, right.row_bytes), (40, 64, 128));
        assert_eq!((result.columns, result.row_bytes, result.matrix_bytes), (40, 192, 9 * 192));
        assert_eq!((result.matrices, result.dtype, left.dtype), (3, DType::F32, DType::F16));
    }

    #[test]
    fn products_of_one_size_share_a_kernel_and_others_do_not() {
        let key = |gemm: Gemm| product(&gemm).unwrap().0;
        assert_eq!(key(GEMM), key(Gemm { pitch: 40, batches: 1, dtype: DType::F32, ..GEMM }));
        assert_ne!(key(GEMM), key(Gemm { adds: false, ..GEMM }));
        assert_ne!(key(GEMM), key(Gemm { m: 10, ..GEMM }));
    }

    #[test]
    fn what_mps_does_not_multiply_is_refused() {
        let text = product(&Gemm { dtype: DType::BF16, ..GEMM }).unwrap_err().to_string();
        assert!(text.contains("BF16") && text.contains("F16 or F32"), "{text}");
        assert!(product(&Gemm { m: 0, ..GEMM }).is_err() && product(&Gemm { pitch: 39, ..GEMM }).is_err());
    }

    #[test]
    fn a_graph_is_held_to_the_memory_it_is_bound_to() {
        let spec = Scene::new(GROUPED, DType::F16, &[(30, 2)]).spec();
        let limits = Limits { apple: AppleKernels::ALL, ..LIMITS };
        let stages = attention_staged::plan(&spec, &limits).unwrap();
        let Some(Call::Graph(own)) = stages.stages[2].call() else { panic!("a graph") };
        let own = own.graph().unwrap();
        let bind = |short: usize| {
            let launch = &stages.stages[2].launch;
            let lens = [2 * 6 * 64 * 4, 2 * 32 * 64 * 2, 2 * 32 * 64 * 2, 16, 24, 2 * 6 * 64 * 4];
            let regions = lens.iter().enumerate().map(|(i, len)| {
                let region = Region::whole(BufferId(i as u32), len - if i == short { 4 } else { 0 });
                region.bind(launch.kernel.args[i].access)
            });
            Dispatch::new("t", PipelineId(0), launch, &regions.collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(graph(&bind(9), &own), Ok(()));
        for short in [0, 1, 2, 3, 5] {
            let text = graph(&bind(short), &own).unwrap_err().to_string();
            assert!(text.contains("bytes, the graph's tensor"), "{short}: {text}");
        }
    }
}
