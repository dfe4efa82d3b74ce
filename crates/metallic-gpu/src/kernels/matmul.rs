//! Matrices times many rows, by tiles: see `tiles.metal`.

use super::project::Projection;
use super::typed::{ACTIVATION, FUNCTIONS, unary_code};
use super::{
    Arg, COMMON, Constants, Family, Kernel, Launch, QUANT, QUANT_TYPES, Slot, Stage, reads, work, writes,
};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

const TILES: (&str, &str) = ("tiles.metal", include_str!("tiles.metal"));
/// `TILE` in the MSL: rows and columns of the results of a threadgroup.
const TILE: u32 = 64;
/// `TILE_THREADS` in the MSL.
const TILE_THREADS: u32 = 128;
/// `TILE_FLOATS` in the MSL, in bytes.
const TILE_BYTES: u32 = 2 * 64 * 36 * 4;

kernel_params! {
    /// `x [tokens, cols]` times up to three matrices of so many rows, side by side.
    MatmulParams { cols: u32, tokens: u32, rows0: u32, rows1: u32, rows2: u32 }
}

pub(crate) const FAMILY: Family = Family {
    name: "matmul",
    params: &[MatmulParams::MSL],
    uses: &[COMMON, FUNCTIONS, ACTIVATION, QUANT_TYPES, QUANT, TILES],
    text: include_str!("matmul.metal"),
    kernels: &[("matmul_project", ARGS)],
};

const ARGS: &[Arg] = &[
    reads("x", 4),
    reads("w0", 2),
    reads("w1", 2),
    reads("w2", 2),
    reads("bias0", 4),
    reads("bias1", 4),
    reads("bias2", 4),
    reads("residual", 4),
    reads("gate", 4),
    writes("out", 4),
];

/// The products of a projection without its norm: `projection.x` is already normalised. With a gate, `projection` has
/// the gated matrix alone, and `gate` is where the gate's product lies.
pub(crate) fn stage(
    projection: &Projection,
    gate: Slot,
    out: Slot,
    limits: &Limits,
) -> Result<Stage, GpuError> {
    let op = projection.op;
    check_memory(op, limits)?;
    let rows = projection.part_rows();
    let types = projection.types()?;
    let constants = Constants::of([
        types[0],
        types[1],
        types[2],
        u32::from(projection.has_bias()),
        u32::from(projection.residual.is_some()),
        u32::from(projection.gate.is_some()),
        projection.gate.map_or(0, unary_code),
    ]);
    let params = MatmulParams {
        cols: projection.cols,
        tokens: projection.tokens,
        rows0: rows[0],
        rows1: rows[1],
        rows2: rows[2],
    };
    let launch = Launch {
        kernel: Kernel { family: &FAMILY, function: "matmul_project", constants, args: ARGS },
        params: params.params(),
        groups: [rows.iter().map(|rows| rows.div_ceil(TILE)).sum(), projection.tokens.div_ceil(TILE), 1],
        threads: [TILE_THREADS, 1, 1],
        threadgroup_bytes: 0,
        work: work([projection.tokens, projection.cols, rows.iter().sum()].map(|n| n as usize)),
    };
    launch.check(limits)?;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let residual = projection.residual.unwrap_or(Slot::Unused);
    let stage = Stage::new(launch, [projection.x, w0, w1, w2, b0, b1, b2, residual, gate, out]);
    projection.reading(stage, 1, launch.groups[1])
}

/// The kernels declare their threadgroup memory themselves, so a launch does not name it.
fn check_memory(op: &'static str, limits: &Limits) -> Result<(), GpuError> {
    if TILE_BYTES <= limits.threadgroup_memory {
        return Ok(());
    }
    let reason =
        format!("{} bytes of threadgroup memory, {TILE_BYTES} are needed", limits.threadgroup_memory);
    Err(GpuError::Unsupported { op, reason })
}
