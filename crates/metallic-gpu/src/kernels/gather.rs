//! Rows of a table by number, columns of a matrix, and elements by their rows' own indices.

use metallic_core::DType;

use super::quant::{QUANT, QUANT_TYPES, row_bytes, weight_type};
use super::typed::{VECTORS, count};
use super::{COMMON, Constants, Launch, Slot, Stage, Stages, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// Rows of `cols` elements, `pitch` bytes from one to the next in the table; `last` is its last row.
    GatherParams { rows: u32, cols: u32, pitch: u32, last: u32 }
    /// Columns `start .. start + cols` of rows of `in_cols`.
    SliceParams { rows: u32, in_cols: u32, start: u32, cols: u32 }
    /// `count` elements of each row of `cols`.
    PickParams { rows: u32, cols: u32, count: u32 }
}

family! {
    "gather" (GatherParams, SliceParams, PickParams) uses COMMON, QUANT_TYPES, QUANT, VECTORS;
    "gather" each float of size { reads ids: 4, table: 2, fed: 4; writes out: size }
    "slice" each float of size { reads x: size; writes out: size }
    "pick" each float of size { reads x: size, ids: 4; writes out: size }
}

/// Rows of a table of any type, by ids, or by what the step before has chosen where an id says so: `(ids: U32 [n],
/// table [v, cols], fed) -> out [n, cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gathered {
    pub(crate) table: DType,
    pub(crate) out: DType,
    /// Rows of the result.
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    /// Rows of the table.
    pub(crate) of: u32,
    /// Whether ids may name what the step before has chosen.
    pub(crate) fed: bool,
}

impl Gathered {
    fn launch(&self, in_order: Option<u32>, limits: &Limits) -> Result<Launch, GpuError> {
        let Gathered { table, out, rows, cols, of, fed } = *self;
        let pitch = match in_order {
            Some(pitch) => pitch,
            None => count("embed", row_bytes("embed", table, cols)?)?,
        };
        let constants =
            Constants::of([weight_type("embed", table)?, u32::from(in_order.is_some()), u32::from(fed)]);
        let kernel = FAMILY.of_float("gather", out, constants)?;
        let params = GatherParams { rows, cols, pitch, last: of.saturating_sub(1) };
        Ok(kernel.plane(params.params(), (cols.div_ceil(8), rows), limits))
    }
}

/// [`Gathered`] rows: `(table, ids)` are the inputs, in this order.
pub(crate) fn gather(spec: &Gathered, limits: &Limits) -> Result<Stages, GpuError> {
    let fed = if spec.fed { Slot::Fed } else { Slot::Unused };
    let slots = [Slot::Input(1), Slot::Input(0), fed, Slot::Output];
    let read = row_bytes("embed", spec.table, spec.cols)?.saturating_mul(spec.rows as usize);
    Ok(Stage::new(spec.launch(None, limits)?, slots).touching(1, read).into())
}

/// All rows of a table in order, as another type: `(unused, table [rows, cols], unused) -> out [rows, cols]`. Rows are
/// `pitch` bytes from one to the next in the table.
pub(crate) fn decode(spec: &Gathered, pitch: u32, limits: &Limits) -> Result<Launch, GpuError> {
    spec.launch(Some(pitch), limits)
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
        return Err(GpuError::unsupported("slice", reason));
    }
    let params = SliceParams { rows, in_cols, start, cols: len }.params();
    let kernel = FAMILY.of_float("slice", dtype, Constants::NONE)?;
    Ok(kernel.plane(params, (len.div_ceil(4), rows), limits))
}

/// Of each row the elements at the row's own indices, NaN for one outside it: `(x [rows, cols], ids: U32 [rows, count]) ->
/// out [rows, count]`.
pub(crate) fn pick(
    dtype: DType,
    (rows, cols): (u32, u32),
    count: u32,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    let params = PickParams { rows, cols, count }.params();
    let launch = FAMILY.of_float("pick", dtype, Constants::NONE)?.plane(params, (count, rows), limits);
    let bytes = dtype.block_bytes() * rows as usize * count as usize;
    Ok(Stage::new(launch, [Slot::Input(0), Slot::Input(1), Slot::Output]).touching(0, bytes).into())
}

#[cfg(test)]
mod tests {
    use super::super::Moved;
    use super::super::harness::{Data, as_f32s, run, u32s};
    use super::super::quant::WEIGHT_TYPES;
    use super::super::quant::tests::{decoded, weights};
    use super::super::typed::tests::{FLOATS, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    fn gathered(table: DType, out: DType, rows: u32, cols: usize) -> Gathered {
        Gathered { table, out, rows, cols: cols as u32, of: 5, fed: false }
    }

    #[test]
    fn rows_of_every_type_come_out_as_the_reference_decodes_them() {
        let ids = [4u32, 0, 2, 2];
        for dtype in WEIGHT_TYPES {
            let cols = if dtype.is_quantized() { 512 } else { 77 };
            let table = weights(*dtype, 5 * cols, 2.0, 11);
            let spec = gathered(*dtype, DType::F32, 4, cols);
            let launch = spec.launch(None, &LIMITS).unwrap();
            let args = [u32s(&ids), Data::Bytes(table.clone()), Data::Unused, Data::Room(4 * cols * 4)];
            let Some(found) = run(&launch, &args) else { return };
            let all = decoded(*dtype, &table);
            let expected: Vec<f32> =
                ids.iter().flat_map(|id| &all[*id as usize * cols..][..cols]).copied().collect();
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&as_f32s(&found[3])), bits(&expected), "{dtype}");
            let read = gather(&spec, &LIMITS).unwrap().stages[0].slots()[1].moved;
            assert_eq!(read, Moved::Bytes(table.len() / 5 * 4));
        }
    }

    #[test]
    fn what_the_step_before_has_chosen_is_taken_where_an_id_says_so_and_never_past_the_table() {
        let x = waves(5 * 9, 2.0);
        let spec = Gathered { fed: true, ..gathered(DType::F32, DType::F32, 4, 9) };
        let ids = [1, 0x8000_0001, 0x8000_0000, 0x8000_0002];
        let args = [u32s(&ids), data(DType::F32, &x), u32s(&[3, 0, u32::MAX]), room(DType::F32, 4 * 9)];
        let Some(found) = run(&spec.launch(None, &LIMITS).unwrap(), &args) else { return };
        let rows: Vec<f32> = [1, 0, 3, 4].iter().flat_map(|row| &x[row * 9..][..9]).copied().collect();
        assert_eq!(as_f32s(&found[3]), rows);
    }

    #[test]
    fn rows_in_order_are_rounded_to_any_float() {
        let table = weights(DType::Q5K, 2 * 256, 2.0, 5);
        for dtype in FLOATS {
            let launch = decode(&gathered(DType::Q5K, dtype, 2, 256), 176, &LIMITS).unwrap();
            let args = [Data::Unused, Data::Bytes(table.clone()), Data::Unused, room(dtype, 512)];
            let Some(found) = run(&launch, &args) else { return };
            assert_eq!(floats(dtype, &found[3]), rounded(dtype, &decoded(DType::Q5K, &table)));
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

    #[test]
    fn every_row_gives_the_elements_it_names_and_nan_for_one_that_is_not_there() {
        for dtype in FLOATS {
            for (rows, cols, count) in [(1u32, 1u32, 1u32), (3, 7, 5), (33, 64, 8), (2, 1025, 70)] {
                let x = waves(rows * cols, 2.0);
                let ids: Vec<u32> = (0..rows * count).map(|i| (i * 37 + i / count) % (cols + 1)).collect();
                let stages = pick(dtype, (rows, cols), count, &LIMITS).unwrap();
                let args = [data(dtype, &x), u32s(&ids), room(dtype, ids.len())];
                let Some(found) = run(&stages.stages[0].launch, &args) else { return };
                let x = rounded(dtype, &x);
                for (i, found) in floats(dtype, &found[2]).into_iter().enumerate() {
                    let row = &x[i / count as usize * cols as usize..][..cols as usize];
                    match row.get(ids[i] as usize) {
                        Some(expected) => assert_eq!(found, *expected, "{dtype} {i}"),
                        None => assert!(found.is_nan(), "{dtype} {i}: {found}"),
                    }
                }
            }
        }
        let ids = [u32::MAX, 2];
        let stages = pick(DType::F32, (1, 3), 2, &LIMITS).unwrap();
        let args = [data(DType::F32, &[1.0, 2.0, 3.0]), u32s(&ids), room(DType::F32, 2)];
        let Some(found) = run(&stages.stages[0].launch, &args) else { return };
        assert!(as_f32s(&found[2])[0].is_nan());
        assert_eq!(stages.stages[0].slots()[0].moved, Moved::Bytes(8), "elements that are read, not rows");
    }
}
