//! What a sequence begins with that another one computes at the same time.

use metallic_core::BLOCK_TOKENS;

use super::super::cache::Table;
use super::super::pool::Chain;
use super::{Awaited, Sequence};

impl Sequence<'_> {
    /// Tokens of full blocks that both begin with and that `self` has yet to compute: what `other` may wait for. `None` where there are
    /// none.
    pub(in crate::generate) fn computes_for(&self, other: &Self) -> Option<Awaited> {
        // The last token of a sequence is computed for its logits.
        let most = (other.tokens.len() - 1).min(self.tokens.len()) / BLOCK_TOKENS;
        let done = self.computed.max(other.computed) / BLOCK_TOKENS;
        let idle = self.paused || self.outcome.is_some();
        if idle || most <= done || self.mix != other.mix {
            return None;
        }
        let (ours, theirs) = (self.tokens.as_chunks::<BLOCK_TOKENS>().0, other.tokens.as_chunks().0);
        let same = ours[..most].iter().zip(theirs).take_while(|(a, b)| a == b).count();
        (same > done).then_some(Awaited { serial: self.serial, tokens: same * BLOCK_TOKENS })
    }

    /// The tokens it will have blocks of its own for, and those it has: without what it waits for, which is another's.
    pub(in crate::generate) fn tokens_to_come(&self) -> usize {
        let awaited = self.awaits.map_or(0, |awaited| awaited.tokens.saturating_sub(self.computed));
        self.tokens.len().saturating_sub(awaited)
    }

    /// Its state is to be kept after so many tokens, for somebody who waits for it.
    pub(in crate::generate) fn branch_at(&mut self, tokens: usize) {
        if self.stops_at_borders && tokens > self.computed && !self.branches.contains(&tokens) {
            self.branches.push(tokens);
        }
    }

    /// Goes on from blocks that have become known meanwhile.
    pub(in crate::generate) fn go_on_from(&mut self, table: Table, chain: Chain) {
        let found = table.len() * BLOCK_TOKENS;
        if self.record.first_token.is_none() && self.record.preemptions == 0 {
            self.record.cached_tokens += found.saturating_sub(self.computed);
        }
        self.computed = found;
        self.shared = (table.len(), chain);
        self.table = table;
    }
}
