//! The engine: a program on a thread of its own, and the handle to it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use metallic_core::Program;
use metallic_telemetry::{self as telemetry, Event, emit};
use serde::{Deserialize, Serialize};

use super::generation::Outlet;
use super::hook::panic_message;
use super::inbox::{Command, Inbox, Mail};
use super::request::HiddenSink;
use super::scheduler::{Scheduler, Surroundings};
use super::sequence::Submission;
use super::speculate::settled;
use super::{Detokenize, Draft, EngineConfig, EngineError, FinishReason, Generation, Request, Sampling};
use crate::telemetry::tell;

/// What the engine is doing, at one moment between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Sequences that take part in steps.
    pub running: usize,
    /// Requests that wait for room, or were set aside.
    pub waiting: usize,
    /// How many of both have so much unread that they pause.
    pub paused: usize,
    /// Cache blocks held by running sequences.
    pub held_blocks: usize,
    /// The same of layers with a window, where others have none.
    pub near_blocks: usize,
    /// Cache blocks nobody holds that are kept because a prompt may begin with them.
    pub cached_blocks: usize,
    /// Cache blocks the program has reserved memory for.
    pub reserved_blocks: usize,
    /// Most cache blocks there may be.
    pub block_limit: usize,
    /// Steps run.
    pub steps: u64,
    /// Tokens computed in them.
    pub computed_tokens: u64,
    /// How many of those were of prompts, or of answers that were computed again.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens of prompts that need not be computed: the cache had them.
    pub prefix_tokens: u64,
    /// How often a sequence was set aside, for lack of cache or for one of higher priority.
    pub preemptions: u64,
    /// Tokens guessed ahead.
    pub drafted_tokens: u64,
    /// How many of them were right: each saved a step of its sequence.
    pub accepted_tokens: u64,
    /// Blocks of a draft model's cache held by running sequences.
    pub draft_blocks: usize,
    /// How often the program panicked.
    pub breakdowns: u64,
    /// Requests taken.
    pub requests: u64,
    /// Requests turned away with [`EngineError::Busy`].
    pub rejected: u64,
    /// Requests that ended with [`FinishReason::Stop`].
    pub stopped: u64,
    /// Those with [`FinishReason::Length`].
    pub full: u64,
    /// Those with [`FinishReason::Cancelled`].
    pub cancelled: u64,
    /// Those with [`FinishReason::Deadline`].
    pub expired: u64,
    /// Those with an error.
    pub failed: u64,
}

/// Runs requests on a program, many in one step. Dropping it cancels what is under way and frees the program.
pub struct Engine {
    config: EngineConfig,
    has_text: bool,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// An engine that yields token ids without text.
    pub fn new(program: Box<dyn Program>, config: EngineConfig) -> Result<Self, EngineError> {
        Self::start(program, config, None, None)
    }

    /// An engine that yields text with its tokens.
    pub fn with_text(
        program: Box<dyn Program>,
        config: EngineConfig,
        text: Arc<dyn Detokenize>,
    ) -> Result<Self, EngineError> {
        Self::start(program, config, Some(text), None)
    }

    /// An engine with a smaller model that guesses ahead, as [`Speculation::Draft`](super::Speculation::Draft) of `config` says.
    pub fn with_draft(
        program: Box<dyn Program>,
        config: EngineConfig,
        text: Option<Arc<dyn Detokenize>>,
        draft: Draft,
    ) -> Result<Self, EngineError> {
        Self::start(program, config, text, Some(draft))
    }

    fn start(
        program: Box<dyn Program>,
        mut config: EngineConfig,
        text: Option<Arc<dyn Detokenize>>,
        draft: Option<Draft>,
    ) -> Result<Self, EngineError> {
        config.validate()?;
        config.speculation = settled(&config.speculation, config.states.is_recurrent(), draft.as_ref())?;
        let inbox = Arc::new(Inbox::default());
        let mail = Arc::clone(&inbox);
        let (limits, has_text) = (config.clone(), text.is_some());
        let (ready, started) = channel();
        let subscriber = tell::subscriber();
        let thread = std::thread::Builder::new()
            .name("metallic-engine".to_owned())
            .spawn(move || {
                let mail = Mailbox(mail);
                tell::with_subscriber(&subscriber, || {
                    let surroundings = Surroundings {
                        config: limits,
                        text: text.as_deref(),
                        inbox: Arc::clone(&mail.0),
                        clock: Box::new(Instant::now),
                        draft,
                    };
                    match Scheduler::new(program, surroundings) {
                        Ok(scheduler) => {
                            // Whoever starts the engine waits for this.
                            let _ = ready.send(Ok(()));
                            serve(scheduler, &mail.0);
                        }
                        Err(error) => {
                            let _ = ready.send(Err(error));
                        }
                    }
                });
            })
            .map_err(|error| EngineError::Thread { reason: error.to_string() })?;
        started.recv().unwrap_or(Err(EngineError::Gone))?;
        Ok(Self { config, has_text, inbox, thread: Some(thread) })
    }

    /// The limits it was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Checks a request and queues it. The answer comes through the returned iterator. [`EngineError::Busy`] where as many
    /// wait as may.
    pub fn submit(&self, mut request: Request) -> Result<Generation, EngineError> {
        let most_tokens = self.config.most_tokens(&request, self.has_text)?;
        let mix = self.config.mix(request.options.adapters.as_deref())?;
        let place = self.inbox.place(self.config.max_sequences, self.config.max_waiting)?;
        let (seed, at, id) = (arbitrary_seed(), Instant::now(), tell::next_request());
        let (outlet, mut generation) = Outlet::pair(id, Arc::clone(&self.inbox));
        request.join_parts();
        generation.tell_apart(request.reasoning.take());
        let prompt_tokens = request.prompt.len() as u64;
        emit(|| Event::Request(telemetry::Request { id, prompt_tokens, ..telemetry::Request::default() }));
        let submission = Submission { request, most_tokens, mix, seed, outlet, place, at, id };
        self.inbox.post(Command::Submit(Box::new(submission)))?;
        Ok(generation)
    }

    /// Logits after the last token. Other requests go on beside it.
    pub fn logits(&self, tokens: impl Into<Vec<u32>>) -> Result<Vec<f32>, EngineError> {
        self.rows(Request::new(tokens)).and_then(|mut rows| rows.pop().ok_or(EngineError::Gone))
    }

    /// Logits after each token. Other requests go on beside it.
    pub fn all_logits(&self, tokens: impl Into<Vec<u32>>) -> Result<Vec<Vec<f32>>, EngineError> {
        self.rows(Request::new(tokens).prompt_logits(true))
    }

    /// All rows that the hook of a request for one token sees.
    fn rows(&self, request: Request) -> Result<Vec<Vec<f32>>, EngineError> {
        let tokens = request.prompt.len();
        let needed = if request.prompt_logits { tokens } else { 1 };
        let (sender, rows) = channel();
        let request = request.max_tokens(1).sampling(Sampling::greedy()).hook(move |_, row| {
            // Whoever asked waits for the end below.
            let _ = sender.send(row.to_vec());
            // Rows without a number are an answer here, and no failure to choose.
            row.fill(0.0);
        });
        self.submit(request)?.complete()?;
        let rows: Vec<Vec<f32>> = rows.try_iter().collect();
        // Fewer where the engine was dropped meanwhile.
        if rows.len() == needed { Ok(rows) } else { Err(EngineError::Gone) }
    }

    /// Hidden states after each token: what the model makes logits of. Other requests go on beside it.
    pub fn hidden(&self, tokens: impl Into<Vec<u32>>) -> Result<Vec<Vec<f32>>, EngineError> {
        let tokens = tokens.into();
        let needed = tokens.len();
        let (sender, rows) = channel();
        // Whoever asked waits for the end below.
        self.submit_hidden(tokens, move |row| drop(sender.send(row.to_vec())))?.complete()?;
        let rows: Vec<Vec<f32>> = rows.try_iter().collect();
        // Fewer where the engine was dropped meanwhile.
        if rows.len() == needed { Ok(rows) } else { Err(EngineError::Gone) }
    }

    /// Hidden states after each token, for `take` on the engine's thread. What comes back has no tokens, and ends after the last.
    pub(crate) fn submit_hidden(
        &self,
        tokens: Vec<u32>,
        take: impl FnMut(&[f32]) + Send + 'static,
    ) -> Result<Generation, EngineError> {
        let mut request = Request::new(tokens).prompt_logits(true).max_tokens(0);
        request.hidden = Some(HiddenSink(Box::new(take)));
        self.submit(request)
    }

    /// What the engine is doing. Cancellations made before this call are already carried out in the answer.
    pub fn stats(&self) -> Result<EngineStats, EngineError> {
        let (reply, answer) = channel();
        self.ask_stats(move |stats| {
            // Whoever asked waits below.
            let _ = reply.send(stats);
        })?;
        answer.recv().map_err(|_| EngineError::Gone)
    }

    /// [`stats`](Self::stats) for those who cannot wait: they are given to `reply`, on the engine's thread, which must be quick.
    /// Where the engine ends before that, `reply` is dropped.
    pub fn ask_stats(&self, reply: impl FnOnce(EngineStats) + Send + 'static) -> Result<(), EngineError> {
        self.inbox.post(Command::Stats(Box::new(reply)))
    }

    /// What the engine was doing before its last step, without waiting for that.
    pub fn recent_stats(&self) -> EngineStats {
        EngineStats { rejected: self.inbox.rejected(), ..self.inbox.recent() }
    }

    /// How long the engine has been at its present step, without waiting for that; nothing while there is nothing to do. `None` once
    /// its thread has ended, after which it answers nobody.
    pub fn busy_for(&self) -> Option<Duration> {
        self.inbox.busy_for()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.take() {
            // The thread catches its own panics and has told the callers.
            let _ = thread.join();
        }
    }
}

/// The inbox on the engine's thread: however that ends, nobody waits for it any longer.
struct Mailbox(Arc<Inbox>);

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A seed for a request that names none.
fn arbitrary_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The engine's thread. A panic outside of steps ends it, and every caller is told.
fn serve(mut scheduler: Scheduler<'_>, inbox: &Inbox) {
    let served = catch_unwind(AssertUnwindSafe(|| serve_until_closed(&mut scheduler, inbox)));
    if let Err(panic) = served {
        let message = panic_message(panic.as_ref());
        scheduler.abandon(&EngineError::Panicked { message });
    }
}

fn serve_until_closed(scheduler: &mut Scheduler<'_>, inbox: &Inbox) {
    let mut patience = Duration::ZERO;
    loop {
        let Mail { commands, noted, closed } = inbox.take(patience);
        let mut asked = Vec::new();
        for command in commands {
            match command {
                Command::Submit(submission) => scheduler.submit(*submission),
                Command::Stats(reply) => asked.push(reply),
            }
        }
        if closed {
            return scheduler.end_all(&Ok(FinishReason::Cancelled));
        }
        scheduler.heed(&noted);
        scheduler.expire();
        let stats = scheduler.stats();
        inbox.set_recent(stats);
        for reply in asked {
            reply(stats);
        }
        patience = Duration::ZERO;
        if !scheduler.step() {
            inbox.rest();
            patience = scheduler.patience();
        }
    }
}
