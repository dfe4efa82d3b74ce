//! Products that a library of a device's maker may make, and what they mean: see `gemm.metal`.

use metallic_core::DType;

use super::{Call, Constants, Launch, Slot, Stage, count, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// See [`Gemm`].
    GemmParams { m: u32, n: u32, k: u32, pitch: u32, adds: u32, rows: u32 }
}

use super::COMMON;

family! {
    "gemm" (GemmParams) uses COMMON;
    "gemm_f16", "gemm_bf16" { reads x: 16, w: 16; updates out: 16 }
    "gemm_f32" { reads x: 4, w: 4; updates out: 4 }
}

/// `out [m, n] = x [m, k] · w [n, k]ᵀ`, with sums of floats and a result of floats; as often as there are matrices, which follow
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Rows of `x`.
    pub m: u32,
    /// Rows of `w`.
    pub n: u32,
    /// Columns of both.
    pub k: u32,
    /// Elements from a row of the result to the next.
    pub pitch: u32,
    /// The type of `x` and `w`: `F16`, `BF16` or `F32`.
    pub dtype: DType,
    /// Products of as many matrices.
    pub batches: u32,
    /// Whether it is added to what is there.
    pub adds: bool,
}

impl Gemm {
    /// Bytes of `x`, `w` and the result.
    pub fn bytes(&self) -> [usize; 3] {
        let [m, n, k, pitch, batches] =
            [self.m, self.n, self.k, self.pitch, self.batches].map(|n| n as usize);
        let (size, rows) = (self.dtype.block_bytes(), m.saturating_mul(batches));
        let out = rows.saturating_sub(1).saturating_mul(pitch).saturating_add(n);
        let matrix = |rows: usize| rows.saturating_mul(k).saturating_mul(size);
        [matrix(rows), matrix(n.saturating_mul(batches)), out.saturating_mul(4)]
    }

    /// The product of these, with the kernel that says what it is.
    pub(crate) fn stage(self, [x, w, out]: [Slot; 3], limits: &Limits) -> Result<Stage, GpuError> {
        let Gemm { m, n, k, pitch, dtype, batches, adds } = self;
        let rows = count("gemm", m as usize * batches as usize)?;
        let params = GemmParams { m, n, k, pitch, adds: u32::from(adds), rows }.params();
        let launch = Launch {
            work: work([rows, n, k].map(|n| n as usize)),
            ..FAMILY.of_float("gemm", dtype, Constants::NONE)?.plane(params, (n, rows), limits)
        };
        launch.check(limits)?;
        let [x_bytes, w_bytes, _] = self.bytes();
        // Where nothing is added, what is there is not read.
        let moved = rows as usize * n as usize * if adds { 4 } else { 2 };
        let stage =
            Stage::new(launch, [x, w, out]).touching(0, x_bytes).touching(1, w_bytes).touching(2, moved);
        Ok(stage.by_library(Call::Product(self)))
    }
}
