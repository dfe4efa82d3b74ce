//! Rows of a table by number, and columns of a matrix.

use metallic_core::DType;

use super::quant::{QUANT, QUANT_TYPES, row_bytes, weight_type};
use super::typed::{self, PerFloat, VECTORS};
use super::{Arg, COMMON, Constants, Family, Kernel, Launch, Params, reads, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// Rows of `cols` elements, `pitch` bytes from one to the next in the table.
    GatherParams { rows: u32, cols: u32, pitch: u32 }
}

kernel_params! {
    /// Columns `start .. start + cols` of rows of `in_cols`.
    SliceParams { rows: u32, in_cols: u32, start: u32, cols: u32 }
}

pub(crate) const FAMILY: Family = Family {
    name: "gather",
    params: &[GatherParams::MSL, SliceParams::MSL],
    uses: &[COMMON, QUANT_TYPES, QUANT, VECTORS],
    text: include_str!("gather.metal"),
    kernels: &[
        ("gather_f32", GATHER.args[0]),
        ("gather_f16", GATHER.args[1]),
        ("gather_bf16", GATHER.args[1]),
        ("slice_f32", SLICE.args[0]),
        ("slice_f16", SLICE.args[1]),
        ("slice_bf16", SLICE.args[1]),
    ],
};

const fn gather_args(align: usize) -> [Arg; 3] {
    [reads("ids", 4), reads("table", 2), writes("out", align)]
}

const fn slice_args(align: usize) -> [Arg; 2] {
    [reads("x", align), writes("out", align)]
}

const GATHER: PerFloat = PerFloat {
    op: "embed",
    functions: ["gather_f32", "gather_f16", "gather_bf16"],
    args: [&gather_args(4), &gather_args(2)],
};

const SLICE: PerFloat = PerFloat {
    op: "slice",
    functions: ["slice_f32", "slice_f16", "slice_bf16"],
    args: [&slice_args(4), &slice_args(2)],
};

/// Rows of a table of any type: `(ids: U32 [n], table [_, cols]) -> out: F32 [n, cols]`. Of the table [`gathered`] bytes are
/// touched.
pub(crate) fn embed(dtype: DType, (n, cols): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    gather((dtype, DType::F32), (n, cols), None, limits)
}

/// Bytes of a table that gathering `n` rows of `cols` elements reads.
pub(crate) fn gathered(dtype: DType, (n, cols): (u32, u32)) -> Result<usize, GpuError> {
    Ok(row_bytes("embed", dtype, cols)?.saturating_mul(n as usize))
}

/// Rows of activations: `(ids: U32 [n], x: F32 [_, cols]) -> out: F32 [n, cols]`.
pub(crate) fn select_rows(size: (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    gather((DType::F32, DType::F32), size, None, limits)
}

/// All rows of a table in order, as another type: `(unused, table [rows, cols]) -> out [rows, cols]`. Rows are `pitch` bytes
/// from one to the next in the table.
pub(crate) fn decode(
    types: (DType, DType),
    size: (u32, u32),
    pitch: u32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    gather(types, size, Some(pitch), limits)
}

fn gather(
    (table, out): (DType, DType),
    (rows, cols): (u32, u32),
    in_order: Option<u32>,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let pitch = match in_order {
        Some(pitch) => pitch,
        None => typed::count("embed", row_bytes("embed", table, cols)?)?,
    };
    let constants = Constants::of([weight_type("embed", table)?, u32::from(in_order.is_some())]);
    let kernel = GATHER.of(&FAMILY, out, constants)?;
    Ok(launch(kernel, GatherParams { rows, cols, pitch }.params(), (cols.div_ceil(8), rows), limits))
}

/// Columns `start .. start + len`: `(x [rows, in_cols]) -> out [rows, len]`.
pub(crate) fn slice(
    dtype: DType,
    (rows, in_cols): (u32, u32),
    (start, len): (u32, u32),
    limits: &Limits,
) -> Result<Launch, GpuError> {
    if start.checked_add(len).is_none_or(|end| end > in_cols) {
        let reason = format!("columns {start}..+{len} of rows of {in_cols}");
        return Err(GpuError::Unsupported { op: "slice", reason });
    }
    let params = SliceParams { rows, in_cols, start, cols: len }.params();
    Ok(launch(SLICE.of(&FAMILY, dtype, Constants::NONE)?, params, (len.div_ceil(4), rows), limits))
}

fn launch(kernel: Kernel, params: Params, (per_row, rows): (u32, u32), limits: &Limits) -> Launch {
    let ([across, down], [width, height]) = threadgroup::plane((per_row, rows), limits);
    Launch {
        kernel,
        params,
        groups: [across, down, 1],
        threads: [width, height, 1],
        threadgroup_bytes: 0,
        work: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::harness::{Data, as_f32s, run, u32s};
    use super::super::quant::WEIGHT_TYPES;
    use super::super::quant::tests::{decoded, weights};
    use super::super::typed::tests::{FLOATS, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    #[test]
    fn rows_of_every_type_come_out_as_the_reference_decodes_them() {
        let ids = [4u32, 0, 2, 2];
        for dtype in WEIGHT_TYPES {
            let cols = if dtype.is_quantized() { 512 } else { 77 };
            let table = weights(*dtype, 5 * cols, 2.0, 11);
            let size = (4, cols as u32);
            let launch = embed(*dtype, size, &LIMITS).unwrap();
            let args = [u32s(&ids), Data::Bytes(table.clone()), Data::Room(4 * cols * 4)];
            let Some(found) = run(&launch, &args) else { return };
            let all = decoded(*dtype, &table);
            let expected: Vec<f32> =
                ids.iter().flat_map(|id| &all[*id as usize * cols..][..cols]).copied().collect();
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&as_f32s(&found[2])), bits(&expected), "{dtype}");
            assert_eq!(gathered(*dtype, size).unwrap(), table.len() / 5 * 4);
        }
    }

    #[test]
    fn rows_in_order_are_rounded_to_any_float() {
        let table = weights(DType::Q5K, 2 * 256, 2.0, 5);
        for dtype in FLOATS {
            let launch = decode((DType::Q5K, dtype), (2, 256), 176, &LIMITS).unwrap();
            let args = [Data::Unused, Data::Bytes(table.clone()), room(dtype, 512)];
            let Some(found) = run(&launch, &args) else { return };
            assert_eq!(floats(dtype, &found[2]), rounded(dtype, &decoded(DType::Q5K, &table)));
        }
    }

    #[test]
    fn rows_of_activations_are_selected() {
        for cols in [1u32, 9, 257, 1025] {
            let x = waves(3 * cols, 2.0);
            let launch = select_rows((2, cols), &LIMITS).unwrap();
            let args = [u32s(&[2, 0]), data(DType::F32, &x), room(DType::F32, 2 * cols as usize)];
            let Some(found) = run(&launch, &args) else { return };
            let n = cols as usize;
            assert_eq!(as_f32s(&found[2]), [&x[2 * n..], &x[..n]].concat());
        }
    }

    #[test]
    fn columns_are_cut_out_of_every_row() {
        for dtype in FLOATS {
            for (cols, start, len) in [(40u32, 7u32, 21u32), (1, 0, 1), (1100, 3, 1030)] {
                let x = waves(3 * cols, 2.0);
                let launch = slice(dtype, (3, cols), (start, len), &LIMITS).unwrap();
                let Some(found) = run(&launch, &[data(dtype, &x), room(dtype, 3 * len as usize)]) else {
                    return;
                };
                let expected: Vec<f32> = rounded(dtype, &x)
                    .chunks(cols as usize)
                    .flat_map(|row| row[start as usize..(start + len) as usize].to_vec())
                    .collect();
                assert_eq!(floats(dtype, &found[1]), expected);
            }
        }
        assert!(slice(DType::F32, (1, 4), (2, 3), &LIMITS).is_err());
    }
}
