//! What a backend offers: it compiles a graph into a program, and a program runs steps.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::sample::argmax;
use crate::tensor::{TensorDevice, TensorError};
use crate::{DType, Graph, Op};

/// Tokens of one cache block. A sequence's cache is a table of blocks.
pub const BLOCK_TOKENS: usize = 32;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Short name as users give it: `cpu`.
    pub kind: &'static str,
    /// What it is, in words.
    pub name: String,
    /// Threads, or compute units.
    pub units: usize,
    /// Memory a program may use, where known.
    pub memory_bytes: Option<u64>,
}

/// What a backend can fail with, where the caller could not have known.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The device has no way to run this operation on these types.
    #[error("{device} cannot run `{op}`: {reason}")]
    Unsupported {
        /// The device's kind.
        device: &'static str,
        /// The operation's name.
        op: &'static str,
        /// What it would need.
        reason: String,
    },
    /// Memory could not be had.
    #[error("{device} has no room for {needed} bytes of {what}")]
    OutOfMemory {
        /// The device's kind.
        device: &'static str,
        /// What the memory was for.
        what: &'static str,
        /// Bytes asked for.
        needed: usize,
    },
    /// The device cannot be used on this machine.
    #[error("{device} is not available: {reason}")]
    Unavailable {
        /// The device's kind.
        device: &'static str,
        /// What is missing, and what would help.
        reason: String,
    },
    /// The device cannot follow a choice that was made for it: an option, or a variable of the environment.
    #[error("{device} cannot take `{setting}`: {reason}")]
    Setting {
        /// The device's kind.
        device: &'static str,
        /// The choice: `sdpa=plain`, `METALLIC_FORCE_SDPA_BACKEND=plain`.
        setting: String,
        /// Why not, and what there is.
        reason: String,
    },
    /// The step breaks the contract of [`Step`].
    #[error("the step is invalid: {0}")]
    Step(#[from] StepError),
    /// A kernel does not compile on this device.
    #[error("{device} cannot compile `{kernel}`: {reason}")]
    Compile {
        /// The device's kind.
        device: &'static str,
        /// The kernel, or its library.
        kernel: String,
        /// What the compiler said.
        reason: String,
    },
    /// Work on the device did not finish in time.
    #[error("{device} did not finish within {after:?}")]
    Timeout {
        /// The device's kind.
        device: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// An operation on tensors breaks its contract.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A tensor lies in the memory of another device.
    #[error("{operand} lies in the memory of another device than {device}")]
    ForeignMemory {
        /// The device's kind.
        device: &'static str,
        /// Which operand: `input 1`.
        operand: String,
    },
    /// Bytes outside a memory.
    #[error("bytes {start}..+{len} lie outside a memory of {found}")]
    Range {
        /// The first byte.
        start: usize,
        /// How many.
        len: usize,
        /// Bytes of the memory.
        found: usize,
    },
    /// Work on the device broke off.
    #[error("{device} failed while running: {reason}")]
    Failed {
        /// The device's kind.
        device: &'static str,
        /// What happened.
        reason: String,
    },
}

/// How a step breaks its contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// There is nothing to do.
    #[error("it has no tokens")]
    Empty,
    /// An id is not in the vocabulary.
    #[error("token {index} is {id}, the vocabulary ends at {vocab}")]
    TokenOutOfRange {
        /// Which token of the step.
        index: usize,
        /// Its id.
        id: u32,
        /// Ids in the vocabulary.
        vocab: usize,
    },
    /// Positions and tokens differ in number.
    #[error("it has {tokens} tokens and {positions} positions")]
    Positions {
        /// Number of tokens.
        tokens: usize,
        /// Number of positions.
        positions: usize,
    },
    /// The sequences do not cover the tokens one after another.
    #[error(
        "sequence {sequence} covers tokens {start}..{end}, it should begin at {expected} and not be empty"
    )]
    Coverage {
        /// Which sequence.
        sequence: usize,
        /// Its first token.
        start: usize,
        /// Its end.
        end: usize,
        /// Where it should begin.
        expected: usize,
    },
    /// The block table is too short for the tokens.
    #[error("sequence {sequence} has {blocks} cache blocks, {needed} are needed")]
    Blocks {
        /// Which sequence.
        sequence: usize,
        /// Blocks in its table.
        blocks: usize,
        /// Blocks its tokens need.
        needed: usize,
    },
    /// A block was never reserved.
    #[error("sequence {sequence} uses cache block {block}, {reserved} are reserved")]
    BlockOutOfRange {
        /// Which sequence.
        sequence: usize,
        /// The block.
        block: u32,
        /// Blocks reserved so far.
        reserved: usize,
    },
    /// A result was asked for a token that is not there.
    #[error("output {index} asks for token {row} of {tokens}")]
    OutputOutOfRange {
        /// Which output.
        index: usize,
        /// The token it names.
        row: u32,
        /// Tokens in the step.
        tokens: usize,
    },
}

/// The tokens one sequence brings to a step.
#[derive(Clone, Debug)]
pub struct SequenceSpan<'a> {
    /// Its tokens in the step.
    pub tokens: Range<usize>,
    /// Tokens of it that are in the cache already.
    pub past: usize,
    /// Its cache blocks: position `p` lies in block `p / BLOCK_TOKENS`.
    pub blocks: &'a [u32],
}

impl SequenceSpan<'_> {
    /// Tokens in the cache once the step has run.
    pub fn kv_len(&self) -> usize {
        // A past beyond all bounds stays there, so that `Step::validate` sees it.
        self.past.saturating_add(self.tokens.len())
    }

    /// The same span so many steps later.
    fn ahead(&self, steps: usize) -> Self {
        SequenceSpan { past: self.past.saturating_add(steps), ..self.clone() }
    }
}

/// What one step computes: tokens of several sequences, one after another.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Token ids, all sequences one after another.
    pub tokens: &'a [u32],
    /// Position of each token, as rotary embeddings see it.
    pub positions: &'a [u32],
    /// Which tokens belong to which sequence; they cover all tokens in order.
    pub sequences: &'a [SequenceSpan<'a>],
    /// Tokens (by index in the step) whose result is wanted.
    pub outputs: &'a [u32],
}

impl Step<'_> {
    /// Checks everything a backend relies on.
    pub fn validate(&self, vocab: usize, reserved_blocks: usize) -> Result<(), StepError> {
        if self.tokens.is_empty() {
            return Err(StepError::Empty);
        }
        if let Some((index, id)) = self.tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
            return Err(StepError::TokenOutOfRange { index, id: *id, vocab });
        }
        if self.positions.len() != self.tokens.len() {
            return Err(StepError::Positions { tokens: self.tokens.len(), positions: self.positions.len() });
        }
        let mut expected = 0;
        for (sequence, span) in self.sequences.iter().enumerate() {
            let Range { start, end } = span.tokens;
            if start != expected || end <= start || end > self.tokens.len() {
                return Err(StepError::Coverage { sequence, start, end, expected });
            }
            expected = end;
            let needed = span.kv_len().div_ceil(BLOCK_TOKENS);
            if span.blocks.len() < needed {
                return Err(StepError::Blocks { sequence, blocks: span.blocks.len(), needed });
            }
            if let Some(block) = span.blocks[..needed].iter().find(|b| **b as usize >= reserved_blocks) {
                return Err(StepError::BlockOutOfRange {
                    sequence,
                    block: *block,
                    reserved: reserved_blocks,
                });
            }
        }
        if expected != self.tokens.len() {
            let (sequence, end) = (self.sequences.len(), self.tokens.len());
            return Err(StepError::Coverage { sequence, start: end, end, expected });
        }
        let tokens = self.tokens.len();
        match self.outputs.iter().enumerate().find(|(_, row)| **row as usize >= tokens) {
            Some((index, row)) => Err(StepError::OutputOutOfRange { index, row: *row, tokens }),
            None => Ok(()),
        }
    }

    /// What `then` makes of the step that comes so many steps later; its tokens are still these.
    pub fn ahead<R>(&self, steps: usize, then: impl FnOnce(&Step<'_>) -> R) -> R {
        let positions: Vec<u32> = self.positions.iter().map(|p| p.saturating_add(steps as u32)).collect();
        let sequences: Vec<SequenceSpan<'_>> = self.sequences.iter().map(|s| s.ahead(steps)).collect();
        then(&Step { positions: &positions, sequences: &sequences, ..self.clone() })
    }
}

/// The cache of keys and values a graph asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers with a cache of their own.
    pub layers: usize,
    /// Key/value heads of a layer.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// How elements are stored: `F32`, `F16`, `BF16` or `Q8_0`.
    pub dtype: DType,
}

impl KvLayout {
    /// Whether `dtype` can hold keys and values of this head size.
    pub fn supports(dtype: DType, head_dim: usize) -> bool {
        matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0)
            && head_dim.is_multiple_of(dtype.block_len())
    }

    /// Refuses a graph whose operations write or read a cache of another shape, or a layer that is not there.
    pub fn check(&self, device: &'static str, graph: &Graph) -> Result<(), BackendError> {
        let KvLayout { layers, kv_heads, head_dim, .. } = *self;
        for node in graph.nodes() {
            let (layer, found) = match node.op {
                Op::KvWrite { layer } => {
                    let cols = node.inputs.first().map_or(0, |id| graph.node(*id).ty.shape.cols());
                    (layer, (cols == kv_heads * head_dim).then_some((kv_heads, head_dim)))
                }
                Op::Attention(a) => (a.layer, Some((a.kv_heads, a.head_dim))),
                Op::Qkv(qkv) => (qkv.layer, Some((qkv.kv_heads, qkv.rope.head_dim))),
                Op::Tokens
                | Op::Positions
                | Op::OutputRows
                | Op::Weight(_)
                | Op::Embed
                | Op::SelectRows
                | Op::Slice { .. }
                | Op::Unary(_)
                | Op::Binary(_)
                | Op::Scale(_)
                | Op::Softcap(_)
                | Op::RmsNorm { .. }
                | Op::Softmax
                | Op::Linear
                | Op::Rope(_)
                | Op::Project(_)
                | Op::GatedProject { .. } => continue,
            };
            if layer >= layers || found != Some((kv_heads, head_dim)) {
                return Err(BackendError::Unsupported {
                    device,
                    op: node.op.name(),
                    reason: format!(
                        "layer {layer} does not fit a cache of {layers} layers with {kv_heads} heads of {head_dim}"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Bytes of one head's row: a key or a value of one token.
    pub fn row_bytes(&self) -> usize {
        self.head_dim / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// Bytes of one token: keys and values of all heads and layers.
    pub fn token_bytes(&self) -> usize {
        2 * self.layers * self.kv_heads * self.row_bytes()
    }

    /// Bytes of one block of [`BLOCK_TOKENS`] tokens, all layers.
    pub fn block_bytes(&self) -> usize {
        BLOCK_TOKENS * self.token_bytes()
    }
}

/// What one run cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunStats {
    /// Operations carried out on the device.
    pub dispatches: u64,
    /// Times work was handed to the device.
    pub submissions: u64,
    /// Buffers the device had to allocate.
    pub allocations: u64,
    /// Bytes of intermediates in use.
    pub arena_bytes: u64,
    /// Bytes of weights and cache read.
    pub bytes_read: u64,
    /// Bytes written to the cache and to results.
    pub bytes_written: u64,
    /// Kernels that were ready when they were asked for.
    pub cache_hits: u64,
    /// Kernels that had to be made.
    pub cache_misses: u64,
    /// Time by operation name; empty unless profiling is on.
    pub time_by_op: Vec<(&'static str, Duration)>,
    /// Wall time of the run.
    pub time: Duration,
    /// Time the device itself was busy, where it tells.
    pub device_time: Duration,
}

impl RunStats {
    /// Adds another run's figures to these.
    pub fn add(&mut self, other: &RunStats) {
        self.dispatches += other.dispatches;
        self.submissions += other.submissions;
        self.allocations += other.allocations;
        self.arena_bytes = self.arena_bytes.max(other.arena_bytes);
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.cache_hits += other.cache_hits;
        self.cache_misses += other.cache_misses;
        self.time += other.time;
        self.device_time += other.device_time;
        for (op, time) in &other.time_by_op {
            self.add_time(op, *time);
        }
    }

    /// Adds time of an operation.
    pub fn add_time(&mut self, op: &'static str, time: Duration) {
        match self.time_by_op.iter_mut().find(|(name, _)| *name == op) {
            Some((_, sum)) => *sum += time,
            None => self.time_by_op.push((op, time)),
        }
    }
}

/// A device that can run graphs.
pub trait Backend: Send + Sync {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Makes a program of a graph: weights are taken over, memory is laid out. `kv` describes the cache it writes and reads.
    fn compile(&self, graph: &Graph, kv: KvLayout) -> Result<Box<dyn Program>, BackendError>;

    /// Carries out single operations on tensors, on the same device.
    fn tensors(&self) -> Arc<dyn TensorDevice>;
}

/// A graph made ready for a device, with the cache it reads and writes.
pub trait Program: Send {
    /// Makes room for at least `blocks` cache blocks; existing contents stay.
    fn reserve_blocks(&mut self, blocks: usize) -> Result<(), BackendError>;

    /// Blocks reserved so far.
    fn reserved_blocks(&self) -> usize;

    /// Runs one step.
    fn run(&mut self, step: &Step<'_>) -> Result<RunStats, BackendError>;

    /// How many steps the device likes to be given at once where each is fed by the one before; 1: no more than one.
    fn steps_ahead(&self) -> usize {
        1
    }

    /// Runs several steps, each fed with the best tokens of the one before: the largest number of each row of the first
    /// output, the first of equals. `step` is the first of them; every sequence brings one token, whose result is
    /// wanted, and blocks for all steps. Appends the chosen tokens to `chosen`, a row of one per sequence for each step.
    fn run_ahead(
        &mut self,
        step: &Step<'_>,
        steps: usize,
        chosen: &mut Vec<u32>,
    ) -> Result<RunStats, BackendError> {
        run_ahead_on_host(self, step, steps, chosen)
    }

    /// The graph's `index`-th output after the last run, row-major; empty before the first run or past the last output.
    fn output(&self, index: usize) -> &[f32];

    /// Bytes of memory held: weights as stored on the device, intermediates, cache.
    fn memory(&self) -> ProgramMemory;
}

/// [`Program::run_ahead`] one step at a time, each fed by the host.
pub fn run_ahead_on_host<P: Program + ?Sized>(
    program: &mut P,
    step: &Step<'_>,
    steps: usize,
    chosen: &mut Vec<u32>,
) -> Result<RunStats, BackendError> {
    let mut total = RunStats::default();
    let mut tokens = step.tokens.to_vec();
    for ahead in 0..steps {
        let next = Step { tokens: &tokens, ..step.clone() };
        total.add(&next.ahead(ahead, |next| program.run(next))?);
        let logits = program.output(0);
        let rows = logits.chunks_exact((logits.len() / step.outputs.len().max(1)).max(1));
        tokens = rows.map(|row| argmax(row).unwrap_or(0)).collect();
        chosen.extend_from_slice(&tokens);
    }
    Ok(total)
}

/// Bytes a program holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramMemory {
    /// Weights in the device's own layout (mapped file pages not counted).
    pub weights: usize,
    /// Intermediates.
    pub arena: usize,
    /// Keys and values.
    pub kv: usize,
}
