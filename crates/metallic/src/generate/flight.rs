//! What a step is made of: whose tokens, and how many of each.

use std::cmp::Reverse;
use std::time::Instant;

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
    /// How many of them, the last, are guesses.
    pub(super) drafts: usize,
    /// It goes on with its answer.
    pub(super) answers: bool,
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
    /// When it was begun.
    pub(super) begun: Instant,
    /// Where somebody listens.
    pub(super) told: Option<UnderWay>,
}

impl Flight {
    /// A step of these, which has yet to be laid out.
    pub(super) fn new(members: Vec<Member>, chooses: bool, begun: Instant) -> Self {
        Self { members, chooses, begun, told: None }
    }

    /// The one output row of a sequence that guesses nothing.
    pub(super) fn row_of(&self, serial: u64) -> Option<usize> {
        let member = self.members.iter().find(|m| m.serial == serial)?;
        (member.rows == 1 && member.drafts == 0).then_some(member.first_row)
    }

    /// How many of its members go on with an answer.
    pub(super) fn answers(&self) -> usize {
        self.members.iter().filter(|m| m.answers).count()
    }

    /// How many of its members have a piece of a prompt.
    pub(super) fn prompts(&self) -> usize {
        self.members.len() - self.answers()
    }

    /// Tokens of prompts in it.
    pub(super) fn prompt_tokens(&self) -> usize {
        self.members.iter().filter(|m| !m.answers).map(|m| m.share).sum()
    }
}

/// What a sequence would bring to a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// Tokens, 0 where it waits for something else.
    pub(super) tokens: usize,
    /// It goes on with its answer and brings all of them; else they are of a prompt and may come in pieces.
    pub(super) answers: bool,
    /// Who comes first: higher priorities, then those who are done sooner.
    pub(super) rank: (Reverse<i32>, usize),
}

/// How many tokens a step may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// All together.
    pub(super) step: usize,
    /// Those of prompts.
    pub(super) prompts: usize,
}

/// Of the tokens of prompts one part of so many goes to the first who came, however long its prompt is.
const FIRST_PART: usize = 4;

/// Shares the tokens of a step out: to each answer what it needs, then the rest to prompts, the shortest first. The oldest
/// prompt has a part of it in any case, so that it comes to its end however many shorter ones follow.
pub(super) fn share_tokens(dues: &[Due], budget: Budget, shares: &mut Vec<usize>) {
    shares.clear();
    shares.resize(dues.len(), 0);
    let mut left = budget.step;
    for (share, due) in shares.iter_mut().zip(dues).filter(|(_, due)| due.answers) {
        *share = due.tokens.min(left);
        left -= *share;
    }
    left = left.min(budget.prompts);
    let mut prompts: Vec<usize> =
        (0..dues.len()).filter(|i| !dues[*i].answers && dues[*i].tokens > 0).collect();
    if let Some(&oldest) = prompts.first() {
        shares[oldest] = dues[oldest].tokens.min(left.div_ceil(FIRST_PART));
        left -= shares[oldest];
    }
    prompts.sort_by_key(|i| dues[*i].rank);
    for i in prompts {
        let more = (dues[i].tokens - shares[i]).min(left);
        shares[i] += more;
        left -= more;
    }
}
