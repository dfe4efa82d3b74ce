//! Matrices times many rows, by tiles: see `tiles.metal`.

use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, Launch, QUANT, QUANT_TYPES, Slot, Stage, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;

const TILES: (&str, &str) = ("tiles.metal", include_str!("tiles.metal"));
/// `TILE` in the MSL: rows and columns of the results of a threadgroup.
const TILE: u32 = 64;
/// `TILE_THREADS` in the MSL.
const TILE_THREADS: u32 = 128;
/// `TILE_FLOATS` in the MSL, in bytes.
pub(crate) const TILE_BYTES: u32 = 2 * 64 * 36 * 4;

family! {
    "matmul" (ProjectParams) uses COMMON, FUNCTIONS, ACTIVATION, QUANT_TYPES, QUANT, PROJECT, TILES;
    "matmul_project" {
        reads x: 4, w0: 2, w1: 2, w2: 2, bias0: 4, bias1: 4, bias2: 4, residual: 4, gate: 4; writes out: 4
    }
}

/// The products of a projection without its norm: `projection.x` is already normalised. With a gate, `projection` has
/// the gated matrix alone, and `gate` is where the gate's product lies.
pub(crate) fn stage(
    projection: &Projection,
    gate: Slot,
    out: Slot,
    limits: &Limits,
) -> Result<Stage, GpuError> {
    // The kernel declares its threadgroup memory itself, so the launch does not name it.
    if TILE_BYTES > limits.threadgroup_memory {
        let reason =
            format!("{} bytes of threadgroup memory, {TILE_BYTES} are needed", limits.threadgroup_memory);
        return Err(GpuError::unsupported(projection.op, reason));
    }
    let rows = projection.part_rows();
    let kernel = FAMILY.kernel("matmul_project", Constants::starting::<3, 8>(projection.constants()?));
    let groups = [rows.iter().map(|rows| rows.div_ceil(TILE)).sum(), projection.tokens.div_ceil(TILE), 1];
    let launch = Launch {
        work: work([projection.tokens, projection.cols, rows.iter().sum()].map(|n| n as usize)),
        ..kernel.launch(projection.params().params(), groups, [TILE_THREADS, 1, 1])
    };
    launch.check(limits)?;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let residual = projection.residual_slot();
    let stage = Stage::new(launch, [projection.x, w0, w1, w2, b0, b1, b2, residual, gate, out]);
    // Every tile of results reads the vectors of its tokens.
    let vectors = u64::from(projection.tokens) * u64::from(projection.cols) * 4;
    let stage = stage.reading_again(vectors.saturating_mul(u64::from(launch.groups[0] - 1)));
    projection.reading(stage, 1, launch.groups[1])
}
