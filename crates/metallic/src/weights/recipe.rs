//! How a weight is made of the tensors of a file.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use metallic_core::{Bytes, DType, quant};
use metallic_formats::Tensor;

use super::{Packing, WeightSource, packed};
use crate::model::{Key, Naming};

/// How a weight is made. Begins with [`Key::weight`] or [`Key::bias`].
#[derive(Clone, Debug, PartialEq)]
pub enum Recipe {
    /// A tensor as the file has it.
    Tensor {
        /// Its name; in a stack `{}` stands for the number of the item.
        name: Key,
        /// What its name ends with: `.weight`.
        suffix: &'static str,
    },
    /// One way for each kind of file.
    ByFile {
        /// In GGUF files.
        gguf: Box<Recipe>,
        /// In Hugging Face folders.
        hf: Box<Recipe>,
    },
    /// `w[rows]`: a part of a fused matrix, or of a fused vector.
    Rows {
        /// `[.., n, k]` or `[n]`.
        of: Box<Recipe>,
        /// The rows of it.
        rows: Range<usize>,
    },
    /// Rows in another order, some of them more than once; `None` is a row of zeros.
    Picked {
        /// `[.., n, k]` or `[n]`.
        of: Box<Recipe>,
        /// Where each row comes from.
        rows: Vec<Option<usize>>,
    },
    /// `wᵀ`: `[.., k, n]` made `[.., n, k]`. Floats only.
    Transposed(Box<Recipe>),
    /// `w + 1`, in `F32`. Floats only.
    PlusOne(Box<Recipe>),
    /// `-exp(w)`, in `F32`. Floats only.
    NegatedExp(Box<Recipe>),
    /// Blocks of 16 bytes, two elements in each, and their exponents: one `MXFP4` tensor.
    Mxfp4 {
        /// Bytes `[.., n, k / 32, 16]`.
        blocks: Box<Recipe>,
        /// Bytes `[.., n, k / 32]`.
        scales: Box<Recipe>,
    },
    /// `[w_0, w_1, ..]`: one axis more. Taken as it is where the file has it under a name without `{}`: it is a stack already.
    Stacked {
        /// One item.
        of: Box<Recipe>,
        /// How many there are.
        count: usize,
    },
}

impl Key {
    /// The tensor of this name and `.weight`.
    pub const fn weight(self) -> Recipe {
        Recipe::Tensor { name: self, suffix: ".weight" }
    }

    /// The tensor of this name and `.bias`.
    pub const fn bias(self) -> Recipe {
        Recipe::Tensor { name: self, suffix: ".bias" }
    }
}

/// The tensor of exactly this name.
impl From<Key> for Recipe {
    fn from(name: Key) -> Recipe {
        Recipe::Tensor { name, suffix: "" }
    }
}

impl Recipe {
    /// See [`Recipe::ByFile`].
    #[must_use]
    pub fn by_file(gguf: Recipe, hf: Recipe) -> Recipe {
        Recipe::ByFile { gguf: Box::new(gguf), hf: Box::new(hf) }
    }

    /// See [`Recipe::Rows`].
    #[must_use]
    pub fn rows(self, rows: Range<usize>) -> Recipe {
        Recipe::Rows { of: Box::new(self), rows }
    }

    /// See [`Recipe::Picked`].
    #[must_use]
    pub fn picked(self, rows: Vec<Option<usize>>) -> Recipe {
        Recipe::Picked { of: Box::new(self), rows }
    }

    /// See [`Recipe::Transposed`].
    #[must_use]
    pub fn transposed(self) -> Recipe {
        Recipe::Transposed(Box::new(self))
    }

    /// See [`Recipe::PlusOne`].
    #[must_use]
    pub fn plus_one(self) -> Recipe {
        Recipe::PlusOne(Box::new(self))
    }

    /// See [`Recipe::NegatedExp`].
    #[must_use]
    pub fn negated_exp(self) -> Recipe {
        Recipe::NegatedExp(Box::new(self))
    }

    /// See [`Recipe::Mxfp4`].
    #[must_use]
    pub fn mxfp4(blocks: Recipe, scales: Recipe) -> Recipe {
        Recipe::Mxfp4 { blocks: Box::new(blocks), scales: Box::new(scales) }
    }

    /// See [`Recipe::Stacked`].
    #[must_use]
    pub fn stacked(self, count: usize) -> Recipe {
        Recipe::Stacked { of: Box::new(self), count }
    }
}

/// What was made, and of what.
pub(super) struct Made {
    /// Named after the way it was made, so that no two weights have one name.
    pub(super) tensor: Tensor,
    pub(super) used: Vec<Used>,
}

/// Rows of a tensor of the file.
pub(super) struct Used {
    pub(super) name: String,
    pub(super) rows: Range<usize>,
    /// How many rows it has.
    pub(super) of: usize,
}

impl Used {
    /// The whole of a tensor.
    pub(super) fn all(tensor: &Tensor) -> Used {
        Used { name: tensor.name.clone(), rows: 0..1, of: 1 }
    }
}

/// Why a weight could not be made.
pub(super) enum Fault {
    Missing { name: String },
    Unfit { name: String, found: String, needed: String },
}

impl Fault {
    pub(super) fn unfit(tensor: &Tensor, needed: impl Into<String>) -> Fault {
        Fault::Unfit { name: tensor.name.clone(), found: describe(tensor), needed: needed.into() }
    }
}

pub(super) fn describe(tensor: &Tensor) -> String {
    format!("{} {:?}", tensor.dtype, tensor.shape)
}

impl WeightSource<'_, '_> {
    /// Follows a recipe; `item` is the number within a stack.
    pub(super) fn make(&self, recipe: &Recipe, item: Option<usize>) -> Result<Made, Fault> {
        match recipe {
            Recipe::Tensor { name, suffix } => self.find(*name, suffix, item),
            Recipe::ByFile { gguf, hf } => match self.ledger.naming {
                Naming::Gguf => self.make(gguf, item),
                Naming::HuggingFace => self.make(hf, item),
            },
            Recipe::Rows { of, rows } => self.make(of, item)?.rows(rows),
            Recipe::Picked { of, rows } => self.make(of, item)?.picked(rows),
            Recipe::Transposed(of) => self.make(of, item)?.changed(transposed),
            Recipe::PlusOne(of) => self.make(of, item)?.changed(|t| each(t, "+ 1", |x| x + 1.0)),
            Recipe::NegatedExp(of) => self.make(of, item)?.changed(|t| each(t, "-exp", |x| -x.exp())),
            Recipe::Mxfp4 { blocks, scales } => {
                let (mut blocks, scales) = (self.make(blocks, item)?, self.make(scales, item)?);
                blocks.used.extend(scales.used);
                blocks.changed(|blocks| mxfp4(blocks, &scales.tensor))
            }
            // A name without a number is that of a stack already.
            Recipe::Stacked { of, count } => match self.make(of, None) {
                Ok(stacked) => Ok(stacked),
                Err(_) => stack((0..*count).map(|i| self.make(of, Some(i))).collect::<Result<_, _>>()?),
            },
        }
    }

    fn find(&self, name: Key, suffix: &str, item: Option<usize>) -> Result<Made, Fault> {
        let item = item.map_or_else(|| "{}".to_owned(), |i| i.to_string());
        let names: Vec<String> = name
            .spellings(self.ledger.naming)
            .map(|name| format!("{}{}{suffix}", self.prefix, name.replace("{}", &item)))
            .collect();
        let get = |name: &str| self.ledger.tensors.get(name).copied();
        let found = names.iter().find_map(|name| Some((name, get(name)?)));
        if let Packing::Nibbles = self.ledger.packing {
            let part = |end: &str| names.iter().find_map(|name| get(&format!("{name}{end}")));
            if let (Some(words), Some(scales)) = (part("_packed"), part("_scale")) {
                let shape = part("_shape");
                let used = [Some(words), Some(scales), shape].into_iter().flatten().map(Used::all).collect();
                return Ok(Made { tensor: packed::nibbles(words, scales)?, used });
            }
        }
        let Some((name, tensor)) = found else {
            let name = names.into_iter().next().unwrap_or_else(|| format!("{}{suffix}", name.gguf));
            return Err(Fault::Missing { name });
        };
        if let (Packing::Groups { size }, DType::U32) = (&self.ledger.packing, tensor.dtype) {
            let sibling = |end: &str| {
                let name = format!("{}{end}", name.trim_end_matches(suffix));
                get(&name).ok_or(Fault::Missing { name })
            };
            let (scales, biases) = (sibling(".scales")?, sibling(".biases")?);
            let used = [tensor, scales, biases].map(Used::all).into();
            return Ok(Made { tensor: packed::groups(tensor, scales, biases, *size)?, used });
        }
        if let (Packing::Float8 { block }, DType::U8) = (&self.ledger.packing, tensor.dtype) {
            let beside = |end: &str| get(&format!("{name}{end}"));
            let Some(scales) = beside("_scale_inv").or_else(|| beside("_scale")) else {
                return Err(Fault::Missing { name: format!("{name}_scale") });
            };
            // What activations were scaled by where they had 8 bits, too.
            let inputs = get(&format!("{}.input_scale", name.trim_end_matches(suffix)));
            let used = [Some(tensor), Some(scales), inputs].into_iter().flatten().map(Used::all).collect();
            return Ok(Made { tensor: packed::float8s(tensor, scales, *block)?, used });
        }
        let used = vec![Used::all(tensor)];
        let mut tensor = tensor.clone();
        // `[d, 1, width]` is how some libraries have a matrix.
        if let [d, 1, width] = tensor.shape[..] {
            tensor.shape = vec![d, width];
        }
        Ok(Made { tensor, used })
    }
}

impl Made {
    fn changed(self, change: impl FnOnce(&Tensor) -> Result<Tensor, Fault>) -> Result<Made, Fault> {
        Ok(Made { tensor: change(&self.tensor)?, used: self.used })
    }

    fn picked(self, rows: &[Option<usize>]) -> Result<Made, Fault> {
        let Tensor { name, dtype, shape, data } = &self.tensor;
        let most = rows.iter().flatten().max().map_or(0, |row| row + 1);
        let unfit = || Fault::unfit(&self.tensor, format!("rows 0 to {most}"));
        let (outer, n, k) = match shape.as_slice() {
            [n] => (1, *n, 1),
            [outer @ .., n, k] => (outer.iter().product(), *n, *k),
            [] => return Err(unfit()),
        };
        let bytes = dtype.bytes_for(k).filter(|_| most <= n).ok_or_else(unfit)?;
        let mut picked = vec![0; outer * rows.len() * bytes];
        let sources = (0..outer).flat_map(|i| rows.iter().map(move |row| row.map(|row| i * n + row)));
        for (to, row) in picked.chunks_exact_mut(bytes.max(1)).zip(sources) {
            let Some(row) = row else { continue };
            to.copy_from_slice(data.get(row * bytes..(row + 1) * bytes).ok_or_else(unfit)?);
        }
        // Two ways to pick from one tensor are two weights.
        let mut hasher = DefaultHasher::new();
        rows.hash(&mut hasher);
        let mut shape = shape.clone();
        let axis = shape.len().saturating_sub(2);
        shape[axis] = rows.len();
        let name = format!("{name}[{} rows, {:x}]", rows.len(), hasher.finish());
        let one = |used: &Used, row: usize| Used { name: used.name.clone(), rows: row..row + 1, of: n };
        let used = self.used.iter().flat_map(|used| rows.iter().flatten().map(move |row| one(used, *row)));
        let used = used.collect();
        Ok(Made { tensor: Tensor { name, dtype: *dtype, shape, data: picked.into() }, used })
    }

    /// A window into the same bytes, where the rows lie in one piece.
    fn rows(mut self, rows: &Range<usize>) -> Result<Made, Fault> {
        let Tensor { name, dtype, shape, data } = &self.tensor;
        let needed = || Fault::unfit(&self.tensor, format!("rows {} to {}", rows.start, rows.end));
        let (outer, n, k) = match shape.as_slice() {
            [n] => (1, *n, 1),
            [outer @ .., n, k] => (outer.iter().product(), *n, *k),
            [] => return Err(needed()),
        };
        // The elements of a quantised vector are no whole blocks.
        let row =
            dtype.bytes_for(k).filter(|_| rows.start <= rows.end && rows.end <= n).ok_or_else(needed)?;
        let piece =
            |i: usize| data.slice((i * n + rows.start) * row..(i * n + rows.end) * row).ok_or_else(needed);
        let data = if outer == 1 {
            piece(0)?
        } else {
            let pieces = (0..outer).map(piece).collect::<Result<Vec<Bytes>, Fault>>()?;
            Bytes::from(pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>())
        };
        let mut shape = shape.clone();
        let axis = shape.len().saturating_sub(2);
        shape[axis] = rows.len();
        let name = format!("{name}[{}..{}]", rows.start, rows.end);
        for used in &mut self.used {
            // Rows of rows are counted from the first of all.
            let inner = used.rows.len() == n && used.of > n;
            let first = if inner { used.rows.start } else { 0 };
            let of = if inner { used.of } else { n };
            (used.rows, used.of) = (first + rows.start..first + rows.end, of);
        }
        Ok(Made { tensor: Tensor { name, dtype: *dtype, shape, data }, used: self.used })
    }
}

/// The numbers of a tensor of floats.
pub(super) fn floats(tensor: &Tensor) -> Result<Vec<f32>, Fault> {
    let unfit = || Fault::unfit(tensor, "F32, F16 or BF16");
    if !tensor.dtype.is_float() {
        return Err(unfit());
    }
    let mut numbers = vec![0.0; tensor.elements()];
    quant::dequantize(tensor.dtype, &tensor.data, &mut numbers).map_err(|_| unfit())?;
    Ok(numbers)
}

fn f32s(name: String, shape: &[usize], numbers: &[f32]) -> Tensor {
    let data: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor { name, dtype: DType::F32, shape: shape.to_vec(), data: data.into() }
}

fn each(tensor: &Tensor, what: &str, f: impl Fn(f32) -> f32) -> Result<Tensor, Fault> {
    let numbers: Vec<f32> = floats(tensor)?.into_iter().map(f).collect();
    Ok(f32s(format!("{} {what}", tensor.name), &tensor.shape, &numbers))
}

/// Elements `2i` and `2i + 1` in byte `i` become elements `i` and `i + 16` in byte `i`, behind their exponent.
fn mxfp4(blocks: &Tensor, scales: &Tensor) -> Result<Tensor, Fault> {
    let [rows @ .., count, 16] = blocks.shape.as_slice() else {
        return Err(Fault::unfit(blocks, "blocks of 16 bytes"));
    };
    let shape: Vec<usize> = rows.iter().chain([count]).copied().collect();
    if scales.shape != shape || scales.data.len() * 16 != blocks.data.len() {
        return Err(Fault::unfit(scales, format!("bytes {shape:?}, as `{}` has blocks", blocks.name)));
    }
    let mut data = Vec::with_capacity(17 * scales.data.len());
    for (block, scale) in blocks.data.as_chunks::<16>().0.iter().zip(scales.data.iter()) {
        let element = |i: usize| block[i / 2] >> (i % 2 * 4) & 15;
        data.push(*scale);
        data.extend((0..16).map(|i| element(i) | element(i + 16) << 4));
    }
    let shape = rows.iter().copied().chain([32 * count]).collect();
    Ok(Tensor { name: format!("{} as MXFP4", blocks.name), dtype: DType::MXFP4, shape, data: data.into() })
}

/// Moves elements without looking at them, so that every float keeps its bits.
fn transposed(tensor: &Tensor) -> Result<Tensor, Fault> {
    let [outer @ .., k, n] = tensor.shape.as_slice() else {
        return Err(Fault::unfit(tensor, "rows and columns"));
    };
    let size = tensor.dtype.block_bytes();
    if !tensor.dtype.is_float() || tensor.elements().checked_mul(size) != Some(tensor.data.len()) {
        return Err(Fault::unfit(tensor, "F32, F16 or BF16"));
    }
    let mut data = Vec::with_capacity(tensor.data.len());
    for matrix in tensor.data.chunks_exact((k * n * size).max(1)) {
        for column in 0..*n {
            for row in 0..*k {
                let at = (row * n + column) * size;
                data.extend_from_slice(&matrix[at..at + size]);
            }
        }
    }
    let shape = outer.iter().chain([n, k]).copied().collect();
    Ok(Tensor { name: format!("{}ᵀ", tensor.name), dtype: tensor.dtype, shape, data: data.into() })
}

fn stack(items: Vec<Made>) -> Result<Made, Fault> {
    let count = items.len();
    let mut items = items.into_iter();
    let Some(Made { tensor: first, mut used }) = items.next() else {
        return Err(Fault::Missing { name: "an item of a stack".to_owned() });
    };
    let mut data = first.data.to_vec();
    for item in items {
        if (item.tensor.dtype, &item.tensor.shape) != (first.dtype, &first.shape) {
            return Err(Fault::unfit(&item.tensor, format!("{} as `{}`", describe(&first), first.name)));
        }
        data.extend_from_slice(&item.tensor.data);
        used.extend(item.used);
    }
    let shape = std::iter::once(count).chain(first.shape).collect();
    let name = format!("{} and {} more", first.name, count - 1);
    Ok(Made { tensor: Tensor { name, dtype: first.dtype, shape, data: data.into() }, used })
}
