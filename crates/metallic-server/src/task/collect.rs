//! Whole answers, for clients that wait for them.

use super::choices::Choices;
use super::delta::{Delta, Finish, TokenDelta};
use crate::error::ApiError;

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: String,
}

/// An answer in full.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Collected {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    /// Of the prompt, where its log-probabilities were asked for.
    pub(crate) prompt: Vec<TokenDelta>,
    pub(crate) tokens: Vec<TokenDelta>,
    pub(crate) finish: Option<Finish>,
}

impl Collected {
    fn take(&mut self, delta: Delta) {
        match delta {
            Delta::Prompt(tokens) => self.prompt = tokens,
            Delta::Token(token) => self.tokens.push(token),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::Text(text) => self.text.push_str(&text),
            Delta::ToolBegin { id, name, .. } => {
                self.calls.push(Call { id, name, arguments: String::new() });
            }
            Delta::ToolArguments { index, json } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&json);
                }
            }
            Delta::ToolEnd { .. } => {}
            Delta::Finished(finish) => self.finish = Some(finish),
        }
    }
}

impl Choices {
    /// Waits for all answers.
    pub(crate) async fn collect(&mut self, n: usize) -> Result<Vec<Collected>, ApiError> {
        let mut collected = vec![Collected::default(); n];
        while let Some(next) = self.next().await {
            let (index, deltas) = next?;
            if let Some(answer) = collected.get_mut(index) {
                for delta in deltas {
                    answer.take(delta);
                }
            }
        }
        Ok(collected)
    }
}
