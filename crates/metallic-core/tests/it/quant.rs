//! Every element type against blocks that others encoded and decoded; see `../data/dequant/README.md`.

use std::path::PathBuf;

use metallic_core::DType;
use metallic_core::quant::{dequantize, quantize};

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/dequant").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    data(name).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn assert_decodes(dtype: DType, set: &str) {
    let (bytes, expected) = (data(&format!("{dtype}{set}.q.bin")), floats(&format!("{dtype}{set}.f32.bin")));
    assert_eq!(expected.len(), 4096);
    let mut found = vec![0.0; expected.len()];
    dequantize(dtype, &bytes, &mut found).unwrap();
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{dtype}{set}: element {i} is {found:e}, expected {expected:e}");
    }
}

#[test]
fn encoded_tensors_decode_bit_for_bit() {
    for dtype in DType::all() {
        // The others have nothing to decode.
        if !matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::U8) {
            assert_decodes(dtype, "");
        }
    }
}

#[test]
fn random_blocks_decode_bit_for_bit() {
    for dtype in DType::all() {
        if !matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::U8) {
            assert_decodes(dtype, ".rand");
        }
    }
}

#[test]
fn f32_comes_back_as_it_is() {
    let mut values = [0.0; 4096];
    let bytes = data("F32.source.bin");
    dequantize(DType::F32, &bytes, &mut values).unwrap();
    assert_eq!(values.as_slice(), floats("F32.source.bin"));
    let mut back = vec![0; bytes.len()];
    quantize(DType::F32, &values, &mut back).unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn plain_encoders_write_the_bytes_of_the_reference() {
    let source = floats("F32.source.bin");
    for dtype in [DType::F16, DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0] {
        let expected = data(&format!("{dtype}.q.bin"));
        let mut found = vec![0; expected.len()];
        quantize(dtype, &source, &mut found).unwrap();
        let wrong = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
        assert_eq!(wrong, 0, "{dtype}: {wrong} of {} bytes differ", found.len());
    }
}

#[test]
fn searching_encoders_lose_no_more_than_those_of_ggml() {
    let source = floats("F32.source.bin");
    let lost = |decoded: &[f32]| decoded.iter().zip(&source).map(|(d, s)| (d - s) * (d - s)).sum::<f32>();
    for dtype in
        [DType::Q2K, DType::Q3K, DType::Q4K, DType::Q5K, DType::Q6K, DType::IQ4NL, DType::IQ4XS, DType::MXFP4]
    {
        let mut bytes = vec![0; dtype.bytes_for(source.len()).unwrap()];
        quantize(dtype, &source, &mut bytes).unwrap();
        let mut decoded = vec![0.0; source.len()];
        dequantize(dtype, &bytes, &mut decoded).unwrap();
        let (ours, theirs) = (lost(&decoded), lost(&floats(&format!("{dtype}.f32.bin"))));
        println!("{dtype}: {ours} lost, {theirs} by ggml ({:.4})", ours / theirs);
        assert!(ours <= 1.03 * theirs, "{dtype}: {ours} lost, {theirs} by ggml");
    }
}
