//! What a computation is: element types, graphs of operations, their meaning, and the traits a backend implements.
#![forbid(unsafe_code)]

mod backend;
mod bytes;
mod dtype;
mod graph;
mod op;
pub mod quant;
pub mod reference;
pub mod rewrite;
pub mod sample;
mod schedule;
mod shape;
pub mod tensor;
mod typing;

pub use backend::{
    BLOCK_TOKENS, Backend, BackendError, DeviceInfo, KvLayout, Program, ProgramMemory, RunStats,
    SequenceSpan, Step, StepError, run_ahead_on_host,
};
pub use bytes::Bytes;
pub use dtype::{DType, UnknownDType};
pub use graph::{Graph, GraphBuilder, GraphError, Node, NodeId, Var, Weight};
pub use op::{
    Attention, Binary, Op, Project, ProjectInputs, Qkv, Rope, RopePairs, Unary, WeightId, WeightUse,
};
pub use schedule::Schedule;
pub use shape::{Dim, MAX_RANK, Shape, Sizes, TensorType};
pub use typing::TypeError;
