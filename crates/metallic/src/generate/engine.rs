//! The engine: a program on a thread of its own, and the handle to it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use metallic_core::{Program, StateLayout};
use metallic_telemetry::{self as telemetry, Event, emit};
use serde::{Deserialize, Serialize};

use super::hook::panic_message;
use super::pool::blocks_for;
use super::request::{HiddenSink, Outlet};
use super::scheduler::{Scheduler, tokens_in};
use super::sequence::Submission;
use super::{Detokenize, EngineError, FinishReason, Generation, Options, Request, Sampling};
use crate::adapter::AdapterShare;
use crate::telemetry::tell;

/// What the engine has to know of the model, and its limits.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Most tokens of one sequence, prompt and answer together.
    pub context_length: usize,
    /// Logits in a row.
    pub vocab_size: usize,
    /// What the program keeps between steps.
    pub states: StateLayout,
    /// Bytes the cache may grow to, all sequences together.
    pub kv_budget_bytes: usize,
    /// Most tokens of one step; a longer prompt is computed in pieces. At least `max_sequences`.
    pub step_tokens: usize,
    /// Most sequences that run at the same time; more wait.
    pub max_sequences: usize,
    /// Tokens with which the model ends an answer.
    pub end_tokens: Vec<u32>,
    /// Keeps the cache of what was computed and reuses it where a prompt begins the same way.
    pub prefix_cache: bool,
    /// The program's adapters, each with how much of it a request takes that does not say.
    pub adapters: Vec<AdapterShare>,
    /// Bytes of memory there are for all together, where that is known: for those who watch.
    pub memory_bytes: Option<u64>,
}

metallic_core::setters!(EngineConfig {
    context_length: usize,
    vocab_size: usize,
    states: StateLayout,
    kv_budget_bytes: usize,
    step_tokens: usize,
    max_sequences: usize,
    end_tokens: Vec<u32>,
    prefix_cache: bool,
    adapters: Vec<AdapterShare>,
    memory_bytes: impl Into<Option<u64>>,
});

/// Tokens of a step, where nothing else is asked for.
pub(crate) const STEP_TOKENS: usize = 512;

impl EngineConfig {
    /// The usual limits: steps of 512 tokens, 16 sequences, a cache for one full context.
    pub fn new(context_length: usize, vocab_size: usize, states: StateLayout) -> Self {
        Self {
            context_length,
            vocab_size,
            kv_budget_bytes: blocks_for(context_length).saturating_mul(states.block_bytes()),
            states,
            step_tokens: STEP_TOKENS,
            max_sequences: 16,
            end_tokens: Vec::new(),
            prefix_cache: true,
            adapters: Vec::new(),
            memory_bytes: None,
        }
    }

    fn validate(&self) -> Result<(), EngineError> {
        if self.context_length < 2 {
            return Err(EngineError::parameter("context_length", self.context_length, "2 or more"));
        }
        if self.vocab_size == 0 {
            return Err(EngineError::parameter("vocab_size", 0, "1 or more"));
        }
        if self.max_sequences == 0 {
            return Err(EngineError::parameter("max_sequences", 0, "1 or more"));
        }
        if self.step_tokens < self.max_sequences {
            return Err(EngineError::parameter("step_tokens", self.step_tokens, "at least max_sequences"));
        }
        if self.block_limits().far == 0 {
            return Err(self.over_budget(1));
        }
        Ok(())
    }

    /// How much of each adapter a request takes.
    fn mix(&self, asked: Option<&[AdapterShare]>) -> Result<Vec<f32>, EngineError> {
        let Some(asked) = asked else { return Ok(self.adapters.iter().map(|a| a.scale).collect()) };
        let mut mix = vec![0.0; self.adapters.len()];
        for AdapterShare { name, scale } in asked {
            let Some(index) = self.adapters.iter().position(|adapter| adapter.name == *name) else {
                let known = self.adapters.iter().map(|adapter| adapter.name.as_str()).collect::<Vec<_>>();
                return Err(EngineError::Adapter { name: name.clone(), known: known.join(", ") });
            };
            mix[index] += scale;
            // Two large numbers may be none together.
            if !mix[index].is_finite() {
                return Err(EngineError::parameter("the scale of an adapter", mix[index], "a number"));
            }
        }
        Ok(mix)
    }

    /// Checks a request and says how many tokens its prompt and answer may have together.
    fn most_tokens(&self, request: &Request, has_text: bool) -> Result<usize, EngineError> {
        let (prompt, vocab) = (request.prompt.len(), self.vocab_size);
        let Options { max_tokens, stop, logprobs, sampling, .. } = &request.options;
        if prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt >= self.context_length {
            return Err(EngineError::PromptTooLong { tokens: prompt, context: self.context_length });
        }
        if let Some((index, &id)) = request.prompt.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { index, id, vocab });
        }
        if *max_tokens == Some(0) {
            return Err(EngineError::parameter("max_tokens", 0, "1 or more"));
        }
        if let Some(top) = logprobs.filter(|top| *top > vocab) {
            return Err(EngineError::parameter("logprobs", top, "at most the size of the vocabulary"));
        }
        if stop.iter().any(String::is_empty) {
            return Err(EngineError::parameter("stop", "an empty string", "text"));
        }
        if !stop.is_empty() && !has_text {
            return Err(EngineError::NoTokenizer);
        }
        sampling.validate(vocab)?;
        // The last token of an answer is never put into the cache.
        let capacity = tokens_in(self.block_limits().far).saturating_add(1);
        let wanted = prompt.saturating_add(max_tokens.unwrap_or(1)).min(self.context_length);
        if wanted > capacity {
            return Err(self.over_budget(wanted - 1));
        }
        Ok(match max_tokens {
            Some(_) => wanted,
            None => self.context_length.min(capacity),
        })
    }
}

/// What the engine is doing, at one moment between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// Sequences that take part in steps.
    pub running: usize,
    /// Requests that wait for room.
    pub waiting: usize,
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
    /// How often a sequence was set aside for lack of cache.
    pub preemptions: u64,
}

enum Command {
    Submit(Box<Submission>),
    Stats(Sender<EngineStats>),
}

/// Runs requests on a program, many in one step. Dropping it cancels what is under way and frees the program.
pub struct Engine {
    config: EngineConfig,
    has_text: bool,
    /// `None` only while dropping.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// An engine that yields token ids without text.
    pub fn new(program: Box<dyn Program>, config: EngineConfig) -> Result<Self, EngineError> {
        Self::start(program, config, None)
    }

    /// An engine that yields text with its tokens.
    pub fn with_text(
        program: Box<dyn Program>,
        config: EngineConfig,
        text: Arc<dyn Detokenize>,
    ) -> Result<Self, EngineError> {
        Self::start(program, config, Some(text))
    }

    fn start(
        program: Box<dyn Program>,
        config: EngineConfig,
        text: Option<Arc<dyn Detokenize>>,
    ) -> Result<Self, EngineError> {
        config.validate()?;
        let (commands, inbox) = channel();
        let (limits, has_text) = (config.clone(), text.is_some());
        let (ready, started) = channel();
        let subscriber = tell::subscriber();
        let thread = std::thread::Builder::new()
            .name("metallic-engine".to_owned())
            .spawn(move || {
                tell::with_subscriber(&subscriber, || {
                    match Scheduler::new(program, limits, text.as_deref()) {
                        Ok(scheduler) => {
                            // Whoever starts the engine waits for this.
                            let _ = ready.send(Ok(()));
                            serve(scheduler, &inbox);
                        }
                        Err(error) => {
                            let _ = ready.send(Err(error));
                        }
                    }
                });
            })
            .map_err(|error| EngineError::Thread { reason: error.to_string() })?;
        started.recv().unwrap_or(Err(EngineError::Gone))?;
        Ok(Self { config, has_text, commands: Some(commands), thread: Some(thread) })
    }

    /// The limits it was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Checks a request and queues it. The answer comes through the returned iterator.
    pub fn submit(&self, mut request: Request) -> Result<Generation, EngineError> {
        let most_tokens = self.config.most_tokens(&request, self.has_text)?;
        let mix = self.config.mix(request.options.adapters.as_deref())?;
        let (outlet, mut generation) = Outlet::pair();
        generation.tell_apart(request.reasoning.take());
        let (seed, at, id) = (arbitrary_seed(), Instant::now(), tell::next_request());
        let prompt_tokens = request.prompt.len() as u64;
        emit(|| Event::Request(telemetry::Request { id, prompt_tokens, ..telemetry::Request::default() }));
        self.send(Command::Submit(Box::new(Submission { request, most_tokens, mix, seed, outlet, at, id })))?;
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
        let mut request = Request::new(tokens).prompt_logits(true).max_tokens(1);
        let needed = request.prompt.len();
        let (sender, rows) = channel();
        request.hidden = Some(HiddenSink(Box::new(move |row| {
            // Whoever asked waits for the end below.
            let _ = sender.send(row.to_vec());
        })));
        self.submit(request)?.complete()?;
        let rows: Vec<Vec<f32>> = rows.try_iter().collect();
        // Fewer where the engine was dropped meanwhile.
        if rows.len() == needed { Ok(rows) } else { Err(EngineError::Gone) }
    }

    /// What the engine is doing. Cancellations made before this call are already carried out in the answer.
    pub fn stats(&self) -> Result<EngineStats, EngineError> {
        let (reply, answer) = channel();
        self.send(Command::Stats(reply))?;
        answer.recv().map_err(|_| EngineError::Gone)
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        let commands = self.commands.as_ref().ok_or(EngineError::Gone)?;
        commands.send(command).map_err(|_| EngineError::Gone)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // The thread catches its own panics and has told the callers.
            let _ = thread.join();
        }
    }
}

/// A seed for a request that names none.
fn arbitrary_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The engine's thread. A panic ends it, and every caller is told.
fn serve(mut scheduler: Scheduler<'_>, inbox: &Receiver<Command>) {
    let served = catch_unwind(AssertUnwindSafe(|| serve_until_closed(&mut scheduler, inbox)));
    if let Err(panic) = served {
        let message = panic_message(panic.as_ref());
        scheduler.abandon(&EngineError::Panicked { message });
    }
}

fn serve_until_closed(scheduler: &mut Scheduler<'_>, inbox: &Receiver<Command>) {
    let mut asked = Vec::new();
    loop {
        let mut next = if scheduler.is_idle() {
            inbox.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            inbox.try_recv()
        };
        loop {
            match next {
                Ok(Command::Submit(submission)) => scheduler.submit(*submission),
                Ok(Command::Stats(reply)) => asked.push(reply),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return scheduler.end_all(&Ok(FinishReason::Cancelled)),
            }
            next = inbox.try_recv();
        }
        scheduler.sweep_cancelled();
        for reply in asked.drain(..) {
            // Whoever asked may have gone.
            let _ = reply.send(scheduler.stats());
        }
        scheduler.step();
    }
}
