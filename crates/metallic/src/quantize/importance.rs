//! The importance matrix: for each column of each matrix the mean square of what it was multiplied by.

use std::collections::BTreeMap;
use std::path::Path;

use metallic_core::{DType, quant};
use metallic_formats::{Gguf, GgufWriter, Tensor};

use super::{Planned, QuantizeError};

/// Mean squares of the inputs of matrices, by the names of those in GGUF files.
///
/// As a file it is GGUF with `general.type` = `imatrix` and two tensors for each matrix: `NAME.in_sum2 [matrices, columns]`, the
/// sums of squares, and `NAME.counts [matrices, 1]`, how many rows they are of. `matrices` is 1 but for stacks of experts.
#[derive(Clone, Debug, Default)]
pub struct Importance {
    file: String,
    means: BTreeMap<String, Vec<f32>>,
}

/// What was gathered of one matrix, or of a stack of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// Sums of squares: `[matrices, columns]`.
    pub squares: Vec<f64>,
    /// Rows that they are of, for each matrix.
    pub counts: Vec<u64>,
}

/// What a file was made of.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// By the names of matrices.
    pub sums: BTreeMap<String, Sums>,
    /// The name of the text.
    pub dataset: String,
    /// Windows of the text.
    pub chunks: usize,
    /// Tokens in each of them.
    pub chunk_size: usize,
}

const SQUARES: &str = ".in_sum2";
const COUNTS: &str = ".counts";

impl Gathered {
    /// Writes the file at `path`.
    pub fn write(&self, path: &Path) -> Result<(), QuantizeError> {
        let mut writer = GgufWriter::new();
        writer.insert("general.type", "imatrix");
        writer.insert("imatrix.datasets", vec![self.dataset.clone()]);
        writer.insert("imatrix.chunk_count", self.chunks as u32);
        writer.insert("imatrix.chunk_size", self.chunk_size as u32);
        for (name, Sums { squares, counts }) in &self.sums {
            let matrices = counts.len().max(1);
            let floats = |values: &mut dyn Iterator<Item = f32>| {
                values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>().into()
            };
            writer.add(Tensor {
                name: format!("{name}{SQUARES}"),
                dtype: DType::F32,
                shape: vec![matrices, squares.len() / matrices],
                data: floats(&mut squares.iter().map(|v| *v as f32)),
            })?;
            writer.add(Tensor {
                name: format!("{name}{COUNTS}"),
                dtype: DType::F32,
                shape: vec![matrices, 1],
                data: floats(&mut counts.iter().map(|n| *n as f32)),
            })?;
        }
        Ok(writer.write(path)?)
    }
}

impl Importance {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Importance, QuantizeError> {
        let file = path.display().to_string();
        let gguf = Gguf::open(path)?;
        let bad = |found: String, needed: &str| QuantizeError::Importance {
            file: file.clone(),
            found,
            needed: needed.to_owned(),
        };
        if gguf.metadata.opt_str("general.type")? != Some("imatrix") {
            return Err(bad("it is not an importance matrix".to_owned(), "what `metallic imatrix` writes"));
        }
        let mut means = BTreeMap::new();
        for tensor in gguf.tensors() {
            let Some(name) = tensor.name.strip_suffix(SQUARES) else { continue };
            let numbers = |tensor: &Tensor| {
                let mut numbers = vec![0.0; tensor.elements()];
                let done = quant::dequantize(tensor.dtype, &tensor.data, &mut numbers);
                done.map(|()| numbers).map_err(|error| bad(error.to_string(), "F32"))
            };
            let (mut squares, counts) =
                (numbers(tensor)?, numbers(gguf.require(&format!("{name}{COUNTS}"))?)?);
            let columns = squares.len() / counts.len().max(1);
            if counts.is_empty() || columns * counts.len() != squares.len() || columns == 0 {
                let found = format!("{} sums of `{name}` with {} counts", squares.len(), counts.len());
                return Err(bad(found, "a count for each matrix"));
            }
            for (squares, count) in squares.chunks_exact_mut(columns).zip(&counts) {
                // What no token came to matters as much as the next.
                for v in squares {
                    *v = if *count > 0.0 { *v / count } else { 1.0 };
                }
            }
            if let Some(wrong) = squares.iter().find(|v| !(v.is_finite() && **v >= 0.0)) {
                return Err(bad(format!("a mean of `{name}` is {wrong}"), "numbers from 0"));
            }
            means.insert(name.to_owned(), squares);
        }
        if means.is_empty() {
            return Err(bad("it has no sums".to_owned(), "a tensor `NAME.in_sum2` for each matrix"));
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Importance { file: name.unwrap_or(file), means })
    }

    /// The name of its file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// How many matrices it knows.
    pub fn len(&self) -> usize {
        self.means.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.means.is_empty()
    }

    /// The importance of each column of a matrix, or of each matrix of a stack.
    pub fn of(&self, name: &str) -> Option<&[f32]> {
        self.means.get(name).map(Vec::as_slice)
    }

    /// It has as many columns as the matrices have, and knows some of them.
    pub(super) fn check(&self, tensors: &[Planned]) -> Result<(), QuantizeError> {
        let bad =
            |found, needed: String| QuantizeError::Importance { file: self.file.clone(), found, needed };
        let mut known = 0;
        for tensor in tensors.iter().filter(|tensor| tensor.is_matrix) {
            let Some(means) = self.of(&tensor.name) else { continue };
            known += 1;
            let columns = tensor.shape.last().copied().unwrap_or(1);
            let stacked: usize = tensor.shape[..tensor.shape.len().saturating_sub(2)].iter().product();
            if means.len() != columns && means.len() != columns * stacked {
                let found = format!("{} means of `{}`", means.len(), tensor.name);
                return Err(bad(found, format!("one for each of its {columns} columns")));
            }
        }
        if known == 0 {
            let needed = "the importance matrix of this model".to_owned();
            return Err(bad("it knows none of the matrices".to_owned(), needed));
        }
        Ok(())
    }
}
