//! Which tokens an answer's text is made of.

use super::delta::TokenDelta;

/// Tokens whose text is not told yet. Those of thoughts, of calls and of the marks around them are not the answer's.
#[derive(Debug)]
pub(super) struct Spelled {
    held: Vec<TokenDelta>,
    /// What was told last is text of the answer, or nothing was told.
    in_text: bool,
}

impl Default for Spelled {
    fn default() -> Self {
        Self { held: Vec::new(), in_text: true }
    }
}

impl Spelled {
    /// A token was generated; where its text goes is to be seen.
    pub(super) fn hold(&mut self, token: Option<TokenDelta>) {
        self.held.extend(token);
    }

    /// A thought or a call was told.
    pub(super) fn skip(&mut self) {
        self.held.clear();
        self.in_text = false;
    }

    /// The tokens that `text` is told by. After a thought or a call, what stands before those that spell it was a mark.
    pub(super) fn tell(&mut self, text: &str) -> Vec<TokenDelta> {
        let mut tokens = std::mem::take(&mut self.held);
        if !std::mem::replace(&mut self.in_text, true) {
            let mut missing = text.len();
            let spells = |token: &TokenDelta| {
                let needed = missing > 0;
                missing = missing.saturating_sub(token.token.bytes.len());
                needed
            };
            let marks = tokens.len() - tokens.iter().rev().map(spells).take_while(|needed| *needed).count();
            tokens.drain(..marks);
        }
        tokens
    }

    /// The tokens of an answer that has ended with text, and whose own text a stop text has taken or nobody can read.
    pub(super) fn end(&mut self) -> Vec<TokenDelta> {
        if self.in_text { std::mem::take(&mut self.held) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::delta::TokenText;
    use super::*;

    fn token(text: &str) -> TokenDelta {
        let bytes = text.as_bytes().to_vec();
        let token = TokenText { id: 0, text: text.to_owned(), bytes, logprob: Some(0.0) };
        TokenDelta { token, top: Vec::new() }
    }

    fn texts(tokens: &[TokenDelta]) -> Vec<&str> {
        tokens.iter().map(|token| &*token.token.text).collect()
    }

    #[test]
    fn tokens_go_with_the_text_that_they_spell() {
        let mut spelled = Spelled::default();
        spelled.hold(Some(token("a")));
        spelled.hold(Some(token(" b")));
        assert_eq!(texts(&spelled.tell("a b")), ["a", " b"]);
        spelled.hold(Some(token(" c")));
        assert_eq!(texts(&spelled.end()), [" c"]);
    }

    #[test]
    fn thoughts_calls_and_their_marks_are_not_of_the_text() {
        let mut spelled = Spelled::default();
        for thought in ["<think>", "well", "</think>"] {
            spelled.hold(Some(token(thought)));
            if thought == "well" {
                spelled.skip();
            }
        }
        for part in ["\n\n", "It", " is"] {
            spelled.hold(Some(token(part)));
        }
        assert_eq!(texts(&spelled.tell("It is")), ["It", " is"]);
        spelled.hold(Some(token("<tool_call>")));
        spelled.skip();
        spelled.hold(Some(token("</tool_call>")));
        assert_eq!(texts(&spelled.end()), [] as [&str; 0]);
    }
}
