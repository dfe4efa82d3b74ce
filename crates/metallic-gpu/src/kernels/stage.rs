//! The launches of an operation, and what stands behind their arguments.

use super::gemm::Gemm;
use super::{Launch, MAX_ARGS};
use crate::graph::AttentionGraph;
use crate::step::StepCounts;

/// What a library of the device's maker may do in the place of a launch, with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A product.
    Product(Gemm),
    /// Attention as a graph.
    Graph(AttentionGraph),
}

/// What stands behind a kernel's argument in a program. The lowering turns slots into bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The node's input of this index: an activation, or a weight in the form the operation reads.
    Input(usize),
    /// The node's value.
    Output,
    /// Memory of this operation alone, by index into [`Stages::scratch`].
    Scratch(usize),
    /// A table of the step, see [`StepTable`].
    Step(StepTable),
    /// Tokens that the step before has chosen.
    Fed,
    /// Keys of the operation's state: `[blocks][kv_heads][BLOCK_TOKENS]` rows of a head.
    Keys,
    /// Values of the operation's state, laid out like the keys.
    Values,
    /// The operation's recurrent states: `F32 [slots, elements]`.
    Recurrent,
    /// As [`Slot::Input`], of the operation that alone takes this one's value, and which is done with it.
    NextInput(usize),
    /// That operation's value.
    NextOutput,
    /// The kernel's constants leave the argument unused.
    Unused,
}

impl Slot {
    pub(crate) const ROWS: Slot = Slot::Step(StepTable::Rows);
    pub(crate) const BLOCKS: Slot = Slot::Step(StepTable::Blocks);
}

/// What a step says, as the kernels see it. All elements are `uint`, but for those of `Adapters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepTable {
    /// Token ids: `[tokens]`.
    Tokens,
    /// Position of each token for rotary embeddings: `[tokens]`.
    Positions,
    /// Tokens whose result is wanted: `[outputs]`.
    Outputs,
    /// How tokens are chosen from their results, see [`metallic_core::sample`].
    Choices,
    /// How much of each adapter each token takes: `float [tokens, adapters]`.
    Adapters,
    /// For each token `(table, visible)`: where its sequence's block table begins in `Blocks`, and how many tokens of
    /// its sequence it may see, itself included; so it lies at `visible - 1`. `uint2 [tokens]`.
    Rows,
    /// Runs of at most [`TILE_TOKENS`] tokens of one sequence: `(first token, tokens, table, visible to the first)`.
    /// `uint4 [tiles]`.
    Tiles,
    /// For each sequence `(first token, tokens, recurrent state, 1 where it has no past)`. `uint4 [sequences]`.
    Sequences,
    /// Block tables of all sequences, one after another.
    Blocks,
    /// The same for layers with a window, where others have none.
    Near,
}

/// Every table, in the order they lie in.
pub(crate) const TABLES: &[StepTable] = &[
    StepTable::Tokens,
    StepTable::Positions,
    StepTable::Outputs,
    StepTable::Choices,
    StepTable::Adapters,
    StepTable::Rows,
    StepTable::Tiles,
    StepTable::Sequences,
    StepTable::Blocks,
    StepTable::Near,
];

/// Query tokens of a tile in [`StepTable::Tiles`] at most.
pub(crate) const TILE_TOKENS: usize = 32;

/// How many bytes of an argument a launch moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Each once.
    Once,
    /// So many: fewer than are there by a gather, more by a kernel that reads them several times.
    Bytes(usize),
    /// So many for each token that is looked at, which the step alone knows.
    Seen {
        row: usize,
        /// By so many threadgroups.
        readers: usize,
        /// How far back is looked.
        window: Option<usize>,
        /// By tiles of queries, which look at a token once for all their own.
        tiles: bool,
    },
}

impl Moved {
    /// Bytes in a step; `None` where all of the region are moved once.
    pub(crate) fn bytes(self, step: &StepCounts) -> Option<usize> {
        match self {
            Moved::Once => None,
            Moved::Bytes(bytes) => Some(bytes),
            Moved::Seen { row, readers, window, tiles } => {
                let within = |window: usize| {
                    if !tiles {
                        return window.saturating_mul(step.tokens);
                    }
                    window.saturating_sub(1).saturating_mul(step.tiles).saturating_add(step.tokens)
                };
                let seen = if tiles { step.tiles_see } else { step.seen };
                let seen = seen.min(window.map_or(usize::MAX, within));
                Some(row.saturating_mul(readers).saturating_mul(seen))
            }
        }
    }

    /// The bytes among them that are different ones; `None` where the region tells.
    pub(crate) fn distinct(self, step: &StepCounts) -> Option<usize> {
        let Moved::Seen { row, window, .. } = self else { return None };
        let within = |window: usize| {
            window.saturating_sub(1).saturating_mul(step.sequences).saturating_add(step.tokens)
        };
        Some(row.saturating_mul(step.held.min(window.map_or(usize::MAX, within))))
    }
}

/// One launch of an operation and what stands behind its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stage {
    pub(crate) launch: Launch,
    slots: [SlotUse; MAX_ARGS],
    /// The same as a product that a library may make.
    call: Option<Call>,
    /// Bytes of the tokens' vectors that are read after their first reading, out of caches, for counting.
    pub(crate) vectors_again: u64,
}

/// What stands behind an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotUse {
    pub(crate) slot: Slot,
    /// Its first byte that counts.
    pub(crate) start: usize,
    pub(crate) moved: Moved,
}

impl Stage {
    /// A launch with its arguments in the kernel's order.
    #[allow(clippy::large_types_passed_by_value)] // It is moved in.
    pub(crate) fn new<const N: usize>(launch: Launch, given: [Slot; N]) -> Stage {
        const { assert!(N <= MAX_ARGS, "too many arguments") };
        let mut slots = [SlotUse { slot: Slot::Unused, start: 0, moved: Moved::Once }; MAX_ARGS];
        for (used, slot) in slots.iter_mut().zip(given) {
            used.slot = slot;
        }
        Stage { launch, slots, call: None, vectors_again: 0 }
    }

    /// A library may do this in place of the launch.
    #[must_use]
    pub(crate) fn by_library(self, call: Call) -> Stage {
        Stage { call: Some(call), ..self }
    }

    pub(crate) fn call(&self) -> Option<Call> {
        self.call
    }

    /// What was planned for the next operation, as a part of this one's plan.
    #[must_use]
    pub(crate) fn of_next(mut self) -> Stage {
        for used in &mut self.slots {
            used.slot = match used.slot {
                Slot::Input(index) => Slot::NextInput(index),
                Slot::Output => Slot::NextOutput,
                other => other,
            };
        }
        self
    }

    /// Another slot behind every argument that has this one.
    pub(crate) fn replace(&mut self, slot: Slot, by: Slot) {
        self.slots.iter_mut().filter(|used| used.slot == slot).for_each(|used| used.slot = by);
    }

    /// Says how many bytes of the argument at `index` are moved.
    #[must_use]
    pub(crate) fn touching(self, index: usize, bytes: usize) -> Stage {
        self.moving(index, Moved::Bytes(bytes))
    }

    /// Says what of the argument at `index` is moved.
    #[must_use]
    pub(crate) fn moving(mut self, index: usize, moved: Moved) -> Stage {
        self.slots[index].moved = moved;
        self
    }

    /// Says how many bytes of vectors come out of caches.
    #[must_use]
    pub(crate) fn reading_again(mut self, bytes: u64) -> Stage {
        self.vectors_again = bytes;
        self
    }

    /// Says at which byte the argument at `index` begins.
    #[must_use]
    pub(crate) fn starting(mut self, index: usize, start: usize) -> Stage {
        self.slots[index].start = start;
        self
    }

    pub(crate) fn slots(&self) -> &[SlotUse] {
        &self.slots[..self.launch.kernel.args.len().min(MAX_ARGS)]
    }
}

/// How an operation runs: launches one after another, and the bytes of scratch they share.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stages {
    pub(crate) stages: Vec<Stage>,
    /// Bytes of each scratch, by index.
    pub(crate) scratch: Vec<usize>,
}

impl Stages {
    /// Says of every launch whether its weights may begin anywhere.
    pub(crate) fn bytewise(mut self, bytewise: bool) -> Stages {
        self.stages.iter_mut().for_each(|stage| stage.launch.bytewise |= bytewise);
        self
    }

    pub(crate) fn add_scratch(&mut self, bytes: usize) -> Slot {
        self.scratch.push(bytes);
        Slot::Scratch(self.scratch.len() - 1)
    }

    /// What was the result becomes memory of this operation alone, for stages that follow.
    pub(crate) fn keep_output(&mut self, bytes: usize) -> Slot {
        let kept = self.add_scratch(bytes);
        self.replace(Slot::Output, kept);
        kept
    }

    /// Another slot behind every argument that has this one.
    pub(crate) fn replace(&mut self, slot: Slot, by: Slot) {
        self.stages.iter_mut().for_each(|stage| stage.replace(slot, by));
    }

    /// What stands behind the arguments of all stages.
    pub(crate) fn slot_uses(&mut self) -> impl Iterator<Item = &mut SlotUse> {
        self.stages.iter_mut().flat_map(|stage| &mut stage.slots)
    }

    /// These stages, then those; scratch is shared out between them.
    pub(crate) fn append(&mut self, mut more: Stages) {
        for used in more.slot_uses() {
            if let Slot::Scratch(index) = &mut used.slot {
                *index += self.scratch.len();
            }
        }
        self.stages.extend(more.stages);
        self.scratch.extend(more.scratch);
    }
}

impl From<Stage> for Stages {
    fn from(stage: Stage) -> Stages {
        Stages { stages: vec![stage], scratch: Vec::new() }
    }
}
