//! Matrices times the vectors of a few tokens, everything around the product fused: see `matvec.metal`.

use super::project::Projection;
use super::typed::{ACTIVATION, FUNCTIONS, unary_code};
use super::{
    Arg, COMMON, Constants, Family, Kernel, Launch, QUANT, QUANT_TYPES, Slot, Stage, reads, work, writes,
};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// A simdgroup has `blocks` times [`ROWS`] rows of one matrix; `pairs` elements of each head are rotated with a partner.
    MatvecParams {
        cols: u32, tokens: u32, rows0: u32, rows1: u32, rows2: u32, blocks: u32, eps: f32, pairs: u32, magnitude: f32,
    }
}

/// Products, see the file.
pub(crate) const DOTS: (&str, &str) = ("dots.metal", include_str!("dots.metal"));

pub(crate) const FAMILY: Family = Family {
    name: "matvec",
    params: &[MatvecParams::MSL],
    uses: &[COMMON, FUNCTIONS, ACTIVATION, QUANT_TYPES, QUANT, DOTS],
    text: include_str!("matvec.metal"),
    kernels: &[("matvec_1", ARGS), ("matvec_2", ARGS), ("matvec_4", ARGS), ("matvec_8", ARGS)],
};

const ARGS: &[Arg] = &[
    reads("x", 4),
    reads("norm", 4),
    reads("w0", 2),
    reads("w1", 2),
    reads("w2", 2),
    reads("bias0", 4),
    reads("bias1", 4),
    reads("bias2", 4),
    reads("residual", 4),
    writes("out", 4),
];

/// Tokens that read the weights together.
pub(crate) const MAX_TOKENS: u32 = 8;
/// `ROWS` in the MSL: rows a lane works on at a time.
pub(crate) const ROWS: u32 = 4;
/// `PITCH` in the MSL, in bytes: the parts of one result.
pub(crate) const PITCH_BYTES: u32 = 36 * 4;
/// Simdgroups of a threadgroup at most.
pub(crate) const SIMDS: u32 = 4;
/// Blocks of rows of a simdgroup at most.
const MAX_BLOCKS: u32 = 8;

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
        let room = limits.threadgroup_memory / (limits.busy_simdgroups / 16).clamp(2, 24);
        let tiles = |blocks: u32| -> u32 {
            let parts = if gated { &rows[..1] } else { &rows[..] };
            parts.iter().map(|rows| rows.div_ceil(blocks * ROWS)).sum()
        };
        let mut blocks = 1;
        while blocks < MAX_BLOCKS
            && tiles(2 * blocks) >= limits.busy_simdgroups
            && per_simd(2 * blocks) <= room
        {
            blocks *= 2;
        }
        let most =
            (limits.threadgroup_memory / per_simd(blocks)).min(limits.max_threads / limits.simd_width.max(1));
        let simds = SIMDS.min(most).min(tiles(blocks)).max(1);
        Spread {
            slots,
            blocks,
            groups: [tiles(blocks).div_ceil(simds), projection.tokens.div_ceil(slots), 1],
            threads: simds * limits.simd_width,
            threadgroup_bytes: simds * per_simd(blocks),
        }
    }

    /// The launch of a kernel with the numbers of its products.
    pub(crate) fn launch(
        &self,
        kernel: Kernel,
        params: MatvecParams,
        limits: &Limits,
    ) -> Result<Launch, GpuError> {
        let rows = [params.rows0, params.rows1, params.rows2].map(|rows| rows as usize).iter().sum();
        let launch = Launch {
            kernel,
            params: params.params(),
            groups: self.groups,
            threads: [self.threads, 1, 1],
            threadgroup_bytes: self.threadgroup_bytes,
            work: work([params.tokens as usize, params.cols as usize, rows]),
        };
        launch.check(limits)?;
        Ok(launch)
    }

    /// Times the weights are read: once by [`Spread::slots`] tokens.
    pub(crate) fn passes(&self) -> u32 {
        self.groups[1]
    }

    /// The numbers of a projection that rotates nothing.
    pub(crate) fn params(&self, projection: &Projection) -> MatvecParams {
        let [rows0, rows1, rows2] = projection.part_rows();
        MatvecParams {
            cols: projection.cols,
            tokens: projection.tokens,
            rows0,
            rows1,
            rows2,
            blocks: self.blocks,
            eps: projection.norm.map_or(0.0, |(eps, _)| eps),
            pairs: 0,
            magnitude: 0.0,
        }
    }
}

/// One launch for everything. Every [`MAX_TOKENS`] tokens read the weights once.
pub(crate) fn stage(projection: &Projection, limits: &Limits) -> Result<Stage, GpuError> {
    let spread = Spread::of(projection, limits);
    let function = match spread.slots {
        1 => "matvec_1",
        2 => "matvec_2",
        4 => "matvec_4",
        _ => "matvec_8",
    };
    let types = projection.types()?;
    let constants = Constants::starting::<3, 8>([
        types[0],
        types[1],
        types[2],
        u32::from(projection.norm.is_some()),
        u32::from(projection.has_bias()),
        u32::from(projection.residual.is_some()),
        u32::from(projection.gate.is_some()),
        projection.gate.map_or(0, unary_code),
    ]);
    let kernel = Kernel { family: &FAMILY, function, constants, args: ARGS };
    let launch = spread.launch(kernel, spread.params(projection), limits)?;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let norm = projection.norm.map_or(Slot::Unused, |(_, slot)| slot);
    let residual = projection.residual.unwrap_or(Slot::Unused);
    let stage = Stage::new(launch, [projection.x, norm, w0, w1, w2, b0, b1, b2, residual, Slot::Output]);
    projection.reading(stage, 2, spread.passes())
}
