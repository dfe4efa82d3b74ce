//! Several answers at once, under one limit of time.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::answer::Answer;
use super::delta::{Delta, Usage};
use crate::error::ApiError;
use crate::http::Journey;
use crate::server::{Phase, Server};

/// The answers to one request, as they come. Dropping them cancels them.
pub(crate) struct Choices {
    /// `None` where one has ended.
    answers: Vec<Option<Answer>>,
    /// How many tokens each prompt has.
    prompt_tokens: Vec<usize>,
    /// Which prompt each answers.
    prompts: Vec<usize>,
    /// Where to look first, so that one that always has something does not keep the others waiting.
    turn: usize,
    deadline: Instant,
    limit: Duration,
    phase: watch::Receiver<Phase>,
    journey: Journey,
    /// By prompt.
    usage: Vec<Option<Usage>>,
}

impl Choices {
    pub(super) fn new(answers: Vec<Answer>, server: &Server, journey: Journey, limit: Duration) -> Self {
        // A limit that no clock can show is none.
        let now = Instant::now();
        let far = now + Duration::from_secs(365 * 24 * 3600);
        let started = Instant::from_std(journey.started);
        Self {
            prompts: vec![0; answers.len()],
            answers: answers.into_iter().map(Some).collect(),
            prompt_tokens: vec![0],
            turn: 0,
            deadline: started.checked_add(limit).unwrap_or(far),
            limit,
            phase: server.phase(),
            journey,
            usage: vec![None],
        }
    }

    /// The same, with how many tokens the prompt has.
    pub(super) fn with_prompt_tokens(self, prompt_tokens: usize) -> Self {
        Self { prompt_tokens: vec![prompt_tokens], ..self }
    }

    /// How many tokens the first prompt has.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens.first().copied().unwrap_or_default()
    }

    /// The answers to several prompts of one request, in order; there must be one prompt at least.
    pub(crate) fn join(groups: Vec<Choices>) -> Option<Choices> {
        let mut groups = groups.into_iter();
        let mut all = groups.next()?;
        for group in groups {
            all.prompts.extend(group.prompts.iter().map(|prompt| prompt + all.usage.len()));
            all.answers.extend(group.answers);
            all.usage.extend(group.usage);
            all.prompt_tokens.extend(group.prompt_tokens);
        }
        Some(all)
    }

    /// The next deltas, and which answer they belong to; `None` once all have ended. An error ends all of them. A call that is given
    /// up loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Vec<Delta>), ApiError>> {
        if self.answers.iter().all(Option::is_none) {
            return None;
        }
        let Self { answers, turn, deadline, phase, .. } = self;
        let next = tokio::select! {
            biased;
            next = poll_fn(|context| poll_any(answers, turn, context)) => next,
            () = tokio::time::sleep_until(*deadline) => Err(ApiError::Timeout { limit: self.limit.as_secs() }),
            _ = phase.wait_for(|phase| *phase == Phase::Ending) => {
                Err(ApiError::Unavailable("the server is about to stop"))
            }
        };
        match &next {
            Ok((index, deltas)) => self.note(*index, deltas),
            Err(_) => self.answers.clear(),
        }
        Some(next)
    }

    /// What all answers together have cost so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage.iter().flatten().fold(Usage::default(), |all, usage| all.and(*usage))
    }

    /// What one answer has cost so far; until it has ended nobody knows what of its prompt was in the cache.
    pub(crate) fn usage_of(&self, index: usize) -> Usage {
        let prompt = self.prompts.get(index).and_then(|prompt| self.prompt_tokens.get(*prompt));
        let answer = self.answers.get(index).and_then(Option::as_ref);
        let generated = answer.map_or(0, Answer::tokens);
        Usage { prompt: prompt.copied().unwrap_or_default(), generated, ..Usage::default() }
    }

    /// Keeps what the log is to have of them.
    fn note(&mut self, index: usize, deltas: &[Delta]) {
        for delta in deltas {
            match delta {
                Delta::Finished(finish) => {
                    if let Some(usage) =
                        self.prompts.get(index).and_then(|prompt| self.usage.get_mut(*prompt))
                    {
                        *usage = Some(usage.map_or(finish.usage, |usage| usage.beside(finish.usage)));
                    }
                    let (usage, mut log) = (self.usage(), self.journey.log());
                    log.prompt_tokens = usage.prompt;
                    log.cached_tokens = usage.cached;
                    log.generated_tokens = usage.generated;
                }
                Delta::Text(text) | Delta::ToolArguments { json: text, .. } if self.journey.texts => {
                    self.journey.log().answer.get_or_insert_default().push_str(text);
                }
                _ => {}
            }
        }
    }
}

/// What the first answer that has something says.
fn poll_any(
    answers: &mut [Option<Answer>],
    turn: &mut usize,
    context: &mut Context<'_>,
) -> Poll<Result<(usize, Vec<Delta>), ApiError>> {
    for step in 0..answers.len() {
        let index = (*turn + step) % answers.len();
        let Some(answer) = &mut answers[index] else { continue };
        loop {
            match answer.poll(context) {
                Poll::Pending => break,
                Poll::Ready(None) => {
                    answers[index] = None;
                    // The end was told with the last deltas.
                    return Poll::Ready(Ok((index, Vec::new())));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                // All of its text is held back.
                Poll::Ready(Some(Ok(deltas))) if deltas.is_empty() => {}
                Poll::Ready(Some(Ok(deltas))) => {
                    *turn = index + 1;
                    return Poll::Ready(Ok((index, deltas)));
                }
            }
        }
    }
    Poll::Pending
}
