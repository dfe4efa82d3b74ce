//! One answer: the engine's events as deltas.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::Stream;
use metallic::generate::{EngineError, Finished, StopMatch};
use metallic::text::{ToolParser, ToolPiece};
use metallic::{Event, FinishReason, Generation};

use super::delta::{Delta, Finish, Reason, TokenDelta, Usage};
use super::spelled::Spelled;
use crate::error::ApiError;
use crate::http::fresh_id;
use crate::models::Served;
use crate::server::Server;

/// What the engine was asked for.
pub(super) struct Asked {
    pub(super) generation: Generation,
    /// Tokens of its prompt.
    pub(super) prompt_tokens: usize,
    /// The field that says what form the answer has.
    pub(super) format: String,
    /// Tells calls from text, where there are tools.
    pub(super) calls: Option<ToolParser>,
    /// Whether more than one may be called.
    pub(super) parallel_calls: bool,
    /// Whether the answer is calls and nothing else: what is text of it are marks of calls that were cut off.
    pub(super) only_calls: bool,
}

/// An answer as it comes. Dropping it cancels it.
pub(super) struct Answer {
    asked: Asked,
    server: Server,
    model: Arc<Served>,
    /// When the request arrived, and then when its last token came.
    last: Instant,
    tokens: usize,
    spelled: Spelled,
    thoughts: usize,
    /// Calls that have begun, and those that are complete.
    begun: usize,
    complete: usize,
}

impl Answer {
    pub(super) fn new(asked: Asked, server: Server, model: Arc<Served>, started: Instant) -> Self {
        let spelled = Spelled::default();
        Self { asked, server, model, last: started, tokens: 0, spelled, thoughts: 0, begun: 0, complete: 0 }
    }

    /// How many tokens it has so far.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The deltas of the next event; none where all of its text is held back.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<Delta>, ApiError>>> {
        Pin::new(&mut self.asked.generation).poll_next(context).map(|event| match event? {
            Ok(event) => Some(self.deltas(event)),
            Err(EngineError::Constraint { reason }) => {
                let message = format!("the answer could not be held to its form: {reason}");
                Some(Err(ApiError::invalid(&self.asked.format, message)))
            }
            Err(error) => Some(Err(ApiError::of_engine(&error, ""))),
        })
    }

    fn deltas(&mut self, event: Event) -> Result<Vec<Delta>, ApiError> {
        let mut deltas = Vec::new();
        match event {
            Event::Token(token) => {
                self.count_token();
                self.spelled.hold(TokenDelta::of(self.model.llm.tokenizer(), &token));
                self.thoughts += usize::from(!token.reasoning.is_empty());
                self.think(&mut deltas, token.reasoning);
                let pieces = match &mut self.asked.calls {
                    Some(parser) => parser.push_token(token.id, &token.text),
                    None => vec![ToolPiece::Text(token.text)],
                };
                self.say(&mut deltas, pieces);
            }
            Event::Finished(Finished { reason, stop, text, reasoning, stats }) => {
                self.server.metrics().count_answer(&stats);
                self.think(&mut deltas, reasoning);
                let pieces = match &mut self.asked.calls {
                    Some(parser) => parser.push(&text).into_iter().chain(parser.finish()).collect(),
                    None => vec![ToolPiece::Text(text)],
                };
                self.say(&mut deltas, pieces);
                deltas.extend(self.spelled.end().into_iter().map(Delta::Token));
                let reason = match reason {
                    // The engine may have ended before it heard that this is all.
                    _ if self.is_enough() => Reason::ToolCalls,
                    FinishReason::Stop if self.begun > 0 => Reason::ToolCalls,
                    FinishReason::Stop => Reason::Stop,
                    FinishReason::Length => Reason::Length,
                    FinishReason::Deadline => {
                        let limit = self.server.options().limits.request_time.as_secs();
                        return Err(ApiError::Timeout { limit });
                    }
                    _ => return Err(ApiError::Unavailable("the server is about to stop")),
                };
                let usage = Usage::of(&stats, self.thoughts);
                let stop = stop.and_then(|stop| match stop {
                    StopMatch::Text(text) => Some(text),
                    StopMatch::Token(_) => None,
                });
                deltas.push(Delta::Finished(Finish { reason, stop, usage }));
            }
            Event::Prompt(tokens) => {
                let tokenizer = self.model.llm.tokenizer();
                let tokens = tokens.iter().map(|token| TokenDelta::of_prompt(tokenizer, token));
                deltas.push(Delta::Prompt(tokens.collect()));
            }
            // What was not asked for.
            _ => {}
        }
        Ok(deltas)
    }

    /// Whether the one call that may be is there.
    fn is_enough(&self) -> bool {
        !self.asked.parallel_calls && self.complete > 0
    }

    /// Appends what is said, and ends the answer after a call where only one may be.
    fn say(&mut self, deltas: &mut Vec<Delta>, pieces: Vec<ToolPiece>) {
        for piece in pieces {
            if self.is_enough() {
                return;
            }
            if !matches!(piece, ToolPiece::Text(_)) {
                self.spelled.skip();
            }
            let delta = match piece {
                ToolPiece::Text(text) if text.is_empty() => continue,
                ToolPiece::Text(_) if self.asked.only_calls => {
                    self.spelled.skip();
                    continue;
                }
                ToolPiece::Text(text) => {
                    deltas.extend(self.spelled.tell(&text).into_iter().map(Delta::Token));
                    Delta::Text(text)
                }
                ToolPiece::Begin { index, name } => {
                    self.begun += 1;
                    Delta::ToolBegin { index, id: fresh_id("call_"), name }
                }
                ToolPiece::Arguments { index, json } => Delta::ToolArguments { index, json },
                ToolPiece::End { index } => {
                    self.complete += 1;
                    if self.is_enough() {
                        self.asked.generation.cancel();
                    }
                    Delta::ToolEnd { index }
                }
            };
            deltas.push(delta);
        }
    }

    fn count_token(&mut self) {
        let now = Instant::now();
        let metrics = self.server.metrics();
        let times = if self.tokens == 0 { &metrics.first_token } else { &metrics.token_gap };
        times.note(now.duration_since(self.last));
        metrics.count_token();
        self.last = now;
        self.tokens += 1;
    }

    /// Appends thoughts, where there are some.
    fn think(&mut self, deltas: &mut Vec<Delta>, reasoning: String) {
        if !reasoning.is_empty() {
            self.spelled.skip();
            deltas.push(Delta::Reasoning(reasoning));
        }
    }
}
