//! Values of a run in a folder, to compare with on another machine.
//!
//! `diff.json` says what was run and where each value lies in `values.bin`: for each step the results of operations by node, then keys and
//! values by layer state, then the logits; little-endian, floats in the type the file names, indices in 32 bits. Each step has a checksum.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use half::f16;
use metallic_core::{DType, Graph, KvRows, NodeId, Sizes, StateId, Tapped};
use serde::{Deserialize, Serialize};

use super::lineage::Lineage;
use super::record::{Fed, Recorder, StepTaps};
use super::{DiffError, OpenWay, Run, Way, WayError};
use crate::model::Model;

/// The version of the format. It goes up where a field changes its meaning or goes away.
pub const SAVED_VERSION: u32 = 1;

const INDEX: &str = "diff.json";
const VALUES: &str = "values.bin";
/// An index is small beside its values; what is larger is none of ours.
const MOST_INDEX: u64 = 256 << 20;

/// What is wrong with a folder of saved values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum SavedError {
    #[error("`{path}`: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("`{path}` is no run of `metallic diff --save`: {reason}")]
    Format { path: PathBuf, reason: String },
    #[error("`{path}` is of version {found}; this program reads version {SAVED_VERSION}")]
    Version { path: PathBuf, found: u64 },
    #[error("`{path}` is damaged: step {step} has checksum {found:016x}, {needed:016x} was saved")]
    Checksum { path: PathBuf, step: usize, found: u64, needed: u64 },
    #[error("`{path}` is damaged: it has {found} bytes, {needed} were saved")]
    Length { path: PathBuf, found: u64, needed: u64 },
    #[error("the run was saved with `{found}` (weights {of:016x}), this is `{needed}` (weights {with:016x})")]
    Model { found: String, of: u64, needed: String, with: u64 },
    #[error("the run was saved with the tokens {found:?}, not with {asked:?}")]
    Tokens { found: Vec<u32>, asked: Vec<u32> },
    #[error("the run was saved with {found} operations, the model has {needed} when it is computed so")]
    Nodes { found: usize, needed: usize },
    #[error("`{path}` is there already and not empty")]
    Exists { path: PathBuf },
    #[error("{found:e}, a result of `{op}`, is more than a half holds; save as f32")]
    Half { op: String, found: f32 },
    #[error("it was saved as: {0}")]
    Way(#[from] WayError),
}

/// How values are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaveOptions {
    /// `F16` or `F32`.
    pub dtype: DType,
}

impl SaveOptions {
    /// As halves: half the size, and rounding of the file is allowed for.
    pub const HALF: SaveOptions = SaveOptions { dtype: DType::F16 };
    /// As they are.
    pub const FULL: SaveOptions = SaveOptions { dtype: DType::F32 };
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    format: String,
    version: u32,
    /// The release that saved.
    metallic: String,
    /// The model's file name, for people, and a checksum of its weights.
    model: String,
    weights: String,
    way: String,
    /// The device in words, for people.
    device: String,
    fused: bool,
    dtype: String,
    nodes: usize,
    steps: Vec<IndexStep>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexStep {
    tokens: Vec<u32>,
    offset: u64,
    bytes: u64,
    checksum: String,
    /// Node, elements, whether they are indices.
    values: Vec<(usize, usize, bool)>,
    /// State, elements of keys and of values.
    kept: Vec<(usize, usize, usize)>,
    logits: usize,
}

/// FNV-1a over words of eight bytes: it tells damage, not forgery.
#[derive(Clone, Copy)]
struct Checksum(u64);

impl Checksum {
    fn new() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let rest = rest.iter().map(|byte| u64::from(*byte));
        for word in words.iter().map(|word| u64::from_le_bytes(*word)).chain(rest) {
            self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        self.0 ^= bytes.len() as u64;
    }
}

/// A checksum of a model's weights, their names and types.
fn fingerprint(graph: &Graph) -> u64 {
    let mut sum = Checksum::new();
    for weight in graph.weights() {
        sum.add(weight.name.as_bytes());
        sum.add(weight.ty.to_string().as_bytes());
        sum.add(&weight.data);
    }
    sum.0
}

fn model_name(model: &Model) -> String {
    model.path().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Bytes that saving a run takes.
pub fn saved_bytes(model: &Model, way: &Way, run: &Run, options: SaveOptions) -> Result<u64, DiffError> {
    run.check(model)?;
    let fused = way.compile.fuse && way.device.resolve() != crate::Device::Reference;
    let graph = Lineage::new(model.graph(), way.compile, fused)?.carried.graph;
    let width = options.dtype.block_bytes() as u64;
    let of_step = |tokens: usize| {
        let sizes = Sizes { tokens, outputs: 1 };
        let computed = graph.nodes().iter().filter(|node| !node.op.is_source());
        let of_node = |node: &metallic_core::Node| {
            let indices = matches!(node.ty.dtype, DType::U32 | DType::I32);
            node.ty.shape.elements(sizes) as u64 * if indices { 4 } else { width }
        };
        let layout = model.states(way.compile.kv)?;
        let row: usize = layout.kv_states().map(|kv| kv.kv_heads * (kv.key_dim + kv.value_dim)).sum();
        let logits = model.config().vocab as u64 * width;
        Ok::<u64, DiffError>(computed.map(of_node).sum::<u64>() + (row * tokens) as u64 * width + logits)
    };
    Ok(of_step(run.tokens.len())? + run.steps as u64 * of_step(1)?)
}

/// Runs a way and saves what every operation makes; the bytes written.
pub fn save(
    way: &OpenWay,
    model: &Model,
    run: &Run,
    options: SaveOptions,
    folder: &Path,
) -> Result<u64, DiffError> {
    let capacity = run.check(model)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| SavedError::Io { path, error }
    };
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(SavedError::Exists { path: folder.to_owned() }.into());
    }
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let mut recorder = Recorder::new(&way.side(model), capacity)?;
    let path = folder.join(VALUES);
    let mut file = BufWriter::new(File::create(&path).map_err(failed(&path))?);
    let (mut steps, mut offset) = (Vec::new(), 0);
    let mut fed = Fed { tokens: run.tokens.clone(), past: 0 };
    for _ in 0..=run.steps {
        let taps = recorder.run(&fed)?;
        let (bytes, mut step) = encode(&taps, &recorder.lineage.carried.graph, options.dtype)?;
        let mut sum = Checksum::new();
        sum.add(&bytes);
        (step.tokens, step.offset) = (fed.tokens.clone(), offset);
        (step.bytes, step.checksum) = (bytes.len() as u64, format!("{:016x}", sum.0));
        file.write_all(&bytes).map_err(failed(&path))?;
        offset += step.bytes;
        steps.push(step);
        fed = Fed { past: fed.past + fed.tokens.len(), tokens: vec![super::best(&taps.logits)] };
    }
    file.flush().map_err(failed(&path))?;
    let resolved = Way { device: way.way.device.resolve(), ..way.way.clone() };
    let index = Index {
        format: "metallic-diff".to_owned(),
        version: SAVED_VERSION,
        metallic: env!("CARGO_PKG_VERSION").to_owned(),
        model: model_name(model),
        weights: format!("{:016x}", fingerprint(model.graph())),
        way: resolved.to_string(),
        device: way.backend.info().name.clone(),
        fused: recorder.lineage.is_fused(),
        dtype: options.dtype.to_string(),
        nodes: recorder.lineage.carried.graph.nodes().len(),
        steps,
    };
    // Last, so that a run that broke off is no run.
    let path = folder.join(INDEX);
    let text = serde_json::to_string(&index).map_err(|error| failed(&path)(error.into()))?;
    fs::write(&path, text + "\n").map_err(failed(&path))?;
    Ok(offset)
}

/// The bytes of a step, and where each value lies in them.
fn encode(taps: &StepTaps, graph: &Graph, dtype: DType) -> Result<(Vec<u8>, IndexStep), SavedError> {
    let mut bytes = Vec::new();
    let mut put = |op: &str, values: &[f32]| -> Result<(), SavedError> {
        for value in values {
            if dtype == DType::F32 {
                bytes.extend(value.to_le_bytes());
                continue;
            }
            let half = f16::from_f32(*value);
            if half.is_infinite() && value.is_finite() {
                return Err(SavedError::Half { op: op.to_owned(), found: *value });
            }
            bytes.extend(half.to_le_bytes());
        }
        Ok(())
    };
    let (mut values, mut kept, mut words) = (Vec::new(), Vec::new(), Vec::new());
    for (node, value) in taps.values.iter().enumerate() {
        match value {
            Some(Tapped::Floats(floats)) => {
                put(graph.node(NodeId(node)).op.name(), floats)?;
                values.push((node, floats.len(), false));
            }
            Some(Tapped::Words(of)) => {
                values.push((node, of.len(), true));
                words.extend_from_slice(of);
            }
            None => {}
        }
    }
    for (state, rows) in taps.kept.iter().enumerate() {
        let Some(KvRows { keys, values }) = rows else { continue };
        put("keys", keys)?;
        put("values", values)?;
        kept.push((state, keys.len(), values.len()));
    }
    put("logits", &taps.logits)?;
    // Indices stand behind all numbers.
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    let (tokens, checksum, logits) = (Vec::new(), String::new(), taps.logits.len());
    Ok((bytes, IndexStep { tokens, offset: 0, bytes: 0, checksum, values, kept, logits }))
}

/// A run that was saved.
#[derive(Debug)]
pub struct SavedRun {
    path: PathBuf,
    file: File,
    index: Index,
    dtype: DType,
    tokens: Vec<Vec<u32>>,
}

impl SavedRun {
    /// Opens a folder and checks that it is whole.
    pub fn open(folder: &Path) -> Result<SavedRun, SavedError> {
        let path = folder.join(INDEX);
        let io = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| SavedError::Io { path, error }
        };
        let format = |reason: String| SavedError::Format { path: path.clone(), reason };
        let bytes = fs::metadata(&path).map_err(io(&path))?.len();
        if bytes > MOST_INDEX {
            return Err(format(format!("it has {bytes} bytes, {MOST_INDEX} at most are allowed")));
        }
        let text = fs::read_to_string(&path).map_err(io(&path))?;
        let any: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| format(error.to_string()))?;
        if any.get("format").and_then(|format| format.as_str()) != Some("metallic-diff") {
            return Err(format("it has another format".to_owned()));
        }
        let version = any.get("version").and_then(serde_json::Value::as_u64);
        match version {
            Some(found) if found == u64::from(SAVED_VERSION) => {}
            Some(found) => return Err(SavedError::Version { path, found }),
            None => return Err(format("it has no version".to_owned())),
        }
        let index: Index = serde_json::from_value(any).map_err(|error| format(error.to_string()))?;
        let dtype = match &*index.dtype {
            "F16" => DType::F16,
            "F32" => DType::F32,
            other => return Err(format(format!("values of type `{other}`, F16 or F32 are known"))),
        };
        let path = folder.join(VALUES);
        let file = File::open(&path).map_err(io(&path))?;
        let found = file.metadata().map_err(io(&path))?.len();
        let needed = index.steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.bytes));
        if found != needed {
            return Err(SavedError::Length { path, found, needed });
        }
        let tokens = index.steps.iter().map(|step| step.tokens.clone()).collect();
        Ok(SavedRun { path, file, index, dtype, tokens })
    }

    /// What it is called in reports.
    pub fn name(&self) -> String {
        format!("{} (saved on {})", self.index.way, self.index.device)
    }

    /// The way that was run.
    pub fn way(&self) -> Result<Way, SavedError> {
        Ok(self.index.way.parse::<Way>()?)
    }

    /// The tokens of each step.
    pub fn steps(&self) -> &[Vec<u32>] {
        &self.tokens
    }

    /// The type of its values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn is_fused(&self) -> bool {
        self.index.fused
    }

    /// Refuses another prompt than the one that was run.
    pub fn check_tokens(&self, asked: &[u32]) -> Result<(), SavedError> {
        let found = self.tokens.first().cloned().unwrap_or_default();
        if found == asked { Ok(()) } else { Err(SavedError::Tokens { found, asked: asked.to_vec() }) }
    }

    pub(crate) fn check_model(&self, model: &Model) -> Result<(), SavedError> {
        let with = fingerprint(model.graph());
        let of = u64::from_str_radix(&self.index.weights, 16).unwrap_or(0);
        if of == with {
            return Ok(());
        }
        Err(SavedError::Model { found: self.index.model.clone(), of, needed: model_name(model), with })
    }

    pub(crate) fn check_nodes(&self, needed: usize) -> Result<(), SavedError> {
        let found = self.index.nodes;
        if found == needed { Ok(()) } else { Err(SavedError::Nodes { found, needed }) }
    }

    /// Reads a step and checks it.
    pub(crate) fn step(&mut self, index: usize) -> Result<StepTaps, SavedError> {
        let bytes = self.read(index)?;
        let (path, nodes) = (self.path.clone(), self.index.nodes);
        let step = &self.index.steps[index];
        let short =
            || SavedError::Format { path: path.clone(), reason: format!("step {index} has other lengths") };
        let floats = step.values.iter().filter(|(_, _, indices)| !indices).map(|(_, len, _)| *len);
        let kept = step.kept.iter().map(|(_, keys, values)| keys.saturating_add(*values));
        let numbers = floats.chain(kept).chain([step.logits]).fold(0usize, usize::saturating_add);
        let split = numbers.checked_mul(self.dtype.block_bytes()).filter(|end| *end <= bytes.len());
        let (numbers, words) = bytes.split_at(split.ok_or_else(short)?);
        let mut numbers = Numbers { bytes: numbers, dtype: self.dtype };
        let mut words = words.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let mut taps = StepTaps { values: vec![None; nodes], ..StepTaps::default() };
        for &(node, len, indices) in &step.values {
            let place = taps.values.get_mut(node).ok_or_else(short)?;
            *place = Some(if indices {
                let of: Vec<u32> = words.by_ref().take(len).collect();
                Some(Tapped::Words(of)).filter(|of| of.words().len() == len).ok_or_else(short)?
            } else {
                Tapped::Floats(numbers.take(len).ok_or_else(short)?)
            });
        }
        for &(state, keys, values) in &step.kept {
            if state >= nodes {
                return Err(short());
            }
            if taps.kept.len() <= state {
                taps.kept.resize(state + 1, None);
            }
            let (keys, values) = (numbers.take(keys), numbers.take(values));
            let (keys, values) = keys.zip(values).ok_or_else(short)?;
            taps.kept[StateId(state).0] = Some(KvRows { keys, values });
        }
        taps.logits = numbers.take(step.logits).ok_or_else(short)?;
        Ok(taps)
    }

    /// The bytes of a step, as they were saved.
    fn read(&mut self, index: usize) -> Result<Vec<u8>, SavedError> {
        let step = self.index.steps.get(index);
        let lost = |reason: &str| SavedError::Format { path: self.path.clone(), reason: reason.to_owned() };
        let step = step.ok_or_else(|| lost("it has fewer steps than were asked for"))?;
        let len = self.file.metadata().map_or(0, |about| about.len());
        if step.offset.checked_add(step.bytes).is_none_or(|end| end > len) {
            return Err(lost("a step lies outside of its values"));
        }
        let mut bytes = vec![0; step.bytes as usize];
        let read =
            self.file.seek(SeekFrom::Start(step.offset)).and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|error| SavedError::Io { path: self.path.clone(), error })?;
        let mut sum = Checksum::new();
        sum.add(&bytes);
        let needed = u64::from_str_radix(&step.checksum, 16).map_err(|_| lost("a checksum is none"))?;
        if sum.0 != needed {
            return Err(SavedError::Checksum { path: self.path.clone(), step: index, found: sum.0, needed });
        }
        Ok(bytes)
    }
}

/// Numbers that are taken from the front.
struct Numbers<'a> {
    bytes: &'a [u8],
    dtype: DType,
}

impl Numbers<'_> {
    fn take(&mut self, len: usize) -> Option<Vec<f32>> {
        let (front, rest) = self.bytes.split_at_checked(len.checked_mul(self.dtype.block_bytes())?)?;
        self.bytes = rest;
        Some(match self.dtype {
            DType::F16 => front.as_chunks().0.iter().map(|half| f16::from_le_bytes(*half).to_f32()).collect(),
            _ => front.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect(),
        })
    }
}
