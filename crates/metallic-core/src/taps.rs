//! What every operation of a program has made, for comparisons.

use std::ops::Range;

use crate::{BackendError, Graph, NodeId, StateId};

/// The elements of a value, row-major; floats as the numbers their type holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Tapped {
    /// Floats of any type.
    Floats(Vec<f32>),
    /// Indices.
    Words(Vec<u32>),
}

impl Tapped {
    /// The floats; none where these are indices.
    pub fn floats(&self) -> &[f32] {
        if let Tapped::Floats(values) = self { values } else { &[] }
    }

    /// The indices; none where these are floats.
    pub fn words(&self) -> &[u32] {
        if let Tapped::Words(values) = self { values } else { &[] }
    }
}

/// Keys and values as they lie in the cache, decoded; a row for each position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvRows {
    /// `[positions, kv_heads * key_dim]`
    pub keys: Vec<f32>,
    /// `[positions, kv_heads * value_dim]`
    pub values: Vec<f32>,
}

/// What became of who has made a wrong result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aside {
    /// The operation has no other kernels.
    Alone,
    /// It serves no more: others do from the next step on.
    Done {
        /// Who, as flags name it: `sdpa=flash`.
        provider: String,
    },
    /// It goes on serving.
    Kept {
        /// Who.
        provider: String,
        /// Why.
        reason: String,
    },
}

/// What a program made with [`crate::CompileOptions::taps`] shows of the step last finished. No step may be under way.
pub trait Taps {
    /// The graph as it is carried out: its activations typed, fused where the backend fuses.
    fn graph(&self) -> &Graph;

    /// What a node has made; `None` where the step did not compute it, for sources and for receipts.
    fn value(&mut self, node: NodeId) -> Result<Option<Tapped>, BackendError>;

    /// What the cache of a layer holds of these positions of a sequence with this block table.
    fn kept(
        &mut self,
        state: StateId,
        table: &[u32],
        positions: Range<usize>,
    ) -> Result<KvRows, BackendError>;

    /// Lets who made a node of the step last finished serve no more, as its result is wrong, where another can do the same.
    fn set_aside(&mut self, _node: NodeId, _reason: &str) -> Result<Aside, BackendError> {
        Ok(Aside::Alone)
    }
}
