//! The kinds of events.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A name: of an operation, a kernel, a device.
pub type Name = Cow<'static, str>;

/// What happened. In JSON the kind stands in `kind`, in small letters with underscores, beside the fields of its struct. Times are seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A process began to tell.
    Start(Start),
    /// A model was loaded.
    Load(Load),
    /// A request went on.
    Request(Request),
    /// A step of the engine is done.
    Step(Step),
    /// What the operations of a step took.
    Ops(Ops),
    /// Who carries out an operation, and why.
    Provider(ProviderChoice),
    /// A kernel was made ready.
    Compile(Compile),
    /// What a cache holds and has done so far.
    Cache(CacheSummary),
    /// What a pool of memory holds and has done so far.
    Pool(PoolSummary),
    /// Who waits and runs, and what is in the cache of keys and values.
    Queue(Queue),
    /// A sequence was set aside for lack of cache.
    Preemption(Preemption),
    /// Memory by owner.
    Memory(Memory),
    /// Something failed.
    Fault(Fault),
    /// Something degraded: it is slower or other than was asked for.
    Warning(Warning),
    /// An operation was computed again by the reference.
    Verify(Verify),
    /// Whoever reads was too slow for some records.
    Lost(Lost),
    /// The process ends in order.
    End(End),
}

impl Event {
    /// Its kind, as in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Event::Start(_) => "start",
            Event::Load(_) => "load",
            Event::Request(_) => "request",
            Event::Step(_) => "step",
            Event::Ops(_) => "ops",
            Event::Provider(_) => "provider",
            Event::Compile(_) => "compile",
            Event::Cache(_) => "cache",
            Event::Pool(_) => "pool",
            Event::Queue(_) => "queue",
            Event::Preemption(_) => "preemption",
            Event::Memory(_) => "memory",
            Event::Fault(_) => "fault",
            Event::Warning(_) => "warning",
            Event::Verify(_) => "verify",
            Event::Lost(_) => "lost",
            Event::End(_) => "end",
        }
    }
}

/// A process began to tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The program: `metallic run`.
    pub program: Name,
    /// Its version.
    pub version: Name,
    /// Its process.
    pub pid: u32,
    /// Seconds since 1970 at `t` of this record, so that logs can be brought together.
    pub unix: f64,
}

/// A model was loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Its file name, without folders.
    pub model: String,
    /// Its family.
    pub family: Name,
    /// Layers.
    pub layers: u32,
    /// What most of its weights are stored as.
    pub weights: Name,
    /// Where it runs: the kind of device.
    pub device: Name,
    /// The device in words.
    pub device_name: String,
    /// How keys and values are stored.
    pub kv_type: Name,
    /// Most tokens of a sequence.
    pub context: u64,
    /// All of loading.
    pub seconds: f64,
    /// Making the program: weights laid out, kernels compiled.
    pub compile_seconds: f64,
    /// What the device reads from memory in a second at best, in bytes, where that was measured.
    pub peak_bytes_per_second: Option<f64>,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It came.
    #[default]
    Queued,
    /// It runs, for the first time or again.
    Started,
    /// It has its first token.
    FirstToken,
    /// It is over.
    Ended,
}

/// A request went on. Figures are of the whole request so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Its number in this process.
    pub id: u64,
    /// How far it is.
    pub phase: Phase,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Those of them that were in the cache.
    pub cached_tokens: u64,
    /// Tokens of its answer.
    pub generated_tokens: u64,
    /// From when it came until it first ran.
    pub queued_seconds: f64,
    /// From when it came until its first token; 0 before that.
    pub ttft_seconds: f64,
    /// Tokens of the answer in a second, after the first; 0 before there are two.
    pub decode_tps: f64,
    /// Why it ended: `stop`, `length`, `cancelled`, `deadline`, `failed`; empty before.
    pub reason: Name,
}

/// A step of the engine is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its number.
    pub step: u64,
    /// When it was handed over, on the clock of records.
    pub begin: f64,
    /// Tokens computed.
    pub tokens: u64,
    /// Those among them that continue an answer: the others are of prompts.
    pub decode_tokens: u64,
    /// Sequences in it.
    pub sequences: u64,
    /// Rows whose result was wanted.
    pub outputs: u64,
    /// Whether the device chose the tokens.
    pub device_chooses: bool,
    /// From when it was handed over until its results were there.
    pub seconds: f64,
    /// Time the engine's thread was busy with it.
    pub host_seconds: f64,
    /// Time the device was busy, where it tells; else 0.
    pub device_seconds: f64,
    /// Time it was under way while the engine did something else.
    pub overlap_seconds: f64,
    /// Choosing tokens and streaming text after it.
    pub sample_seconds: f64,
    /// Operations handed to the device.
    pub dispatches: u64,
    /// Times work was handed over.
    pub submissions: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Multiplications with additions.
    pub multiply_adds: u64,
    /// Whether its plan had to be made.
    pub planned: bool,
}

/// What the operations of a step took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ops {
    /// Of which step.
    pub step: u64,
    /// When it was handed over, on the clock of records.
    pub begin: f64,
    /// Tokens computed in it.
    pub tokens: u64,
    /// In the order they ran.
    pub ops: Vec<OpTime>,
}

/// What one operation took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpTime {
    /// Its name.
    pub op: Name,
    /// Which weights it takes, without the layer; empty where none.
    pub part: Name,
    /// Its layer; absent outside of layers.
    pub layer: Option<u32>,
    /// Its kernel; empty where the device has no names for them.
    pub kernel: Name,
    /// Time.
    pub seconds: f64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Multiplications with additions.
    pub multiply_adds: u64,
}

/// Who carries out an operation, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProviderChoice {
    /// The operation.
    pub op: Name,
    /// Who carries it out.
    pub provider: Name,
    /// `default`, `override`, `environment` or `fallback`.
    pub why: Name,
    /// In whose place, where that is a fallback.
    pub instead_of: Option<Name>,
    /// What that one failed with.
    pub error: Option<String>,
}

/// Where a kernel came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompileSource {
    /// It was compiled.
    #[default]
    Compiled,
    /// It was found on disk.
    Disk,
}

/// A kernel was made ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compile {
    /// What: `library`, `pipeline`, `graph`, `ptx`.
    pub what: Name,
    /// Its name.
    pub name: String,
    /// Where it came from, as far as the engine knows.
    pub source: CompileSource,
    /// How long it took.
    pub seconds: f64,
    /// What it failed with.
    pub error: Option<String>,
}

/// What a cache holds and has done so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheSummary {
    /// Which: `libraries`, `pipelines`, `plans`, `graphs`, `prefixes`, …
    pub cache: Name,
    /// Entries now.
    pub entries: u64,
    /// Entries at most; absent where there is no limit.
    pub limit: Option<u64>,
    /// Times what was asked for was there.
    pub hits: u64,
    /// Times it was not.
    pub misses: u64,
    /// Entries that went.
    pub evictions: u64,
    /// Time spent on making entries.
    pub make_seconds: f64,
    /// Age of the oldest entry; absent where there is none, or it is not known.
    pub oldest_seconds: Option<f64>,
    /// Time since any entry was last used; absent where it is not known.
    pub idle_seconds: Option<f64>,
}

/// What a pool of memory holds and has done so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolSummary {
    /// Which.
    pub pool: Name,
    /// Bytes in use.
    pub live_bytes: u64,
    /// Bytes kept for the next request.
    pub idle_bytes: u64,
    /// Most bytes held at one time.
    pub peak_bytes: u64,
    /// Bytes that may be held.
    pub budget_bytes: Option<u64>,
    /// Buffers the device was asked for.
    pub allocations: u64,
    /// Requests served without asking.
    pub reuses: u64,
}

/// Who waits and runs, and what is in the cache of keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Requests that wait.
    pub waiting: u64,
    /// Sequences that run.
    pub running: u64,
    /// Blocks that running sequences hold.
    pub held_blocks: u64,
    /// Blocks kept because a prompt may begin with them.
    pub cached_blocks: u64,
    /// Blocks there is memory for.
    pub reserved_blocks: u64,
    /// Blocks at most.
    pub block_limit: u64,
    /// Sequences set aside so far.
    pub preemptions: u64,
    /// Tokens of prompts that were found in the cache so far.
    pub prefix_tokens: u64,
}

/// A sequence was set aside for lack of cache; it is computed again later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// The request.
    pub id: u64,
    /// Its tokens, which have to be computed again.
    pub tokens: u64,
}

/// Memory by owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Who holds how much.
    pub owners: Vec<Owned>,
    /// Bytes there may be; absent where that is not known.
    pub budget_bytes: Option<u64>,
}

/// What one owner holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// Who: `weights`, `arena`, `kv`, …
    pub owner: Name,
    /// Bytes.
    pub bytes: u64,
}

/// Something failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Where: `step`, `request`, `load`, `compile`.
    pub at: Name,
    /// What it was.
    pub error: String,
}

/// Something degraded: it is slower or other than was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// What: `provider`, `cache_type`, `copy`, `slow`, …
    pub about: Name,
    /// In words.
    pub text: String,
}

/// An operation was computed again by the reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verify {
    /// In which step.
    pub step: u64,
    /// The operation.
    pub op: Name,
    /// Its layer.
    pub layer: Option<u32>,
    /// The largest difference, relative to the largest number.
    pub error: f64,
    /// The difference that its types explain.
    pub tolerance: f64,
    /// Whether it is inside that.
    pub passed: bool,
}

/// Whoever reads was too slow for some records: they are not among those it gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// How many, since this was last told.
    pub records: u64,
}

/// The process ends in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Steps run.
    pub steps: u64,
    /// Records that could not be written.
    pub lost: u64,
}
