//! Products that a library of a device's maker may make, and what they mean: see `gemm.metal`.

use metallic_core::DType;

use super::{Constants, Launch, Slot, Stage, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// See [`Gemm`].
    GemmParams { m: u32, n: u32, k: u32, pitch: u32, adds: u32 }
}

use super::COMMON;

family! {
    "gemm" (GemmParams) uses COMMON;
    "gemm_f16", "gemm_bf16" { reads x: 16, w: 16; updates out: 16 }
}

/// `out [m, n] = x [m, k] · w [n, k]ᵀ`, with sums of floats and a result of floats.
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
    /// Whether `x` and `w` are bfloats; else they are halfs.
    pub bfloats: bool,
    /// Whether it is added to what is there.
    pub adds: bool,
}

impl Gemm {
    /// The type of both matrices.
    pub fn dtype(&self) -> DType {
        if self.bfloats { DType::BF16 } else { DType::F16 }
    }

    /// Bytes of `x`, `w` and the result.
    pub fn bytes(&self) -> [usize; 3] {
        let [m, n, k, pitch] = [self.m, self.n, self.k, self.pitch].map(|n| n as usize);
        let out = m.saturating_sub(1).saturating_mul(pitch).saturating_add(n);
        [m.saturating_mul(k).saturating_mul(2), n.saturating_mul(k).saturating_mul(2), out.saturating_mul(4)]
    }

    /// The product of these, with the kernel that says what it is.
    pub(crate) fn stage(self, [x, w, out]: [Slot; 3], limits: &Limits) -> Result<Stage, GpuError> {
        let Gemm { m, n, k, pitch, bfloats, adds } = self;
        let name = if bfloats { "gemm_bf16" } else { "gemm_f16" };
        let params = GemmParams { m, n, k, pitch, adds: u32::from(adds) }.params();
        let launch = Launch {
            work: work([m, n, k].map(|n| n as usize)),
            ..FAMILY.kernel(name, Constants::NONE).plane(params, (n, m), limits)
        };
        launch.check(limits)?;
        let [x_bytes, w_bytes, _] = self.bytes();
        // Where nothing is added, what is there is not read.
        let moved = m as usize * n as usize * if adds { 4 } else { 2 };
        let stage =
            Stage::new(launch, [x, w, out]).touching(0, x_bytes).touching(1, w_bytes).touching(2, moved);
        Ok(stage.by_library(self))
    }
}
