//! One request on its way through the engine.

use std::time::Instant;

use metallic_core::{BLOCK_TOKENS, RunStats};

use super::pool::{BlockPool, Chain};
use super::request::Outlet;
use super::sample::{Sampler, Scratch, logprobs};
use super::text::TextStream;
use super::{Detokenize, EngineError, Event, FinishReason, Finished, Logprob, Request, RequestStats, Token};

/// How a request ends.
pub(super) type Outcome = Result<FinishReason, EngineError>;

/// A request on its way to the engine's thread, found valid.
pub(super) struct Submission {
    pub(super) request: Request,
    /// Prompt and answer together may have so many tokens.
    pub(super) most_tokens: usize,
    /// The seed where the request names none.
    pub(super) seed: u64,
    pub(super) outlet: Outlet,
    pub(super) at: Instant,
}

/// A request in the engine: its tokens, its place in the cache, and what its answer needs.
pub(super) struct Sequence<'t> {
    /// Prompt and answer.
    pub(super) tokens: Vec<u32>,
    /// How many of `tokens` are the prompt.
    prompt_len: usize,
    /// How many of `tokens` are in the cache.
    pub(super) computed: usize,
    /// Its cache blocks, in order.
    pub(super) blocks: Vec<u32>,
    /// How many of `blocks` are known to the pool's index, and the prefix they make.
    shared: (usize, Chain),
    /// `tokens` never grows longer than this.
    most_tokens: usize,
    /// Tokens that end the answer.
    stop_tokens: Vec<u32>,
    /// How many of the best tokens to report at each place.
    logprobs: Option<usize>,
    sampler: Sampler,
    /// `None` without a tokenizer.
    text: Option<TextStream<'t>>,
    pub(super) outlet: Outlet,
    /// Set once it has ended; the scheduler then takes it out.
    pub(super) outcome: Option<Outcome>,
    record: Record,
}

/// When things happened and what they cost.
#[derive(Debug)]
struct Record {
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// Tokens chosen, the one that ended the answer included.
    chosen: usize,
    cached_tokens: usize,
    cost: RunStats,
    preemptions: usize,
}

impl Record {
    fn new(submitted: Instant) -> Self {
        Self {
            submitted,
            admitted: None,
            first_token: None,
            last_token: None,
            chosen: 0,
            cached_tokens: 0,
            cost: RunStats::default(),
            preemptions: 0,
        }
    }
}

impl<'t> Sequence<'t> {
    /// A sequence that has not begun. `end_tokens` end its answer unless the request ignores them.
    pub(super) fn new(submission: Submission, end_tokens: &[u32], text: Option<&'t dyn Detokenize>) -> Self {
        let Submission { request, most_tokens, seed, outlet, at } = submission;
        let mut stop_tokens = request.stop_tokens;
        if !request.ignore_eos {
            stop_tokens.extend_from_slice(end_tokens);
        }
        Self {
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            computed: 0,
            blocks: Vec::new(),
            shared: (0, Chain::default()),
            most_tokens,
            stop_tokens,
            logprobs: request.logprobs,
            sampler: Sampler::new(request.sampling, seed),
            text: text.map(|text| TextStream::new(text, request.stop)),
            outlet,
            outcome: None,
            record: Record::new(at),
        }
    }

    /// Tokens to be computed before the next one can be chosen.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Begins, or begins again, with the given blocks already computed.
    pub(super) fn admit(&mut self, blocks: Vec<u32>, chain: Chain) {
        self.computed = blocks.len() * BLOCK_TOKENS;
        self.shared = (blocks.len(), chain);
        self.blocks = blocks;
        if self.record.admitted.is_none() {
            self.record.admitted = Some(Instant::now());
            self.record.cached_tokens = self.computed;
        }
    }

    /// Gives all blocks back; the tokens are computed again on the next admission.
    pub(super) fn preempt(&mut self, pool: &mut BlockPool) {
        pool.give_back(&mut self.blocks);
        self.computed = 0;
        self.shared = (0, Chain::default());
        self.record.preemptions += 1;
    }

    /// Notes that a step has put `tokens` more tokens into the cache.
    pub(super) fn advance(&mut self, tokens: usize, cost: &RunStats) {
        self.computed += tokens;
        self.bill(cost);
    }

    /// Notes what steps it took part in have cost.
    pub(super) fn bill(&mut self, cost: &RunStats) {
        self.record.cost.add(cost);
    }

    /// Makes blocks that became full known to the pool.
    pub(super) fn share_full_blocks(&mut self, pool: &mut BlockPool) {
        let (done, mut chain) = self.shared;
        let full = self.computed / BLOCK_TOKENS;
        let contents = &self.tokens.as_chunks().0[..full];
        for (block, tokens) in self.blocks.iter_mut().zip(contents).skip(done) {
            (*block, chain) = pool.share(*block, chain, *tokens);
        }
        self.shared = (full, chain);
    }

    /// Chooses the next token by the logits of the last, streams it, and notes the end if this is it.
    pub(super) fn choose(&mut self, logits: &[f32], scratch: &mut Scratch) {
        // Neither neighbours in a step nor being set aside changes how many tokens the answer has.
        let draw = (self.tokens.len() - self.prompt_len) as u64;
        let id = match self.sampler.sample(scratch, logits, &self.tokens, draw) {
            Ok(id) => id,
            Err(error) => {
                self.outcome = Some(Err(error));
                return;
            }
        };
        let chances = self.logprobs.map(|top| logprobs(scratch, logits, id, top));
        self.accept(id, chances);
    }

    /// Whether the device may choose its next tokens: the best ones, and nothing is asked about the others.
    pub(super) fn is_greedy(&self) -> bool {
        self.logprobs.is_none() && self.sampler.is_argmax()
    }

    /// Tokens it may still have.
    pub(super) fn room(&self) -> usize {
        self.most_tokens.saturating_sub(self.tokens.len())
    }

    /// Streams a token that was chosen, and notes the end if this is it.
    pub(super) fn accept(&mut self, id: u32, chances: Option<(f32, Vec<Logprob>)>) {
        let now = Instant::now();
        self.record.first_token.get_or_insert(now);
        self.record.last_token = Some(now);
        self.record.chosen += 1;
        if self.stop_tokens.contains(&id) {
            self.outcome = Some(Ok(FinishReason::Stop));
            return;
        }
        self.tokens.push(id);
        let (text, stopped) = self.text.as_mut().map(|text| text.push(id)).unwrap_or_default();
        let (logprob, top_logprobs) = chances.map(|(own, top)| (Some(own), top)).unwrap_or_default();
        self.outlet.send(Ok(Event::Token(Token { id, text, logprob, top_logprobs })));
        if stopped {
            self.text = None;
            self.outcome = Some(Ok(FinishReason::Stop));
        } else if self.tokens.len() >= self.most_tokens {
            self.outcome = Some(Ok(FinishReason::Length));
        }
    }

    /// Tells the caller how it ended. Its blocks must have been given back.
    pub(super) fn end(mut self, outcome: Outcome) {
        let event = outcome.map(|reason| {
            let text = self.text.as_mut().map(TextStream::finish).unwrap_or_default();
            Event::Finished(Finished { reason, text, stats: self.stats() })
        });
        self.outlet.send(event);
    }

    fn stats(&self) -> RequestStats {
        let record = &self.record;
        let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => (to - from).as_secs_f64(),
            _ => 0.0,
        };
        let rate = |count: usize, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let submitted = Some(record.submitted);
        let prefill_s = seconds(record.admitted, record.first_token);
        let decode_s = seconds(record.first_token, record.last_token);
        RequestStats {
            queued_s: seconds(submitted, record.admitted),
            ttft_s: seconds(submitted, record.first_token),
            prompt_tokens: self.prompt_len,
            cached_tokens: record.cached_tokens,
            prefill_s,
            prefill_tps: rate(self.prompt_len - record.cached_tokens, prefill_s),
            generated_tokens: self.tokens.len() - self.prompt_len,
            decode_s,
            decode_tps: rate(record.chosen.saturating_sub(1), decode_s),
            dispatches: record.cost.dispatches,
            submissions: record.cost.submissions,
            allocations: record.cost.allocations,
            arena_bytes: record.cost.arena_bytes,
            bytes_read: record.cost.bytes_read,
            bytes_written: record.cost.bytes_written,
            cache_hits: record.cost.cache_hits,
            cache_misses: record.cost.cache_misses,
            preemptions: record.preemptions,
            seed: self.sampler.seed(),
        }
    }
}
