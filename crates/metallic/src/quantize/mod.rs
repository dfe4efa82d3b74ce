//! Model files made smaller: a GGUF file or a Hugging Face folder becomes a GGUF file with its matrices in other types.
//!
//! [`Plan::new`] decides the type of each tensor by a [`Mixture`]; [`Plan::write`] encodes one tensor after the other, each on
//! several threads, so that no more than one is in memory.

mod convert;
mod gather;
mod importance;
mod mixture;
mod vocab;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;

use metallic_core::DType;
use metallic_core::quant::{self, QuantError};
use metallic_formats::{FormatError, Gguf, GgufStream, Metadata, Tensor, TensorSpec};

use convert::Conversion;
pub use gather::{Gathering, gather};
pub use importance::{Gathered, Importance, Sums};
pub use mixture::Mixture;
use mixture::{Facts, fitting, is_matrix};

use crate::model::ModelError;

/// Why a file was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A file could not be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The folder holds no model that can be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The numbers of a tensor could not be converted.
    #[error("tensor `{name}`: {error}")]
    Quant {
        /// Its name.
        name: String,
        /// Why not.
        error: QuantError,
    },
    /// Blocks share scales, so one such number would spoil others.
    #[error("tensor `{name}` has a number that is not finite, and {dtype} cannot hold it")]
    NotFinite {
        /// Its name.
        name: String,
        /// What it was to become.
        dtype: DType,
    },
    /// The importance matrix is of another model, or is none.
    #[error("`{file}`: {found}; needed is {needed}")]
    Importance {
        /// The file.
        file: String,
        /// What it has.
        found: String,
        /// What was needed.
        needed: String,
    },
    /// A family that is run from its folder and cannot be written as GGUF yet.
    #[error(
        "`{file}` is of the family `{found}`, which cannot be converted to GGUF; those that can are {supported}"
    )]
    Family {
        /// The folder.
        file: String,
        /// Its `model_type`.
        found: String,
        /// Those that can.
        supported: String,
    },
    /// A folder has something that GGUF has no place for.
    #[error("`{file}`: {found} cannot be written as GGUF; needed is {needed}")]
    Unwritable {
        /// The folder or file.
        file: String,
        /// What it has.
        found: String,
        /// What could be written.
        needed: String,
    },
    /// A file of several.
    #[error("`{file}` is one of {parts} files that make a model together; join them first")]
    Split {
        /// The file.
        file: String,
        /// How many there are.
        parts: usize,
    },
    /// A model whose matrices have other names than those of GGUF.
    #[error("`{file}` is a folder; importance is gathered from GGUF files, whose names it is kept by")]
    NotGguf {
        /// The folder.
        file: String,
    },
    /// There is not one window of text.
    #[error("the text has {tokens} tokens, one window needs {window}")]
    TextTooShort {
        /// What it has.
        tokens: usize,
        /// What is needed.
        window: usize,
    },
    /// The caller wished no more of it.
    #[error("stopped")]
    Stopped,
}

/// What a file is to become.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// The types of its matrices.
    pub mixture: Mixture,
    /// All matrices get the base type of the mixture.
    pub pure: bool,
    /// The type of the output matrix, or of the embedding table where that serves as one.
    pub output: Option<DType>,
    /// The type of the embedding table.
    pub embedding: Option<DType>,
    /// How much the columns of each matrix matter.
    pub importance: Option<Importance>,
    /// Threads that encode.
    pub threads: NonZeroUsize,
}

impl QuantizeOptions {
    /// The usual mixture of this name, on this many threads.
    pub fn new(mixture: Mixture, threads: NonZeroUsize) -> QuantizeOptions {
        QuantizeOptions { mixture, pure: false, output: None, embedding: None, importance: None, threads }
    }
}

/// A model to be quantised: its metadata and tensors as GGUF has them.
#[derive(Debug)]
pub struct Input {
    metadata: Metadata,
    tensors: Vec<Described>,
    source: Source,
}

/// A tensor without its data.
#[derive(Clone, Debug)]
struct Described {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
}

#[derive(Debug)]
enum Source {
    Gguf(Gguf),
    Folder(Box<Conversion>),
}

impl Input {
    /// Opens a GGUF file, or a folder with `config.json` and safetensors.
    pub fn open(path: &Path) -> Result<Input, QuantizeError> {
        if path.is_dir() {
            let conversion = Conversion::open(path)?;
            let (metadata, tensors) = (conversion.metadata()?, conversion.tensors()?);
            conversion.check(&metadata, &tensors)?;
            return Ok(Input { metadata, tensors, source: Source::Folder(Box::new(conversion)) });
        }
        let gguf = Gguf::open(path)?;
        let parts = gguf.metadata.opt_usize("split.count")?.unwrap_or(1);
        if parts > 1 {
            return Err(QuantizeError::Split { file: path.display().to_string(), parts });
        }
        let described =
            |t: &Tensor| Described { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() };
        let tensors = gguf.tensors().map(described).collect();
        Ok(Input { metadata: gguf.metadata.clone(), tensors, source: Source::Gguf(gguf) })
    }

    /// What the new file cannot say as the old one does.
    pub fn notes(&self) -> Vec<String> {
        match &self.source {
            Source::Gguf(_) => Vec::new(),
            Source::Folder(conversion) => conversion.notes(),
        }
    }

    fn load(&self, name: &str) -> Result<Tensor, QuantizeError> {
        match &self.source {
            Source::Gguf(gguf) => Ok(gguf.require(name)?.clone()),
            Source::Folder(conversion) => conversion.load(name),
        }
    }
}

/// What becomes of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its name in the new file.
    pub name: String,
    /// Its shape, outermost axis first.
    pub shape: Vec<usize>,
    /// Its type in the old file.
    pub from: DType,
    /// Its type in the new one.
    pub to: DType,
    /// The type it would have if its rows filled the blocks.
    pub wanted: DType,
    /// Whether it is a matrix that may be encoded.
    pub is_matrix: bool,
}

impl Planned {
    /// How many numbers it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|n| *n as u64).product()
    }

    fn bytes(&self, dtype: DType) -> u64 {
        self.elements() / dtype.block_len() as u64 * dtype.block_bytes() as u64
    }
}

/// Every tensor of the new file, in order.
#[derive(Debug)]
pub struct Plan {
    input: Input,
    metadata: Metadata,
    tensors: Vec<Planned>,
    importance: Option<Importance>,
    threads: NonZeroUsize,
}

/// The layout of quantised blocks that every reader of today knows.
const QUANTIZATION_VERSION: u32 = 2;
/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 16;

impl Plan {
    /// Decides what every tensor becomes. Fails where the importance matrix is of another model.
    pub fn new(input: Input, options: QuantizeOptions) -> Result<Plan, QuantizeError> {
        let QuantizeOptions { mixture, pure, output, embedding, importance, threads } = options;
        let mut metadata = input.metadata.clone();
        metadata.insert("general.file_type", mixture.file_type);
        if mixture.base.is_quantized() {
            metadata.insert("general.quantization_version", QUANTIZATION_VERSION);
        }
        if let Some(importance) = &importance {
            metadata.insert("quantize.imatrix.file", importance.file());
            metadata.insert("quantize.imatrix.entries_count", importance.len() as u32);
        }
        let names = input.tensors.iter().map(|tensor| tensor.name.as_str());
        let facts = Facts::new(&metadata, &names, importance.is_some());
        let tied = !names.clone().any(|name| name == "output.weight");
        let chosen = |tensor: &Described| match tensor.name.as_str() {
            "token_embd.weight" => embedding.or(output.filter(|_| tied)),
            "output.weight" => output,
            _ => None,
        };
        let planned = |tensor: &Described| {
            let columns = tensor.shape.last().copied().unwrap_or(1);
            let is_number = tensor.dtype.is_float() || tensor.dtype.is_quantized();
            let is_matrix = is_number && is_matrix(&tensor.name, &tensor.shape);
            let usual = || {
                let is_stack = tensor.shape.len() > 2 && tensor.shape[0] > 1;
                if pure { mixture.base } else { mixture.dtype(&facts, &tensor.name, is_stack) }
            };
            let wanted = if is_matrix { chosen(tensor).unwrap_or_else(usual) } else { tensor.dtype };
            let to = if is_matrix { fitting(wanted, columns) } else { tensor.dtype };
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            Planned { name, shape, from: tensor.dtype, to, wanted, is_matrix }
        };
        let tensors: Vec<Planned> = input.tensors.iter().map(planned).collect();
        if let Some(importance) = &importance {
            importance.check(&tensors)?;
        }
        Ok(Plan { input, metadata, tensors, importance, threads })
    }

    /// What becomes of each tensor.
    pub fn tensors(&self) -> &[Planned] {
        &self.tensors
    }

    /// Matrices that were quantised already, and lose precision a second time.
    pub fn requantized(&self) -> usize {
        self.tensors.iter().filter(|t| t.from.is_quantized() && t.to != t.from).count()
    }

    /// Matrices whose rows do not fill the blocks of the type they should have had.
    pub fn fallbacks(&self) -> impl Iterator<Item = &Planned> {
        self.tensors.iter().filter(|t| t.to != t.wanted)
    }

    /// Bytes of all tensors, before and after.
    pub fn bytes(&self) -> (u64, u64) {
        let total = |of: fn(&Planned) -> DType| self.tensors.iter().map(|t| t.bytes(of(t))).sum();
        (total(|t| t.from), total(|t| t.to))
    }

    /// Bits that a number of the new file takes on the average.
    pub fn bits_per_weight(&self) -> f64 {
        let elements: u64 = self.tensors.iter().map(Planned::elements).sum();
        self.bytes().1 as f64 * 8.0 / elements.max(1) as f64
    }

    /// Writes the file at `path`, which appears complete or not at all. `progress` is told of bytes of the old file that are done,
    /// from any thread, and ends the work by returning `false`.
    pub fn write(&self, path: &Path, progress: &(dyn Fn(u64) -> bool + Sync)) -> Result<(), QuantizeError> {
        let spec = |t: &Planned| (t.name.clone(), t.to, t.shape.clone());
        let specs: Vec<_> = self.tensors.iter().map(spec).collect();
        let specs = specs.iter().map(|(name, dtype, shape)| TensorSpec { name, dtype: *dtype, shape });
        let mut file = GgufStream::create(path, &self.metadata, specs)?;
        for planned in &self.tensors {
            let tensor = self.input.load(&planned.name)?;
            if planned.to == tensor.dtype {
                file.write(&tensor.data)?;
                tensor.data.check().map_err(FormatError::from)?;
                if !progress(tensor.data.len() as u64) {
                    return Err(QuantizeError::Stopped);
                }
                continue;
            }
            let importance = self.importance.as_ref().and_then(|importance| importance.of(&planned.name));
            let work = Encoding { tensor: &tensor, to: planned.to, importance };
            file.write(&work.run(self.threads, progress)?)?;
            tensor.data.check().map_err(FormatError::from)?;
        }
        // A file of many small tensors may be done before anyone looked.
        if !progress(0) {
            return Err(QuantizeError::Stopped);
        }
        Ok(file.finish()?)
    }
}

/// A tensor on its way to another type.
struct Encoding<'a> {
    tensor: &'a Tensor,
    to: DType,
    /// For each column, of each matrix of a stack.
    importance: Option<&'a [f32]>,
}

/// Some rows, as they are and as they shall be.
struct Rows<'a> {
    from: &'a [u8],
    to: &'a mut [u8],
    importance: Option<&'a [f32]>,
}

impl Encoding<'_> {
    fn fault(&self, error: QuantError) -> QuantizeError {
        QuantizeError::Quant { name: self.tensor.name.clone(), error }
    }

    fn run(
        &self,
        threads: NonZeroUsize,
        progress: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Vec<u8>, QuantizeError> {
        let Tensor { dtype, shape, data, .. } = self.tensor;
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let rows = if shape.len() < 2 { 1 } else { shape[shape.len() - 2] };
        let elements = self.tensor.elements();
        let unfit = |dtype: DType, found| QuantError::Length { dtype, elements, found, needed_bytes: 0 };
        let row = |dtype: DType| dtype.bytes_for(columns).ok_or_else(|| self.fault(unfit(dtype, columns)));
        let (row_from, row_to) = (row(*dtype)?, row(self.to)?);
        let mut out = vec![0; elements / columns * row_to];
        let step = (CHUNK / columns).max(1);
        let matrices = data.chunks(row_from * rows).zip(out.chunks_mut(row_to * rows)).enumerate();
        let pieces = matrices.flat_map(|(i, (from, to))| {
            // One importance serves all matrices of a stack, or each has its own.
            let importance = self.importance.map(|all| &all[i * columns % all.len()..][..columns]);
            let pieces = from.chunks(row_from * step).zip(to.chunks_mut(row_to * step));
            pieces.map(move |(from, to)| Rows { from, to, importance })
        });
        let queue = Mutex::new(pieces);
        let work = || -> Result<(), QuantizeError> {
            let mut values = vec![0.0; step * columns];
            loop {
                // A thread that panicked left nothing half done in the queue.
                let next = queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                let Some(piece) = next else { return Ok(()) };
                let read = piece.from.len() as u64;
                self.encode(piece, &mut values[..read as usize / row_from * columns])?;
                if !progress(read) {
                    return Err(QuantizeError::Stopped);
                }
            }
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.get()).map(|_| scope.spawn(work)).collect();
            let mut outcome = work();
            for other in others {
                let ended = other.join().unwrap_or(Err(QuantizeError::Stopped));
                outcome = outcome.and(ended);
            }
            outcome
        })?;
        Ok(out)
    }

    fn encode(&self, rows: Rows<'_>, values: &mut [f32]) -> Result<(), QuantizeError> {
        let Rows { from, to, importance } = rows;
        quant::dequantize(self.tensor.dtype, from, values).map_err(|error| self.fault(error))?;
        if self.to.is_quantized() && !values.iter().all(|v| v.is_finite()) {
            return Err(QuantizeError::NotFinite { name: self.tensor.name.clone(), dtype: self.to });
        }
        let done = match importance {
            Some(importance) => quant::quantize_by_importance(self.to, values, importance, to),
            None => quant::quantize(self.to, values, to),
        };
        done.map_err(|error| self.fault(error))
    }
}
