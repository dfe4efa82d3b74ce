//! One request on its way through the engine.

use std::time::Instant;

use metallic_core::sample::Choices;
use metallic_core::{BLOCK_TOKENS, Program, RunStats};
use metallic_telemetry::{Phase, emit};

use super::cache::{KvCache, Table};
use super::flight::Member;
use super::hook::Hook;
use super::pool::Chain;
use super::request::{HiddenSink, Outlet};
use super::sample::{Sampler, Scratch, logprobs};
use super::snapshots::Snapshots;
use super::text::TextStream;
use super::{Detokenize, EngineError, Event, FinishReason, Finished, Logprob, Request, RequestStats, Token};
use crate::telemetry::tell;

/// Most rows of logits that one sequence takes from a step.
const STEP_ROWS: usize = 128;

/// How a request ends.
pub(super) type Outcome = Result<FinishReason, EngineError>;

/// A request on its way to the engine's thread, found valid.
pub(super) struct Submission {
    pub(super) request: Request,
    /// Prompt and answer together may have so many tokens.
    pub(super) most_tokens: usize,
    /// How much of each adapter it takes.
    pub(super) mix: Vec<f32>,
    /// The seed where the request names none.
    pub(super) seed: u64,
    pub(super) outlet: Outlet,
    pub(super) at: Instant,
    /// Its number in this process.
    pub(super) id: u64,
}

/// A request in the engine: its tokens, its place in the cache, and what its answer needs.
pub(super) struct Sequence<'t> {
    /// Which one it is: no two have the same.
    pub(super) serial: u64,
    /// Prompt and answer.
    pub(super) tokens: Vec<u32>,
    /// How many of `tokens` are the prompt.
    prompt_len: usize,
    /// How many of `tokens` are in the cache.
    pub(super) computed: usize,
    /// The first of `tokens` whose logits are still wanted; never before `computed`'s.
    wanted: usize,
    hook: Option<Hook>,
    /// Takes hidden states in place of an answer.
    hidden: Option<HiddenSink>,
    /// Its cache blocks, in order.
    pub(super) table: Table,
    /// Its recurrent state, where the model has any.
    pub(super) slot: u32,
    /// Its prompt is computed up to the last full block and then further, so that the state there can be kept.
    pub(super) stops_at_borders: bool,
    /// The prefix of the answer whose state was kept last.
    kept: Option<Chain>,
    /// How many of `blocks` are known to the pool's index, and the prefix they make.
    shared: (usize, Chain),
    /// `tokens` never grows longer than this.
    most_tokens: usize,
    /// How much of each adapter its tokens take.
    pub(super) mix: Vec<f32>,
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
        let Submission { request, most_tokens, mix, seed, outlet, at, id: serial } = submission;
        let Request { prompt, options, prompt_logits, hook, hidden, reasoning: _ } = request;
        let mut stop_tokens = options.stop_tokens;
        if !options.ignore_eos {
            stop_tokens.extend_from_slice(end_tokens);
        }
        Self {
            serial,
            prompt_len: prompt.len(),
            // Nobody else sees rows of a prompt.
            wanted: if prompt_logits && (hook.is_some() || hidden.is_some()) {
                0
            } else {
                prompt.len().saturating_sub(1)
            },
            tokens: prompt,
            hidden,
            computed: 0,
            hook,
            table: Table::default(),
            slot: 0,
            stops_at_borders: false,
            kept: None,
            shared: (0, Chain::default()),
            most_tokens,
            mix,
            stop_tokens,
            logprobs: options.logprobs,
            sampler: Sampler::new(options.sampling, seed),
            text: text.map(|text| TextStream::new(text, options.stop)),
            outlet,
            outcome: None,
            record: Record::new(at),
        }
    }

    /// Tokens to be computed before the next one can be chosen.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Tokens it may bring to the next step: rows of logits are large, so not too many of those that want one.
    pub(super) fn due(&self) -> usize {
        let due = self.pending().min((self.wanted + STEP_ROWS).saturating_sub(self.computed));
        let border = (self.tokens.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
        let stops = self.stops_at_borders && self.computed < border;
        if stops { due.min(border - self.computed) } else { due }
    }

    /// How many of its tokens before `end` want their logits.
    pub(super) fn rows_until(&self, end: usize) -> usize {
        end.saturating_sub(self.wanted)
    }

    /// Whether it may begin with blocks that others computed: they come without logits.
    pub(super) fn may_share(&self) -> bool {
        self.wanted + 1 >= self.tokens.len()
    }

    /// Begins, or begins again, with the given blocks already computed.
    pub(super) fn admit(&mut self, table: Table, chain: Chain) {
        self.computed = table.len() * BLOCK_TOKENS;
        self.shared = (table.len(), chain);
        self.table = table;
        if self.record.admitted.is_none() {
            self.record.admitted = Some(Instant::now());
            self.record.cached_tokens = self.computed;
        }
    }

    /// Gives all blocks back; the tokens are computed again on the next admission.
    pub(super) fn preempt(&mut self, cache: &mut KvCache) {
        self.restart(cache);
        self.record.preemptions += 1;
    }

    /// Forgets what was computed, and gives all blocks back.
    pub(super) fn restart(&mut self, cache: &mut KvCache) {
        cache.give_back(&mut self.table);
        self.kept = None;
        self.computed = 0;
        self.shared = (0, cache.root(&self.mix));
    }

    /// Its part of a step to which it brings `share` tokens.
    pub(super) fn member(&self, share: usize) -> Member {
        let rows = self.rows_until(self.computed + share);
        Member { serial: self.serial, share, rows, first_row: 0, fed: None, ahead: 0 }
    }

    /// Notes that a step has put `tokens` more tokens into the cache.
    pub(super) fn advance(&mut self, tokens: usize, cost: &RunStats) {
        self.computed += tokens;
        self.record.cost.add(cost);
    }

    /// Makes blocks that became full known to the cache.
    pub(super) fn share_full_blocks(&mut self, cache: &mut KvCache) {
        let (done, mut chain) = self.shared;
        let full = self.computed / BLOCK_TOKENS;
        for (index, tokens) in self.tokens.as_chunks().0.iter().enumerate().take(full).skip(done) {
            chain = cache.share(&mut self.table, index, chain, *tokens);
        }
        self.shared = (full, chain);
    }

    /// Keeps its recurrent state where it stands at the end of its prompt's full blocks, or of a block of its answer: of those
    /// only the last.
    pub(super) fn keep_state(&mut self, snapshots: &mut Snapshots, program: &mut dyn Program) {
        let border = self.prompt_len.saturating_sub(1) / BLOCK_TOKENS * BLOCK_TOKENS;
        let full = self.computed.is_multiple_of(BLOCK_TOKENS) && self.computed >= border.max(1);
        if !self.stops_at_borders || !full {
            return;
        }
        let prefix = self.shared.1;
        let instead = if self.computed > border { self.kept.replace(prefix) } else { None };
        snapshots.keep(program, self.slot, prefix, instead);
    }

    /// Whether its hidden states are wanted, and no answer.
    pub(super) fn wants_hidden(&self) -> bool {
        self.hidden.is_some()
    }

    /// Takes the hidden state of the next token that wants one; after that of the last it ends.
    pub(super) fn take_hidden(&mut self, row: &[f32]) {
        self.wanted += 1;
        if let Some(HiddenSink(take)) = &mut self.hidden {
            take(row);
        }
        if self.wanted == self.tokens.len() {
            self.outcome = Some(Ok(FinishReason::Length));
        }
    }

    /// Takes the token that the device chose by the logits of its last.
    pub(super) fn take_chosen(&mut self, id: u32) {
        self.wanted += 1;
        self.accept(id, None);
    }

    /// Takes the logits of the next token that wants them; by those of the last it chooses.
    pub(super) fn take_row(&mut self, logits: &[f32], scratch: &mut Scratch) {
        if self.outcome.is_some() {
            return;
        }
        self.wanted += 1;
        let seen = &self.tokens[..self.wanted];
        // Neither neighbours in a step nor being set aside changes how many tokens the answer has.
        let draw = seen.len().saturating_sub(self.prompt_len) as u64;
        let hooked = self.hook.as_mut().map_or(Ok(logits), |hook| hook.run(seen, logits));
        let chosen = match hooked {
            Ok(_) if seen.len() < self.tokens.len() => return,
            Ok(hooked) => self.sampler.sample(scratch, hooked, seen, draw),
            Err(error) => Err(error),
        };
        match chosen {
            Ok(id) => self.choose(id, logits, scratch),
            Err(error) => self.outcome = Some(Err(error)),
        }
    }

    /// Streams the token that was chosen by `logits`.
    fn choose(&mut self, id: u32, logits: &[f32], scratch: &mut Scratch) {
        let chances = self.logprobs.map(|top| logprobs(scratch, logits, id, top));
        self.accept(id, chances);
    }

    /// Whether the device may choose its tokens: nothing is asked about those that were not chosen.
    pub(super) fn is_chosen_by_device(&self) -> bool {
        self.logprobs.is_none()
            && self.hook.is_none()
            && self.hidden.is_none()
            && self.sampler.is_for_device()
    }

    /// Whether its next token can be chosen before it is known which one came before.
    pub(super) fn may_be_chased(&self) -> bool {
        self.is_chosen_by_device() && !self.sampler.has_penalties()
    }

    /// Appends how its next token is chosen; `ahead` tokens of its answer are still being chosen.
    pub(super) fn pack_choice(
        &self,
        ahead: usize,
        scratch: &mut Scratch,
        choices: &mut Choices,
    ) -> Result<(), EngineError> {
        let draw = (self.tokens.len() + ahead - self.prompt_len) as u64;
        self.sampler.pack(scratch, &self.tokens, draw, choices)
    }

    /// Whether one of its tokens is of its answer, and not of its prompt.
    pub(super) fn is_answer(&self, index: usize) -> bool {
        index >= self.prompt_len
    }

    /// Tokens it may still have.
    pub(super) fn room(&self) -> usize {
        self.most_tokens.saturating_sub(self.tokens.len())
    }

    /// Streams a token that was chosen, and notes the end if this is it.
    pub(super) fn accept(&mut self, id: u32, chances: Option<(f32, Vec<Logprob>)>) {
        let is_first = self.record.first_token.is_none();
        self.append(id, chances);
        if is_first {
            self.tell(Phase::FirstToken, "");
        }
    }

    fn append(&mut self, id: u32, chances: Option<(f32, Vec<Logprob>)>) {
        let now = Instant::now();
        self.record.first_token.get_or_insert(now);
        self.record.last_token = Some(now);
        self.record.chosen += 1;
        if self.stop_tokens.contains(&id) {
            self.outcome = Some(Ok(FinishReason::Stop));
            return;
        }
        self.wanted = self.tokens.len();
        self.tokens.push(id);
        let (text, stopped) = self.text.as_mut().map(|text| text.push(id)).unwrap_or_default();
        let (logprob, top_logprobs) = chances.map(|(own, top)| (Some(own), top)).unwrap_or_default();
        self.outlet.send(Ok(Event::Token(Token { id, text, logprob, top_logprobs, ..Token::default() })));
        if stopped {
            self.text = None;
            self.outcome = Some(Ok(FinishReason::Stop));
        } else if self.tokens.len() >= self.most_tokens {
            self.outcome = Some(Ok(FinishReason::Length));
        }
    }

    /// Tells the caller how it ended. Its blocks must have been given back.
    pub(super) fn end(mut self, outcome: Outcome) {
        self.tell_end(&outcome);
        let event = outcome.map(|reason| {
            let text = self.text.as_mut().map(TextStream::finish).unwrap_or_default();
            Event::Finished(Finished { reason, text, reasoning: String::new(), stats: self.stats() })
        });
        self.outlet.send(event);
    }

    /// Tells how far it is, or why it is over.
    pub(super) fn tell(&self, phase: Phase, reason: &'static str) {
        emit(|| {
            let stats = self.stats();
            metallic_telemetry::Event::Request(metallic_telemetry::Request {
                id: self.serial,
                phase,
                prompt_tokens: stats.prompt_tokens as u64,
                cached_tokens: stats.cached_tokens as u64,
                generated_tokens: stats.generated_tokens as u64,
                queued_seconds: stats.queued_s,
                ttft_seconds: stats.ttft_s,
                decode_tps: stats.decode_tps,
                reason: reason.into(),
            })
        });
    }

    /// Tells that it is over.
    pub(super) fn tell_end(&self, outcome: &Outcome) {
        let reason = match outcome {
            Ok(FinishReason::Stop) => "stop",
            Ok(FinishReason::Length) => "length",
            Ok(FinishReason::Cancelled) => "cancelled",
            Err(error) => {
                tell::fault("request", error);
                "failed"
            }
        };
        self.tell(Phase::Ended, reason);
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

#[cfg(test)]
mod tests {
    use metallic_core::{Blocks, DType, KvState, State, StateLayout};

    use super::*;

    #[test]
    fn what_is_computed_again_belongs_to_the_same_mixture_of_adapters() {
        let kv = KvState { kv_heads: 1, key_dim: 4, value_dim: 4, window: None };
        let states = StateLayout::new(DType::F32, vec![Some(State::Kv(kv))]);
        let mut cache = KvCache::new(&states, Blocks::both(4), 0);
        let (outlet, _generation) = Outlet::pair();
        let (request, mix, at) = (Request::new([1, 2]), vec![0.5], Instant::now());
        let submission = Submission { request, most_tokens: 9, mix, seed: 0, outlet, at, id: 1 };
        let mut sequence = Sequence::new(submission, &[], None);
        sequence.restart(&mut cache);
        let root = cache.root(&[0.5]);
        assert_ne!(root, Chain::default());
        assert_eq!((sequence.computed, sequence.shared), (0, (0, root)));
    }
}
