//! The plain encoders: one scale a block from its extreme values, each number to the nearest level.

use half::slice::HalfFloatSliceExt;

/// Encodes a type whose elements stand alone.
pub(super) fn each<const N: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = encode(*value);
    }
}

/// Encodes a type in blocks of `LEN` elements and `N` bytes.
pub(super) fn blocks<const LEN: usize, const N: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; LEN], &mut [u8; N]),
) {
    for (values, block) in values.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        encode(values, block);
    }
}

/// The same for an encoder that weighs errors; `importance` is one for each column of rows.
pub(super) fn weighed<const LEN: usize, const N: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    encode: impl Fn(&[f32; LEN], &[f32; LEN], &mut [u8; N]),
) {
    let columns = importance.map(|importance| importance.as_chunks().0);
    for (i, (values, block)) in values.as_chunks().0.iter().zip(out.as_chunks_mut().0).enumerate() {
        let importance = columns.map(|columns| &columns[i % columns.len()]);
        encode(values, &super::search::weights(values, importance), block);
    }
}

/// `f16` has an instruction for slices, which elements one by one would not use.
pub(super) fn f16s(values: &[f32], out: &mut [u8]) {
    let mut run = [half::f16::ZERO; 256];
    for (values, out) in values.chunks(256).zip(out.chunks_mut(512)) {
        let run = &mut run[..values.len()];
        run.convert_from_f32_slice(values);
        for (element, out) in run.iter().zip(out.as_chunks_mut().0) {
            *out = element.to_le_bytes();
        }
    }
}

fn f16(value: f32) -> [u8; 2] {
    half::f16::from_f32(value).to_le_bytes()
}

pub(super) fn bf16(value: f32) -> [u8; 2] {
    half::bf16::from_f32(value).to_le_bytes()
}

/// `1 / d`, and 0 for a block whose values are all the same as far as `d` can tell.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The value of largest magnitude, with its sign; the first of equals.
fn extreme(values: &[f32; 32]) -> f32 {
    values.iter().fold(0.0, |most: f32, v| if v.abs() > most.abs() { *v } else { most })
}

fn range(values: &[f32; 32]) -> (f32, f32) {
    values.iter().fold((f32::MAX, f32::MIN), |(low, high), v| {
        (if *v < low { *v } else { low }, if *v > high { *v } else { high })
    })
}

/// `d` and the levels up to `most`: the extreme value becomes level 0 or its mirror, so `d` has its opposite sign.
fn around_zero(values: &[f32; 32], most: u8) -> (f32, [u8; 32]) {
    let half = f32::from(most / 2 + 1);
    let d = extreme(values) / -half;
    let scale = inverse(d);
    // Truncation after adding a half more than the offset rounds to the nearest level.
    let middle = half + 0.5;
    (d, values.map(|v| ((v * scale + middle) as u8).min(most)))
}

/// `d`, the least value and the levels up to `most`, counted from it.
fn from_least(values: &[f32; 32], most: u8) -> (f32, f32, [u8; 32]) {
    let (low, high) = range(values);
    let d = (high - low) / f32::from(most);
    let scale = inverse(d);
    (d, low, values.map(|v| (((v - low) * scale + 0.5) as u8).min(most)))
}

pub(super) fn q4_0(values: &[f32; 32], block: &mut [u8; 18]) {
    let (d, levels) = around_zero(values, 15);
    block[..2].copy_from_slice(&f16(d));
    nibbles(&levels, &mut block[2..]);
}

pub(super) fn q4_1(values: &[f32; 32], block: &mut [u8; 20]) {
    let (d, low, levels) = from_least(values, 15);
    block[..2].copy_from_slice(&f16(d));
    block[2..4].copy_from_slice(&f16(low));
    nibbles(&levels, &mut block[4..]);
}

pub(super) fn q5_0(values: &[f32; 32], block: &mut [u8; 22]) {
    let (d, levels) = around_zero(values, 31);
    block[..2].copy_from_slice(&f16(d));
    five_bits(&levels, &mut block[2..]);
}

pub(super) fn q5_1(values: &[f32; 32], block: &mut [u8; 24]) {
    let (d, low, levels) = from_least(values, 31);
    block[..2].copy_from_slice(&f16(d));
    block[2..4].copy_from_slice(&f16(low));
    five_bits(&levels, &mut block[4..]);
}

/// Elements `i` and `i + 16` into the nibbles of byte `i`.
pub(super) fn nibbles(levels: &[u8; 32], out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = levels[i] & 15 | (levels[i + 16] & 15) << 4;
    }
}

/// Fifth bits into a word, the other four into nibbles.
pub(super) fn five_bits(levels: &[u8; 32], out: &mut [u8]) {
    let word = levels.iter().enumerate().fold(0, |word, (i, level)| word | u32::from(level >> 4) << i);
    out[..4].copy_from_slice(&word.to_le_bytes());
    nibbles(levels, &mut out[4..]);
}

pub(super) fn q8_0(values: &[f32; 32], block: &mut [u8; 34]) {
    let d = extreme(values).abs() / 127.0;
    let scale = inverse(d);
    block[..2].copy_from_slice(&f16(d));
    for (value, byte) in values.iter().zip(&mut block[2..]) {
        *byte = (value * scale).round() as i8 as u8;
    }
}
