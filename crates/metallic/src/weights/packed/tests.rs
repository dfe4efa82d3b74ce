//! Numbers of 8 bits and their scales.

use super::*;

fn tensor(name: &str, dtype: DType, shape: &[usize], data: Vec<u8>) -> Tensor {
    Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), data: data.into() }
}

/// `[shape]` bytes, all of them 1.0, so that what comes out are the scales.
fn ones(shape: &[usize]) -> Tensor {
    tensor("w", DType::U8, shape, vec![0x38; shape.iter().product()])
}

/// Scales 1, 2, 3 and so on.
fn counting(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    tensor("w_scale", DType::F32, shape, (1..=count).flat_map(|i| (i as f32).to_le_bytes()).collect())
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    let mut out = vec![0.0; tensor.elements()];
    quant::dequantize(tensor.dtype, &tensor.data, &mut out).unwrap();
    out
}

fn unpacked(shape: &[usize], scales: &[usize], block: Option<[usize; 2]>) -> Result<Vec<f32>, String> {
    match float8s(&ones(shape), &counting(scales), block) {
        Ok(made) => Ok(numbers(&made)),
        Err(Fault::Unfit { name, found, needed }) => Err(format!("{name} is {found}, needed: {needed}")),
        Err(Fault::Missing { name }) => Err(name),
    }
}

#[test]
fn a_number_of_8_bits_is_what_the_format_says() {
    // Zero, the smallest, the largest below normal, the smallest normal, one, the largest.
    let known = [
        (0x00, 0.0),
        (0x01, 1.0 / 512.0),
        (0x07, 7.0 / 512.0),
        (0x08, 1.0 / 64.0),
        (0x38, 1.0),
        (0x39, 1.125),
        (0x7e, 448.0),
    ];
    for (bits, number) in known {
        assert_eq!(float8(bits), number, "{bits:#x}");
        assert_eq!(float8(bits | 0x80), -number, "{bits:#x} below zero");
    }
    assert!(float8(0x7f).is_nan() && float8(0xff).is_nan());
    assert!((1..0x7f).all(|bits| float8(bits) > float8(bits - 1)), "they grow with their bits");
}

#[test]
fn scales_are_of_the_whole_of_rows_or_of_blocks_and_each_expert_has_its_own() {
    assert_eq!(unpacked(&[2, 3], &[1], None).unwrap(), [1.0; 6]);
    assert_eq!(unpacked(&[2, 3], &[1, 1], Some([4, 4])).unwrap(), [1.0; 6]);
    assert_eq!(unpacked(&[2, 3], &[1], Some([2, 2])).unwrap(), [1.0; 6], "more than one block of it");
    assert_eq!(unpacked(&[2, 3], &[2, 1], None).unwrap(), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    let blocks = unpacked(&[3, 3], &[2, 2], Some([2, 2])).unwrap();
    assert_eq!(blocks, [1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
    // Two experts of 2 × 3.
    let rows = unpacked(&[2, 2, 3], &[2, 2, 1], None).unwrap();
    assert_eq!(rows.chunks(3).map(|row| row[2]).collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0]);
    let blocks = unpacked(&[2, 2, 3], &[2, 1, 2], Some([2, 2])).unwrap();
    assert_eq!(blocks, [1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0, 3.0, 3.0, 4.0]);
}

#[test]
fn another_number_of_scales_is_refused_by_name() {
    for (scales, block) in
        [(&[3, 1][..], None), (&[2, 3], None), (&[2, 3], Some([2, 2])), (&[4], Some([2, 2]))]
    {
        let said = unpacked(&[2, 3], scales, block).unwrap_err();
        assert!(said.starts_with("w_scale is F32 ") && said.contains("scales beside `w` [2, 3]"), "{said}");
    }
    assert!(unpacked(&[3], &[3], None).unwrap_err().contains("rows of numbers"));
}
