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
        // No tensor was encoded as Q3_K or IQ4_XS; the others have nothing to decode.
        if !matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::U8 | DType::Q3K | DType::IQ4XS) {
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
