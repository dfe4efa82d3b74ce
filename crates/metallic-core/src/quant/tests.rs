//! What holds for every type.

use super::*;

fn encoded_types() -> impl Iterator<Item = DType> {
    DType::all().filter(|dtype| dtype.is_quantized())
}

/// Numbers that are likely near 0 and seldom far, as weights are.
fn bell(len: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..len).map(|_| (0..12).map(|_| unit()).sum::<f32>() - 6.0).collect()
}

fn there_and_back(dtype: DType, values: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let mut bytes = vec![0; dtype.bytes_for(values.len()).unwrap()];
    match importance {
        None => quantize(dtype, values, &mut bytes).unwrap(),
        Some(importance) => quantize_by_importance(dtype, values, importance, &mut bytes).unwrap(),
    }
    let mut out = vec![f32::NAN; values.len()];
    dequantize(dtype, &bytes, &mut out).unwrap();
    out
}

#[test]
fn integers_are_refused_by_name() {
    for dtype in [DType::I32, DType::U32, DType::U8] {
        let error = dequantize(dtype, &vec![0; dtype.block_bytes()], &mut [0.0]).unwrap_err();
        assert!(error.to_string().starts_with(dtype.name()), "{error}");
        let error = quantize(dtype, &[0.0], &mut vec![0; dtype.block_bytes()]).unwrap_err();
        assert_eq!(error, QuantError::Unsupported { dtype, action: "made from floating-point numbers" });
    }
}

#[test]
fn encoders_lose_no_more_than_their_bits_must() {
    // The share of `Σ x²` that is lost of a bell curve.
    let most = [
        (DType::Q2K, 0.075),
        (DType::Q3K, 0.027),
        (DType::Q4_0, 0.0086),
        (DType::Q4_1, 0.0070),
        (DType::Q4K, 0.0059),
        (DType::IQ4NL, 0.0066),
        (DType::IQ4XS, 0.0066),
        (DType::MXFP4, 0.016),
        (DType::Q5_0, 0.0021),
        (DType::Q5_1, 0.0017),
        (DType::Q5K, 0.00145),
        (DType::Q6K, 0.00042),
        (DType::Q8_0, 0.00004),
    ];
    let values = bell(16 * 1024);
    let energy: f32 = values.iter().map(|v| v * v).sum();
    for dtype in encoded_types() {
        let out = there_and_back(dtype, &values, None);
        let lost = out.iter().zip(&values).map(|(o, v)| (o - v) * (o - v)).sum::<f32>() / energy;
        let most = most.iter().find(|(of, _)| *of == dtype).expect("each type has its bound").1;
        assert!(lost <= most, "{dtype} loses {lost}, and may lose {most}");
    }
}

#[test]
fn what_is_important_is_kept_better() {
    let values = bell(64 * 256);
    let importance: Vec<f32> = (0..256).map(|i| if i % 11 == 3 { 50.0 } else { 0.5 }).collect();
    for dtype in encoded_types().filter(|dtype| *dtype != DType::Q8_0) {
        let lost = |out: &[f32]| {
            let terms = out.iter().zip(&values).zip(importance.iter().cycle());
            terms.map(|((o, v), w)| w * (o - v) * (o - v)).sum::<f32>()
        };
        let plain = lost(&there_and_back(dtype, &values, None));
        let weighed = lost(&there_and_back(dtype, &values, Some(&importance)));
        assert!(weighed < 0.98 * plain, "{dtype}: {weighed} with importance, {plain} without");
    }
}

#[test]
fn importance_of_other_rows_is_refused_and_none_at_all_does_no_harm() {
    let (values, mut bytes) = (vec![1.0; 512], vec![0; 288]);
    for columns in [0, 32, 384] {
        let error = quantize_by_importance(DType::Q4K, &values, &vec![1.0; columns], &mut bytes).unwrap_err();
        assert_eq!(error, QuantError::Importance { dtype: DType::Q4K, elements: 512, columns });
    }
    for dtype in encoded_types() {
        let out = there_and_back(dtype, &values, Some(&[0.0; 256]));
        assert!(out.iter().all(|v| (v - 1.0).abs() < 0.1), "{dtype}: {}", out[0]);
    }
}

#[test]
fn a_number_far_from_all_others_does_not_break_its_block() {
    for far in [1e-20, 1e-9, 1e4, -1e4] {
        let mut values = bell(256);
        values[100] = far;
        for dtype in encoded_types() {
            let out = there_and_back(dtype, &values, None);
            let off = (out[100] - far).abs();
            assert!(off <= 0.2 * far.abs().max(10.0), "{dtype}: {far} became {}", out[100]);
        }
    }
}

#[test]
fn slices_that_do_not_belong_together_are_refused() {
    for dtype in DType::all() {
        let (elements, bytes) = (2 * dtype.block_len(), 2 * dtype.block_bytes());
        let mut out = vec![0.0; elements];
        for len in [0, bytes - 1, bytes + 1] {
            let error = dequantize(dtype, &vec![0; len], &mut out).unwrap_err();
            assert!(
                matches!(error, QuantError::Length { needed_bytes, .. } if needed_bytes == bytes),
                "{error}"
            );
        }
    }
    let error = dequantize(DType::Q8_0, &[0; 17], &mut [0.0; 16]).unwrap_err();
    assert!(error.to_string().contains("blocks of 32"), "{error}");
}

#[test]
fn nothing_is_nothing() {
    for dtype in DType::all().filter(|dtype| !matches!(dtype, DType::I32 | DType::U32 | DType::U8)) {
        assert_eq!(dequantize(dtype, &[], &mut []), Ok(()));
    }
}

#[test]
fn a_block_of_zeros_or_of_one_value_survives() {
    for dtype in encoded_types() {
        for value in [0.0, 1.0, -0.5] {
            let out = there_and_back(dtype, &[value; 256], None);
            let error = out.iter().map(|v| (v - value).abs()).fold(0.0, f32::max);
            assert!(error < 1e-3, "{dtype} {value}: {error}");
        }
    }
}

#[test]
fn halves_beyond_the_last_full_run_are_converted() {
    let values: Vec<f32> = (0..300_i16).map(|i| f32::from(i - 150)).collect();
    for dtype in [DType::F16, DType::BF16] {
        let mut bytes = vec![0; 600];
        quantize(dtype, &values, &mut bytes).unwrap();
        let mut out = vec![0.0; 300];
        dequantize(dtype, &bytes, &mut out).unwrap();
        assert_eq!(out, values, "{dtype}");
    }
}

#[test]
fn numbers_that_are_not_finite_encode_without_panic() {
    let mut values = [1.0; 256];
    (values[3], values[7], values[9]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    for dtype in DType::all().filter(|dtype| dtype.is_float() || dtype.is_quantized()) {
        for values in [values, [f32::NAN; 256], [f32::INFINITY; 256], [f32::MAX; 256], [1e-42; 256]] {
            let mut bytes = vec![0; dtype.bytes_for(256).unwrap()];
            quantize(dtype, &values, &mut bytes).unwrap();
            quantize_by_importance(dtype, &values, &[1.0; 256], &mut bytes).unwrap();
        }
    }
}
