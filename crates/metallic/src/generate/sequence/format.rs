//! What the format of an answer has to do before a token is chosen.

use super::super::hook::{Hook, Place};
use super::Sequence;

/// A format, and where its answer stands. It needs nothing else, so that several can be looked after at the same time.
pub(in crate::generate) struct FormatWork<'a> {
    hook: &'a mut Hook,
    place: Place<'a>,
}

impl FormatWork<'_> {
    /// Looks ahead, while the logits are computed.
    pub(in crate::generate) fn prepare(self) {
        self.hook.prepare(&self.place);
    }

    /// Bans what may not come next, for when these logits are looked at.
    pub(in crate::generate) fn restrict(self, logits: &[f32]) {
        self.hook.restrict(&self.place, logits);
    }
}

impl Sequence<'_> {
    /// What its format has to do, where the step under way chooses the next token of its answer and nobody else has a say.
    pub(in crate::generate) fn format_work(&mut self) -> Option<FormatWork<'_>> {
        let goes_on = self.outcome.is_none() && self.hidden.is_none() && self.prompt_rows.is_none();
        let chooses = self.wanted + 1 == self.tokens.len() && self.tokens.len() < self.most_tokens;
        let Self { hook, tokens, prompt_len, most_tokens, stop_tokens, .. } = self;
        let hook = hook.as_mut().filter(|hook| goes_on && chooses && hook.is_format())?;
        let room = *most_tokens - tokens.len();
        Some(FormatWork { hook, place: Place { tokens, prompt_len: *prompt_len, room, stop_tokens } })
    }
}
