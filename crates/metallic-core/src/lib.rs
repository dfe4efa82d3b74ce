//! What a computation is: element types, graphs of operations, their meaning, and the traits a backend implements.
#![forbid(unsafe_code)]
#![allow(clippy::unnested_or_patterns, reason = "lists of operations stand in one place each")]

mod backend;
mod bytes;
mod dtype;
mod graph;
mod holdings;
mod op;
mod peaks;
pub mod plan;
pub mod quant;
pub mod reference;
pub mod rewrite;
pub mod sample;
mod schedule;
mod setters;
mod shape;
mod spec;
mod state;
mod stats;
mod step;
mod taps;
pub mod tensor;
mod typing;

pub use backend::{Backend, BackendError, CompileOptions, DeviceInfo, Program, ProgramMemory};
pub use bytes::{ByteSource, Bytes, BytesLost};
pub use dtype::{DType, UnknownDType};
pub use graph::{Graph, GraphBuilder, GraphError, Node, NodeId, Var, Weight};
pub use holdings::{CacheUse, PoolUse};
pub use op::{Binary, Op, OpClass, Unary, WeightId, WeightUse};
pub use peaks::{Peaks, best_rate};
pub use schedule::Schedule;
pub use shape::{Dim, MAX_RANK, Shape, Sizes, TensorType};
pub use spec::{Attention, Mask, Project, ProjectInputs, Qkv, Recurrence, Rope, RopePairs, Sdpa, StateId};
pub use state::{Blocks, KvState, State, StateLayout};
pub use stats::{KernelCount, OpCost, RunStats};
pub use step::{BLOCK_TOKENS, Fed, Needed, SequenceSpan, Step, StepError, StepLimits, Wanted};
pub use taps::{Aside, KvRows, Tapped, Taps};
pub use typing::{TypeError, infer};
