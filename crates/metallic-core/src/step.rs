//! What one step computes: tokens of several sequences, and where what they keep lies.

use std::ops::Range;

use crate::{Blocks, Op, Sizes};

/// Tokens of one cache block. A sequence's cache is a table of blocks.
pub const BLOCK_TOKENS: usize = 32;

/// How a step breaks its contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum StepError {
    /// There is nothing to do.
    #[error("it has no tokens")]
    Empty,
    /// An id is not in the vocabulary.
    #[error("token {index} is {id}, the vocabulary ends at {vocab}")]
    TokenOutOfRange { index: usize, id: u32, vocab: usize },
    /// Positions and tokens differ in number.
    #[error("it has {tokens} tokens and {positions} positions")]
    Positions { tokens: usize, positions: usize },
    /// The sequences do not cover the tokens one after another.
    #[error(
        "sequence {sequence} covers tokens {start}..{end}, it should begin at {expected} and not be empty"
    )]
    Coverage { sequence: usize, start: usize, end: usize, expected: usize },
    /// The block table is too short for the tokens.
    #[error("sequence {sequence} has {blocks} cache blocks, {needed} are needed")]
    Blocks { sequence: usize, blocks: usize, needed: usize },
    /// A block was never reserved.
    #[error("sequence {sequence} uses cache block {block}, {reserved} are reserved")]
    BlockOutOfRange { sequence: usize, block: u32, reserved: usize },
    /// A recurrent state was never reserved.
    #[error("sequence {sequence} uses recurrent state {slot}, {reserved} are reserved")]
    SlotOutOfRange { sequence: usize, slot: u32, reserved: usize },
    /// A recurrent state has one owner in a step.
    #[error("sequences {other} and {sequence} both use recurrent state {slot}")]
    SlotTwice { other: usize, sequence: usize, slot: u32 },
    /// A token is to be fed that is not there, from a row that is not there.
    #[error("token {token} of {tokens} is fed from row {row} of {rows} of the step before")]
    FedOutOfRange { token: u32, tokens: usize, row: u32, rows: usize },
    /// The packed choices are not what they should be.
    #[error("its choices are wrong: {0}")]
    Choices(String),
    /// It does not say how much of each adapter each token takes.
    #[error("it has {found} shares of adapters, {tokens} tokens of {adapters} adapters need {}", tokens * adapters)]
    Adapters { found: usize, tokens: usize, adapters: usize },
    /// A result was asked for a token that is not there.
    #[error("output {index} asks for token {row} of {tokens}")]
    OutputOutOfRange { index: usize, row: u32, tokens: usize },
}

/// The tokens one sequence brings to a step.
#[derive(Clone, Debug)]
pub struct SequenceSpan<'a> {
    /// Its tokens in the step.
    pub tokens: Range<usize>,
    /// Tokens of it that are in the cache already.
    pub past: usize,
    /// Its cache blocks: position `p` lies in block `p / BLOCK_TOKENS`. Blocks that no window reaches any longer may name
    /// any block that is reserved.
    pub blocks: &'a [u32],
    /// The same for layers with a window, where others have none; empty: those are `blocks`, too.
    pub near: &'a [u32],
    /// Which of the reserved recurrent states is its own; a sequence without a past begins with zeros.
    pub slot: u32,
}

impl SequenceSpan<'_> {
    /// Tokens in the cache once the step has run.
    pub fn kv_len(&self) -> usize {
        // A past beyond all bounds stays there, so that `Step::validate` sees it.
        self.past.saturating_add(self.tokens.len())
    }

    /// Where keys and values lie of layers that have blocks of their own, `near`, or of others.
    pub fn table(&self, near: bool) -> &[u32] {
        if near && !self.near.is_empty() { self.near } else { self.blocks }
    }

    fn validate(&self, sequence: usize, limits: &StepLimits) -> Result<(), StepError> {
        let needed = self.kv_len().div_ceil(BLOCK_TOKENS);
        for (near, reserved) in [(false, limits.blocks.far), (true, limits.blocks.near)] {
            let table = self.table(near);
            if table.len() < needed {
                return Err(StepError::Blocks { sequence, blocks: table.len(), needed });
            }
            if let Some(block) = table[..needed].iter().find(|b| **b as usize >= reserved) {
                return Err(StepError::BlockOutOfRange { sequence, block: *block, reserved });
            }
        }
        match limits.slots {
            Some(reserved) if self.slot as usize >= reserved => {
                Err(StepError::SlotOutOfRange { sequence, slot: self.slot, reserved })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// A token whose id is not known yet: the step before it, still under way, chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed {
    /// Which token of this step.
    pub token: u32,
    /// Which output row of the step before.
    pub row: u32,
}

/// Which outputs of the graph a step computes and brings back, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wanted(u32);

impl Wanted {
    /// Every output.
    pub const ALL: Wanted = Wanted(u32::MAX);
    /// None: the step only fills what is kept between steps.
    pub const NONE: Wanted = Wanted(Needed::EFFECT.0);

    /// One output alone; of the first 31.
    pub const fn only(index: usize) -> Wanted {
        Wanted(Wanted::NONE.0 | Needed::by(index).0)
    }

    /// This and the output at `index`.
    #[must_use]
    pub const fn and(self, index: usize) -> Wanted {
        Wanted(self.0 | Needed::by(index).0)
    }

    /// Whether the output at `index` is wanted.
    pub const fn has(self, index: usize) -> bool {
        Needed::by(index).for_step(self)
    }
}

/// Who needs a node: some of the outputs, or what is kept between steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needed(u32);

impl Needed {
    /// Outputs of a graph at most.
    pub(crate) const MOST: usize = 31;
    /// What is kept between steps: every step needs it.
    pub(crate) const EFFECT: Needed = Needed(1 << Needed::MOST);

    pub(crate) const fn by(index: usize) -> Needed {
        Needed(if index < Needed::MOST { 1 << index } else { 0 })
    }

    pub(crate) fn and(self, other: Needed) -> Needed {
        Needed(self.0 | other.0)
    }

    /// Whether a step that wants these outputs computes the node.
    pub const fn for_step(self, wanted: Wanted) -> bool {
        self.0 & wanted.0 != 0
    }
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted::ALL
    }
}

/// What one step computes: tokens of several sequences, one after another.
#[derive(Clone, Debug, Default)]
pub struct Step<'a> {
    /// Token ids, all sequences one after another.
    pub tokens: &'a [u32],
    /// Tokens whose ids are those the step before chooses; what stands in `tokens` for them does not count.
    pub fed: &'a [Fed],
    /// Position of each token, as rotary embeddings see it.
    pub positions: &'a [u32],
    /// Which tokens belong to which sequence; they cover all tokens in order.
    pub sequences: &'a [SequenceSpan<'a>],
    /// Tokens (by index in the step) whose result is wanted.
    pub outputs: &'a [u32],
    /// How a token is chosen from each output row, packed as [`crate::sample::Choices`] has it; empty where nothing is
    /// chosen: then [`crate::Op::Sample`] gives nothing.
    pub choices: &'a [u32],
    /// How much of each of the graph's adapters each token takes, token by token; empty where it has none.
    pub adapters: &'a [f32],
    /// Which outputs of the graph are computed.
    pub wanted: Wanted,
}

/// What a program has to tell of itself to check a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLimits {
    /// Ids a token may have.
    pub vocab: usize,
    /// Cache blocks that are reserved.
    pub blocks: Blocks,
    /// Recurrent states that are reserved; `None` where the graph has none.
    pub slots: Option<usize>,
    /// Output rows of the step before, while it is under way.
    pub fed_rows: usize,
    /// Adapters of the graph.
    pub adapters: usize,
}

impl Step<'_> {
    /// Checks everything a backend relies on.
    pub fn validate(&self, limits: &StepLimits) -> Result<(), StepError> {
        let (tokens, vocab) = (self.tokens.len(), limits.vocab);
        if tokens == 0 {
            return Err(StepError::Empty);
        }
        let lost = |fed: &&Fed| fed.token as usize >= tokens || fed.row as usize >= limits.fed_rows;
        if let Some(&Fed { token, row }) = self.fed.iter().find(lost) {
            return Err(StepError::FedOutOfRange { token, tokens, row, rows: limits.fed_rows });
        }
        let is_fed = |index: usize| self.fed.iter().any(|fed| fed.token as usize == index);
        let outside = |(index, id): &(usize, &u32)| **id as usize >= vocab && !is_fed(*index);
        if let Some((index, id)) = self.tokens.iter().enumerate().find(outside) {
            return Err(StepError::TokenOutOfRange { index, id: *id, vocab });
        }
        if self.positions.len() != tokens {
            return Err(StepError::Positions { tokens, positions: self.positions.len() });
        }
        let (found, adapters) = (self.adapters.len(), limits.adapters);
        if Some(found) != tokens.checked_mul(adapters) {
            return Err(StepError::Adapters { found, tokens, adapters });
        }
        let mut expected = 0;
        for (sequence, span) in self.sequences.iter().enumerate() {
            let Range { start, end } = span.tokens;
            if start != expected || end <= start || end > tokens {
                return Err(StepError::Coverage { sequence, start, end, expected });
            }
            expected = end;
            span.validate(sequence, limits)?;
            let shared = self.sequences[..sequence].iter().position(|other| other.slot == span.slot);
            if let (Some(_), Some(other)) = (limits.slots, shared) {
                return Err(StepError::SlotTwice { other, sequence, slot: span.slot });
            }
        }
        if expected != tokens {
            let (sequence, end) = (self.sequences.len(), tokens);
            return Err(StepError::Coverage { sequence, start: end, end, expected });
        }
        match self.outputs.iter().position(|row| *row as usize >= tokens) {
            Some(index) => Err(StepError::OutputOutOfRange { index, row: self.outputs[index], tokens }),
            None => Ok(()),
        }
    }

    /// Whether a node that is needed so is computed in this step.
    pub fn computes(&self, op: &Op, needed: Needed) -> bool {
        !op.is_source() && needed.for_step(self.wanted) && !(*op == Op::Sample && self.choices.is_empty())
    }

    /// What the symbolic axes are.
    pub fn sizes(&self) -> Sizes {
        Sizes { tokens: self.tokens.len(), outputs: self.outputs.len() }
    }
}
