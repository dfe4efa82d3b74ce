//! Weights as others pack them in Hugging Face folders, made what this engine runs: levels stay as they are where one of our
//! types has scales and offsets enough.

use metallic_core::{DType, quant};
use metallic_formats::Tensor;

use super::recipe::{Fault, floats};
use crate::model::{Key, Meta, ModelError};

/// How the matrices of a folder are packed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Packing {
    /// Not at all.
    #[default]
    Plain,
    /// MLX: `scale * q + bias`, with a scale and a bias for each group of so many elements of a row; levels of 2 to 8 bits one
    /// after another in words.
    Groups {
        /// Elements of a group.
        size: usize,
    },
    /// compressed-tensors: `scale * (q - 8)`, eight levels in a word.
    Nibbles,
    /// Floats of 8 bits (E4M3) with a scale for the whole, for each row, or for each block of so many rows and columns.
    Float8 {
        /// Rows and columns of a block.
        block: Option<[usize; 2]>,
    },
}

const MLX: Key = Key::new("", "quantization");
const GROUP: Key = Key::new("", "quantization.group_size");
const MODE: Key = Key::new("", "quantization.mode");
const OTHER: Key = Key::new("", "quantization_config");
const METHOD: Key = Key::new("", "quantization_config.quant_method");
const FORMAT: Key = Key::new("", "quantization_config.format");
const BITS: Key = Key::new("", "quantization_config.config_groups.group_0.weights.num_bits");
const KIND: Key = Key::new("", "quantization_config.config_groups.group_0.weights.type");
const STRUCTURE: Key = Key::new("", "quantization_config.config_groups.group_0.weights.block_structure");
const BLOCK: Key = Key::new("", "quantization_config.weight_block_size");
const SYMMETRIC: Key = Key::new("", "quantization_config.config_groups.group_0.weights.symmetric");

impl Packing {
    /// What `config.json` says of it. A way that is not known is refused by name.
    pub(crate) fn read(meta: &Meta<'_>) -> Result<Packing, ModelError> {
        if meta.has(MLX) {
            let mode = meta.get_or(MODE, "affine")?;
            if mode != "affine" {
                return Err(meta.bad(MODE, format!("`{mode}`"), "affine"));
            }
            let size: usize = meta.get(GROUP)?;
            if size == 0 || !size.is_multiple_of(32) {
                return Err(meta.bad(GROUP, size, "a multiple of 32"));
            }
            return Ok(Packing::Groups { size });
        }
        if !meta.has(OTHER) {
            return Ok(Packing::Plain);
        }
        match meta.get_or(METHOD, "unknown")? {
            // The experts of a family that reads them itself.
            "mxfp4" => Ok(Packing::Plain),
            "compressed-tensors" => {
                let (format, bits) = (meta.get_or(FORMAT, "unknown")?, meta.get_or(BITS, 0_usize)?);
                if bits == 8 && meta.get_or(KIND, "int")? == "float" {
                    return Ok(Packing::Float8 { block: block(meta, STRUCTURE)? });
                }
                if format != "pack-quantized" || bits != 4 || !meta.get_or(SYMMETRIC, true)? {
                    let found = format!("format `{format}` of {bits} bits");
                    return Err(meta.bad(
                        FORMAT,
                        found,
                        "pack-quantized, symmetric, of 4 bits, or floats of 8",
                    ));
                }
                Ok(Packing::Nibbles)
            }
            "fp8" => Ok(Packing::Float8 { block: block(meta, BLOCK)? }),
            method => {
                let needed =
                    "plain F32, F16 or BF16 weights, MLX groups, mxfp4, fp8 or compressed-tensors of 4 bits";
                Err(meta.bad(OTHER, format!("method `{method}`"), needed))
            }
        }
    }
}

/// Rows and columns of a block, where the file speaks of blocks.
fn block(meta: &Meta<'_>, key: Key) -> Result<Option<[usize; 2]>, ModelError> {
    match meta.opt::<Vec<usize>>(key)?.as_deref() {
        None => Ok(None),
        Some(&[rows, cols]) if rows > 0 && cols > 0 => Ok(Some([rows, cols])),
        Some(other) => Err(meta.bad(key, format!("{other:?}"), "rows and columns of a block")),
    }
}

/// The number of 8 bits: a sign, four bits of exponent, three of mantissa; no infinities, one pattern that is no number.
fn float8(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let size = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 128 == 0 { size } else { -size }
}

/// The matrix of numbers of 8 bits `[.., n, k]`, whose scales are one, `[.., n, 1]`, or one for each block.
pub(super) fn float8s(bytes: &Tensor, scales: &Tensor, block: Option<[usize; 2]>) -> Result<Tensor, Fault> {
    let [outer @ .., n, k] = bytes.shape.as_slice() else {
        return Err(Fault::unfit(bytes, "rows of numbers"));
    };
    let (outer, n, k) = (outer.iter().product::<usize>(), *n, *k);
    let numbers = floats(scales)?;
    let whole = numbers.len() == 1;
    let [rows, cols] = match (block, numbers.len()) {
        (_, 1) => [usize::MAX; 2],
        (Some(block), _) => block,
        (None, _) => [1, usize::MAX],
    };
    let (down, across) = (n.div_ceil(rows), k.div_ceil(cols));
    if !whole && numbers.len() != outer * down * across {
        let needed = format!("{outer} × {down} × {across} scales beside `{}` {:?}", bytes.name, bytes.shape);
        return Err(Fault::unfit(scales, needed));
    }
    let table: [f32; 256] = std::array::from_fn(|bits| float8(bits as u8));
    let mut row = vec![0.0; k];
    let mut data = vec![0; 2 * bytes.data.len()];
    for (index, (from, to)) in
        bytes.data.chunks_exact(k.max(1)).zip(data.chunks_exact_mut(2 * k.max(1))).enumerate()
    {
        let first = if whole { 0 } else { (index / n.max(1) * down + index % n.max(1) / rows) * across };
        for (i, (to, bits)) in row.iter_mut().zip(from).enumerate() {
            *to = table[usize::from(*bits)] * numbers[first + i / cols];
        }
        quant::quantize(DType::F16, &row, to).map_err(|error| Fault::unfit(bytes, error.to_string()))?;
    }
    let name = format!("{} unpacked", bytes.name);
    Ok(Tensor { name, dtype: DType::F16, shape: bytes.shape.clone(), data: data.into() })
}

/// A scale and an offset for each group of a row.
struct Groups {
    scales: Vec<f32>,
    offsets: Vec<f32>,
    /// Elements of a group.
    size: usize,
}

/// MLX's matrix of words `[.., n, k * bits / 32]`, whose scales and biases are `[.., n, k / size]`.
pub(super) fn groups(words: &Tensor, scales: &Tensor, biases: &Tensor, size: usize) -> Result<Tensor, Fault> {
    let (Some(per_row), Some(packed)) = (scales.shape.last(), words.shape.last()) else {
        return Err(Fault::unfit(words, "rows of packed levels"));
    };
    let k = per_row.saturating_mul(size);
    let bits = packed.saturating_mul(32).checked_div(k).unwrap_or(0);
    let rows = |tensor: &Tensor| tensor.shape[..tensor.shape.len() - 1].to_vec();
    if !(2..=8).contains(&bits) || bits == 7 || packed * 32 != k * bits || rows(words) != rows(scales) {
        let needed = format!("levels of 2 to 6 or 8 bits in groups of {size}, as `{}` has them", scales.name);
        return Err(Fault::unfit(words, needed));
    }
    if biases.shape != scales.shape {
        return Err(Fault::unfit(biases, format!("{:?}, as `{}`", scales.shape, scales.name)));
    }
    let groups = Groups { scales: floats(scales)?, offsets: floats(biases)?, size };
    let level = |row: &[u8], i: usize| {
        let at = i * bits;
        let low = u16::from(row[at / 8]) | u16::from(row.get(at / 8 + 1).copied().unwrap_or(0)) << 8;
        (low >> (at % 8) & ((1 << bits) - 1)) as u8
    };
    repack(words, k, packed * 4, bits, &groups, level)
}

/// The matrix of words `[n, k / 8]` of compressed-tensors, whose scales are `[n, k / size]`.
pub(super) fn nibbles(words: &Tensor, scales: &Tensor) -> Result<Tensor, Fault> {
    let (&[n, packed], &[of, per_row]) = (words.shape.as_slice(), scales.shape.as_slice()) else {
        return Err(Fault::unfit(words, "rows of packed levels"));
    };
    let k = packed * 8;
    let size = k.checked_div(per_row).unwrap_or(0);
    if n != of || size * per_row != k || !size.is_multiple_of(32) || size == 0 {
        return Err(Fault::unfit(scales, format!("[{n}, a divisor of {}] beside `{}`", k / 32, words.name)));
    }
    let scales = floats(scales)?;
    let offsets = scales.iter().map(|scale| -8.0 * scale).collect();
    let groups = Groups { scales, offsets, size };
    repack(words, k, packed * 4, 4, &groups, |row, i| row[i / 2] >> (i % 2 * 4) & 15)
}

/// Levels of at most 4 and of 5 bits become `Q4_1` and `Q5_1` where halves hold the scales; the rest numbers.
fn repack(
    words: &Tensor,
    k: usize,
    row_bytes: usize,
    bits: usize,
    groups: &Groups,
    level: impl Fn(&[u8], usize) -> u8,
) -> Result<Tensor, Fault> {
    let half = |x: &f32| half::f16::from_f32(*x).to_f32() == *x;
    let exact = groups.scales.iter().chain(&groups.offsets).all(half);
    let dtype = match bits {
        2..=4 if exact => DType::Q4_1,
        5 if exact => DType::Q5_1,
        _ => DType::F16,
    };
    let per_row = k / groups.size;
    let mut data = Vec::with_capacity(words.data.len() / row_bytes.max(1) * dtype.bytes_for(k).unwrap_or(0));
    for (row, levels) in words.data.chunks_exact(row_bytes.max(1)).enumerate() {
        for block in 0..k / 32 {
            let group = row * per_row + block * 32 / groups.size;
            let (scale, offset) = (groups.scales[group], groups.offsets[group]);
            let q: [u8; 32] = std::array::from_fn(|i| level(levels, block * 32 + i));
            match dtype {
                DType::Q4_1 | DType::Q5_1 => {
                    data.extend([scale, offset].iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()));
                    if dtype == DType::Q5_1 {
                        let fifth = (0..32).fold(0_u32, |word, i| word | u32::from(q[i] >> 4) << i);
                        data.extend(fifth.to_le_bytes());
                    }
                    data.extend((0..16).map(|i| (q[i] & 15) | (q[i + 16] & 15) << 4));
                }
                _ => {
                    let numbers = q.map(|q| scale * f32::from(q) + offset);
                    let mut bytes = [0; 64];
                    quant::quantize(DType::F16, &numbers, &mut bytes)
                        .map_err(|error| Fault::unfit(words, error.to_string()))?;
                    data.extend(bytes);
                }
            }
        }
    }
    let mut shape = words.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = k;
    }
    Ok(Tensor { name: format!("{} unpacked", words.name), dtype, shape, data: data.into() })
}

#[cfg(test)]
mod tests;
