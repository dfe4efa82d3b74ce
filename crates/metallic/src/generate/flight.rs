//! What a step is made of: whose tokens, and how many of each.

use metallic_core::Fed;
use metallic_core::sample::Choices;

use crate::telemetry::tell::UnderWay;

/// What a step is made of, kept to reuse the memory.
#[derive(Default)]
pub(super) struct Inputs {
    pub(super) tokens: Vec<u32>,
    pub(super) fed: Vec<Fed>,
    pub(super) positions: Vec<u32>,
    pub(super) outputs: Vec<u32>,
    pub(super) choices: Choices,
    pub(super) adapters: Vec<f32>,
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Which sequence: it may have ended before the step has.
    pub(super) serial: u64,
    /// Tokens it brings.
    pub(super) share: usize,
    /// Output rows of its last tokens: of the very last, unless all of a prompt are wanted.
    pub(super) rows: usize,
    /// The first of them.
    pub(super) first_row: usize,
    /// Its token is the one that this row of the step before chooses, which is still under way.
    pub(super) fed: Option<u32>,
    /// Its tokens in that step.
    pub(super) ahead: usize,
}

/// A step that was submitted.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) members: Vec<Member>,
    /// The device chooses tokens; else logits come back.
    pub(super) chooses: bool,
    /// Where somebody listens.
    pub(super) told: Option<UnderWay>,
}

/// Shares `budget` tokens out: one to each sequence that waits for its next token only, then the rest to those with more
/// to compute, oldest first.
pub(super) fn share_tokens(
    pending: impl Iterator<Item = usize> + Clone,
    budget: usize,
    shares: &mut Vec<usize>,
) {
    let decoding = pending.clone().filter(|n| *n == 1).count();
    let mut left = budget.saturating_sub(decoding);
    shares.clear();
    shares.extend(pending.map(|n| {
        if n == 1 {
            return 1;
        }
        let share = n.min(left);
        left -= share;
        share
    }));
}
