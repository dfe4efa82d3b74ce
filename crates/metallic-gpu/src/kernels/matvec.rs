//! Matrices times the vectors of a few tokens, everything around the product fused: see `matvec.metal`.

use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, Kernel, Launch, QUANT, QUANT_TYPES, Slot, Stage, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::tuning::Tuning;

/// Products, see the file.
pub(crate) const DOTS: (&str, &str) = ("dots.metal", include_str!("dots.metal"));

family! {
    "matvec" (ProjectParams) uses COMMON, FUNCTIONS, ACTIVATION, QUANT_TYPES, QUANT, PROJECT, DOTS;
    "matvec_1", "matvec_2", "matvec_4", "matvec_8" {
        reads x: 4, norm: 4, w0: 2, w1: 2, w2: 2, bias0: 4, bias1: 4, bias2: 4, residual: 4; writes out: 4
    }
}

/// Tokens that read the weights together.
pub(crate) const MAX_TOKENS: u32 = 8;
/// `ROWS` in the MSL: rows a lane works on at a time.
pub(crate) const ROWS: u32 = 4;
/// `PITCH` in the MSL, in bytes: the parts of one result.
pub(crate) const PITCH_BYTES: u32 = 36 * 4;

/// How the rows of a projection are spread, for every kernel that makes its products by [`DOTS`].
pub(crate) struct Spread {
    /// Tokens that read the weights together: 1, 2, 4 or [`MAX_TOKENS`].
    pub(crate) slots: u32,
    /// Blocks of [`ROWS`] rows of a simdgroup.
    blocks: u32,
    groups: [u32; 3],
    threads: u32,
    threadgroup_bytes: u32,
}

impl Spread {
    pub(crate) fn of(projection: &Projection, limits: &Limits) -> Spread {
        let slots = projection.tokens.clamp(1, MAX_TOKENS).next_power_of_two();
        let rows = projection.part_rows();
        let gated = projection.gate.is_some();
        let gates = if gated { 4 } else { 0 };
        let per_simd = |blocks: u32| ((blocks * ROWS + 1) * PITCH_BYTES + blocks * ROWS * gates) * slots;
        // A device that wants many simdgroups wants many at a time, which share a core's memory.
        let Tuning { matvec_simdgroups, matvec_blocks, matvec_sharing, .. } = limits.tuning;
        let room = limits.threadgroup_memory / (limits.busy() / 16).clamp(2, matvec_sharing.max(2));
        let tiles = |blocks: u32| -> u32 {
            let parts = if gated { &rows[..1] } else { &rows[..] };
            parts.iter().map(|rows| rows.div_ceil(blocks * ROWS)).sum()
        };
        let mut blocks = 1;
        while blocks < matvec_blocks && tiles(2 * blocks) >= limits.busy() && per_simd(2 * blocks) <= room {
            blocks *= 2;
        }
        let most =
            (limits.threadgroup_memory / per_simd(blocks)).min(limits.max_threads / limits.simd_width.max(1));
        let simds = matvec_simdgroups.min(most).min(tiles(blocks)).max(1);
        Spread {
            slots,
            blocks,
            groups: [tiles(blocks).div_ceil(simds), projection.tokens.div_ceil(slots), 1],
            threads: simds * limits.simd_width,
            threadgroup_bytes: simds * per_simd(blocks),
        }
    }

    pub(crate) fn launch(
        &self,
        kernel: Kernel,
        params: ProjectParams,
        limits: &Limits,
    ) -> Result<Launch, GpuError> {
        let rows = [params.rows0, params.rows1, params.rows2].map(|rows| rows as usize).iter().sum();
        let launch = Launch {
            threadgroup_bytes: self.threadgroup_bytes,
            work: work([params.tokens as usize, params.cols as usize, rows]),
            ..kernel.launch(params.params(), self.groups, [self.threads, 1, 1])
        };
        launch.check(limits)?;
        Ok(launch)
    }

    /// Times the weights are read: once by [`Spread::slots`] tokens.
    pub(crate) fn passes(&self) -> u32 {
        self.groups[1]
    }

    /// Bytes of vectors that are read after their first reading: each block of rows reads its tokens' and the norm's.
    pub(crate) fn vectors_again(&self, projection: &Projection) -> u64 {
        let blocks: u64 = projection.part_rows().iter().map(|rows| u64::from(rows.div_ceil(ROWS))).sum();
        let vectors = u64::from(projection.tokens);
        let norms = if projection.norm.is_some() { u64::from(self.passes()) } else { 0 };
        let once = vectors + norms.min(1);
        let all = (vectors + norms).saturating_mul(blocks);
        (all - once.min(all)).saturating_mul(u64::from(projection.cols) * 4)
    }

    pub(crate) fn params(&self, projection: &Projection) -> ProjectParams {
        ProjectParams { blocks: self.blocks, ..projection.params() }
    }
}

/// One launch for everything. Every [`MAX_TOKENS`] tokens read the weights once.
pub(crate) fn stage(projection: &Projection, limits: &Limits) -> Result<Stage, GpuError> {
    let spread = Spread::of(projection, limits);
    let name = format!("matvec_{}", spread.slots);
    let kernel = FAMILY.kernel(&name, Constants::starting::<3, 8>(projection.constants()?));
    let launch = spread.launch(kernel, spread.params(projection), limits)?;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let (x, norm, residual) = (projection.x, projection.norm_slot(), projection.residual_slot());
    let stage = Stage::new(launch, [x, norm, w0, w1, w2, b0, b1, b2, residual, Slot::Output]);
    let stage = stage.reading_again(spread.vectors_again(projection));
    projection.reading(stage, 2, spread.passes())
}
