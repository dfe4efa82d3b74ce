//! Copies between strided tensors, with a cast.

use metallic_core::DType;

use super::axes::Axes;
use super::typed::VECTORS;
use super::{Constants, Launch, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// Shape, strides of the input, strides of the output.
    CopyParams {
        n0: u32, n1: u32, n2: u32, n3: u32,
        x0: u32, x1: u32, x2: u32, x3: u32,
        y0: u32, y1: u32, y2: u32, y3: u32,
    }
}

family! {
    "copy" (CopyParams) uses VECTORS;
    "copy_f32_f32", "turn_f32_f32", "copy_u32_u32", "turn_u32_u32" { reads x: 4; writes out: 4 }
    "copy_f32_f16", "turn_f32_f16", "copy_f32_bf16", "turn_f32_bf16" { reads x: 4; writes out: 2 }
    "copy_f16_f32", "turn_f16_f32", "copy_bf16_f32", "turn_bf16_f32" { reads x: 2; writes out: 4 }
    "copy_f16_f16", "turn_f16_f16", "copy_f16_bf16", "turn_f16_bf16" { reads x: 2; writes out: 2 }
    "copy_bf16_f16", "turn_bf16_f16", "copy_bf16_bf16", "turn_bf16_bf16" { reads x: 2; writes out: 2 }
}

/// Side of a tile that is turned in threadgroup memory.
const TILE: u32 = 32;
const TILE_ROWS: u32 = 8;

/// `(x) -> out`, cast among floats; integers stay what they are.
pub(crate) fn copy((from, to): (DType, DType), axes: &Axes<2>, limits: &Limits) -> Result<Launch, GpuError> {
    let same = |dtype| if dtype == DType::I32 { DType::U32 } else { dtype };
    if from != to && !(from.is_float() && to.is_float()) || from.is_quantized() {
        return Err(GpuError::unsupported("copy", format!("{from} to {to}")));
    }
    let kernel = |name: &str| {
        FAMILY.kernel(&format!("{name}_{}_{}", same(from), same(to)).to_lowercase(), Constants::NONE)
    };
    let turned = turned(axes);
    let axes = turned.as_ref().unwrap_or(axes);
    let ([n0, n1, n2, n3], [[x0, x1, x2, x3], [y0, y1, y2, y3]]) = (axes.shape, axes.strides);
    let params = CopyParams { n0, n1, n2, n3, x0, x1, x2, x3, y0, y1, y2, y3 }.params();
    if turned.is_some() && limits.max_threads >= TILE * TILE_ROWS {
        let groups = [n3.div_ceil(TILE), n2.div_ceil(TILE), n0 * n1];
        return Ok(kernel("turn").launch(params, groups, [TILE, TILE_ROWS, 1]));
    }
    Ok(kernel("copy").line(params, axes.threads("copy")?, limits))
}

/// The axes with the input's dense one before the output's, where the two differ and both are long enough for tiles.
fn turned(axes: &Axes<2>) -> Option<Axes<2>> {
    let [x, y] = axes.strides;
    let dense = (0..3).find(|axis| x[*axis] == 1 && axes.shape[*axis] >= 8)?;
    if y[3] != 1 || x[3] <= 1 || axes.shape[3] < 8 {
        return None;
    }
    let mut axes = *axes;
    axes.shape.swap(dense, 2);
    for strides in &mut axes.strides {
        strides.swap(dense, 2);
    }
    axes.shape[0].checked_mul(axes.shape[1])?;
    Some(axes)
}

#[cfg(test)]
mod tests {
    use super::super::harness::{Data, as_u32s, run, u32s};
    use super::super::typed::tests::{FLOATS, bytes, data, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    /// Where the elements of a view lie, in row-major order.
    fn offsets(shape: &[usize], strides: &[usize]) -> Vec<usize> {
        let mut all = vec![0];
        for (len, stride) in shape.iter().zip(strides) {
            all = all.iter().flat_map(|at| (0..*len).map(move |i| at + i * stride)).collect();
        }
        all
    }

    fn extent(shape: &[usize], strides: &[usize]) -> usize {
        offsets(shape, strides).into_iter().max().map_or(0, |last| last + 1)
    }

    fn copies(types: (DType, DType), shape: &[usize], strides: [&[usize]; 2], kernel: &str) {
        let axes = Axes::new("copy", shape, strides).unwrap();
        let launch = copy(types, &axes, &LIMITS).unwrap();
        assert!(launch.kernel.function.starts_with(kernel), "{} for {shape:?}", launch.kernel.function);
        let [from, to] = strides.map(|s| offsets(shape, s));
        let x = waves(extent(shape, strides[0]) as u32, 3.0);
        let room = room(types.1, extent(shape, strides[1]));
        let Some(found) = run(&launch, &[data(types.0, &x), room]) else { return };
        let x = rounded(types.1, &rounded(types.0, &x));
        let found = &found[1];
        let size = types.1.block_bytes();
        let mut expected = vec![0xCD; found.len()];
        for (from, to) in from.into_iter().zip(to) {
            expected[to * size..(to + 1) * size].copy_from_slice(&bytes(types.1, &x[from..=from]));
        }
        assert!(*found == expected, "{types:?} {shape:?} {strides:?}");
    }

    #[test]
    fn every_pair_of_types_and_every_order_of_axes() {
        for from in FLOATS {
            for to in FLOATS {
                copies((from, to), &[1025], [&[1], &[1]], "copy");
                copies((from, to), &[3, 5, 7], [&[35, 7, 1], &[70, 14, 2]], "copy");
                copies((from, to), &[3, 5, 7], [&[0, 7, 1], &[1, 3, 15]], "copy");
                copies((from, to), &[33, 65], [&[1, 33], &[65, 1]], "turn");
                copies((from, to), &[2, 9, 3, 40], [&[1, 240, 80, 2], &[1080, 120, 40, 1]], "copy");
                copies((from, to), &[2, 9, 3, 40], [&[1080, 1, 9, 27], &[1080, 120, 40, 1]], "turn");
                // No two of these axes are one.
                copies((from, to), &[2, 3, 5, 7], [&[200, 60, 9, 1], &[230, 70, 11, 2]], "copy");
                copies((from, to), &[2, 9, 4, 40], [&[1500, 1, 9, 37], &[1440, 160, 40, 1]], "turn");
            }
        }
        copies((DType::F32, DType::F32), &[], [&[], &[]], "copy");
        copies((DType::F32, DType::F32), &[32, 32], [&[1, 32], &[32, 1]], "turn");
        copies((DType::F32, DType::F32), &[8, 100], [&[1, 9], &[100, 1]], "turn");
    }

    #[test]
    fn integers_keep_every_bit() {
        let x: Vec<u32> = (0..33 * 9).map(|i: u32| i.wrapping_mul(0x9E37_79B9)).collect();
        for (dtype, strides) in [(DType::U32, [9, 1]), (DType::I32, [1, 33])] {
            let axes = Axes::new("copy", &[33, 9], [&strides, &[9, 1]]).unwrap();
            let launch = copy((dtype, dtype), &axes, &LIMITS).unwrap();
            let Some(found) = run(&launch, &[u32s(&x), Data::Room(x.len() * 4)]) else { return };
            let expected: Vec<u32> = offsets(&[33, 9], &strides).into_iter().map(|at| x[at]).collect();
            assert_eq!(as_u32s(&found[1]), expected);
        }
        let axes = Axes::new("copy", &[4], [&[1], &[1]]).unwrap();
        for types in [(DType::U32, DType::F32), (DType::U32, DType::I32), (DType::Q4_0, DType::F32)] {
            assert!(copy(types, &axes, &LIMITS).is_err(), "{types:?}");
        }
    }

    #[test]
    fn numbers_too_large_or_too_small_for_a_half_round_as_they_should() {
        let x = [1e30, -1e30, 1e-30, 65519.0, 65520.0, 1.000_488_3, 6e-8, f32::INFINITY, -0.0];
        let axes = Axes::new("copy", &[9], [&[1], &[1]]).unwrap();
        for to in FLOATS {
            let launch = copy((DType::F32, to), &axes, &LIMITS).unwrap();
            let Some(found) = run(&launch, &[data(DType::F32, &x), room(to, 9)]) else { return };
            assert_eq!(found[1], bytes(to, &x), "{to}");
        }
    }
}
