//! One request on its way through the engine.

mod format;
mod guessing;
mod prefix;
mod record;

use std::time::Instant;

use metallic_core::sample::Choices;
use metallic_core::{BLOCK_TOKENS, Program, RunStats};
use metallic_telemetry::Phase;

use super::cache::{KvCache, Table};
use super::flight::Member;
use super::generation::Outlet;
use super::hook::{self, Hook};
use super::inbox::Place;
use super::pool::Chain;
use super::request::HiddenSink;
use super::sample::{Sampler, Scratch, logprobs};
use super::snapshots::Snapshots;
use super::speculate::Guess;
use super::text::TextStream;
use super::{
    Detokenize, EngineError, Event, FinishReason, Finished, Logprob, PromptToken, Request, StopMatch, Token,
};
pub(super) use format::FormatWork;
use record::Record;

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
    /// Its place among those under way.
    pub(super) place: Place,
    pub(super) at: Instant,
    /// Its number in this process.
    pub(super) id: u64,
}

/// A request in the engine: its tokens, its place in the cache, and what its answer needs.
pub(super) struct Sequence<'t> {
    /// Which one it is: no two have the same.
    pub(super) serial: u64,
    pub(super) priority: i32,
    pub(super) deadline: Option<Instant>,
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
    /// Where before that others go on from what it computes: the states there are kept, too.
    pub(super) branches: Vec<usize>,
    /// Whose blocks it waits for.
    pub(super) awaits: Option<Awaited>,
    /// So much is unread that it takes no part in steps.
    pub(super) paused: bool,
    /// The prefix of the answer whose state was kept last.
    kept: Option<Chain>,
    /// How many of `blocks` are known to the pool's index, and the prefix they make.
    pub(super) shared: (usize, Chain),
    /// `tokens` never grows longer than this.
    most_tokens: usize,
    /// How much of each adapter its tokens take.
    pub(super) mix: Vec<f32>,
    /// Tokens that end the answer.
    stop_tokens: Vec<u32>,
    /// How many of the best tokens to report at each place.
    logprobs: Option<usize>,
    /// What was asked about the prompt's tokens, until all is known.
    prompt_rows: Option<PromptRows>,
    sampler: Sampler,
    /// `None` where nothing is guessed ahead.
    pub(super) guess: Option<Guess>,
    /// `None` without a tokenizer.
    text: Option<TextStream<'t>>,
    pub(super) outlet: Outlet,
    /// Set once it has ended; the scheduler then takes it out.
    pub(super) outcome: Option<Outcome>,
    /// What stopped it.
    stop: Option<StopMatch>,
    record: Record,
    place: Option<Place>,
}

/// Another sequence that computes what this one begins with, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) serial: u64,
    /// Tokens that both begin with, in full blocks.
    pub(super) tokens: usize,
}

/// Log-probabilities of a prompt's tokens, as they become known.
struct PromptRows {
    /// How many of the best to report at each place.
    top: usize,
    tokens: Vec<PromptToken>,
}

impl<'t> Sequence<'t> {
    /// A sequence that has not begun. `end_tokens` end its answer unless the request ignores them.
    pub(super) fn new(submission: Submission, end_tokens: &[u32], text: Option<&'t dyn Detokenize>) -> Self {
        let Submission { request, most_tokens, mix, seed, outlet, place, at, id: serial } = submission;
        let Request { prompt, options, prompt_logits, hook, hidden, reasoning: _ } = request;
        let mut stop_tokens = options.stop_tokens;
        if !options.ignore_eos {
            stop_tokens.extend_from_slice(end_tokens);
        }
        // Nobody else sees rows of a prompt.
        let all_rows = prompt_logits && (hook.is_some() || hidden.is_some());
        let prompt_rows = options.prompt_logprobs.map(|top| PromptRows {
            top,
            tokens: prompt.first().map(|id| PromptToken::new(*id, None)).into_iter().collect(),
        });
        Self {
            serial,
            priority: options.priority,
            deadline: options.deadline,
            prompt_len: prompt.len(),
            wanted: if all_rows || prompt_rows.is_some() { 0 } else { prompt.len().saturating_sub(1) },
            tokens: prompt,
            hidden,
            computed: 0,
            hook,
            table: Table::default(),
            slot: 0,
            stops_at_borders: false,
            branches: Vec::new(),
            awaits: None,
            paused: false,
            kept: None,
            shared: (0, Chain::default()),
            most_tokens,
            mix,
            stop_tokens,
            logprobs: options.logprobs,
            prompt_rows,
            sampler: Sampler::new(options.sampling, seed),
            guess: None,
            text: text.map(|text| TextStream::new(text, options.stop)),
            outlet,
            outcome: None,
            stop: None,
            record: Record::new(at),
            place: Some(place),
        }
    }

    /// Tokens to be computed before the next one can be chosen.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Tokens it may bring to the next step: rows of logits are large, so not too many of those that want one.
    pub(super) fn due(&self) -> usize {
        let due = self.pending().min((self.wanted + STEP_ROWS).saturating_sub(self.computed));
        if !self.stops_at_borders {
            return due;
        }
        let border = (self.tokens.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
        let stops = self.branches.iter().copied().chain([border]).filter(|stop| *stop > self.computed);
        stops.min().map_or(due, |stop| due.min(stop - self.computed))
    }

    /// Whether its next token is chosen after one more step of it, and it brings no more than that takes.
    pub(super) fn is_answering(&self) -> bool {
        self.pending() <= 1
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
        self.awaits = None;
    }

    /// Gives all blocks back; the tokens are computed again on the next admission.
    pub(super) fn preempt(&mut self, cache: &mut KvCache) {
        self.restart(cache);
        self.record.preemptions += 1;
    }

    /// Forgets what was computed, and gives all blocks back.
    pub(super) fn restart(&mut self, cache: &mut KvCache) {
        cache.give_back(&mut self.table);
        self.forget_guesses();
        self.kept = None;
        self.awaits = None;
        self.branches.clear();
        self.computed = 0;
        self.shared = (0, cache.root(&self.mix));
    }

    /// Forgets its blocks without giving them back: the cache they belong to is no more.
    pub(super) fn forget_blocks(&mut self) {
        self.table = Table::default();
    }

    /// Its part of a step to which it brings `share` tokens; what goes beyond those it has are guesses.
    pub(super) fn member(&self, share: usize) -> Member {
        let end = self.computed + share;
        let (rows, drafts) = (self.rows_until(end), end.saturating_sub(self.tokens.len()));
        Member {
            serial: self.serial,
            share,
            drafts,
            answers: self.is_answering(),
            rows,
            first_row: 0,
            fed: None,
            ahead: 0,
        }
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
        let branch = self.branches.contains(&self.computed);
        self.branches.retain(|branch| *branch > self.computed);
        if !self.stops_at_borders || !(full || branch) {
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
        if self.room() == 0 {
            self.outcome = Some(Ok(FinishReason::Length));
        } else {
            self.accept(id, None);
        }
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
        if let Some(rows) = &mut self.prompt_rows {
            if let Some(id) = self.tokens[..self.prompt_len].get(seen.len()) {
                let (own, top_logprobs) = logprobs(scratch, logits, *id, rows.top);
                rows.tokens.push(PromptToken { id: *id, logprob: Some(own), top_logprobs });
            }
            if seen.len() >= self.prompt_len
                && let Some(rows) = self.prompt_rows.take()
            {
                self.outlet.send(Ok(Event::Prompt(rows.tokens)));
            }
        }
        let chooses = seen.len() == self.tokens.len();
        let place = hook::Place {
            tokens: seen,
            prompt_len: self.prompt_len,
            room: self.most_tokens.saturating_sub(seen.len()),
            stop_tokens: &self.stop_tokens,
        };
        // Where only the prompt was asked for, no token is chosen, and no format looked at.
        let full = self.tokens.len() >= self.most_tokens;
        let hooked =
            self.hook.as_mut().map_or(Ok(Some(logits)), |hook| hook.run(&place, chooses && !full, logits));
        let chosen = match hooked {
            Ok(_) if !chooses => return,
            Ok(_) if full => {
                self.outcome = Some(Ok(FinishReason::Length));
                return;
            }
            Ok(Some(hooked)) => self.sampler.sample(scratch, hooked, seen, draw),
            Ok(None) => {
                self.outcome = Some(Ok(FinishReason::Stop));
                return;
            }
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
            && self.prompt_rows.is_none()
            && self.sampler.is_for_device()
    }

    /// Whether its next token can be chosen before it is known which one came before.
    pub(super) fn may_be_chased(&self) -> bool {
        self.is_chosen_by_device() && !self.sampler.has_penalties()
    }

    /// Appends how its next token is chosen, and those after its guesses; `ahead` tokens of its answer are still being chosen.
    pub(super) fn pack_choices(
        &self,
        ahead: usize,
        scratch: &mut Scratch,
        choices: &mut Choices,
    ) -> Result<(), EngineError> {
        let draw = (self.tokens.len() + ahead - self.prompt_len) as u64;
        self.sampler.pack(scratch, &self.tokens, draw, choices)?;
        let draft = self.draft();
        if draft.is_empty() {
            return Ok(());
        }
        // A choice counts only where the guesses before it were right.
        let history = [&self.tokens[..], draft].concat();
        for (index, draw) in (1..=draft.len()).zip(draw + 1..) {
            let seen = self.tokens.len() + index;
            self.sampler.pack(scratch, &history[..seen], draw, choices)?;
        }
        Ok(())
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
        let guessed = self.guess.as_mut().is_some_and(|guess| guess.judge(&self.tokens, id));
        if self.stop_tokens.contains(&id) {
            let named = self.text.as_ref().and_then(|text| text.stop_of(id));
            self.stop = Some(named.map_or(StopMatch::Token(id), StopMatch::Text));
            self.outcome = Some(Ok(FinishReason::Stop));
            return;
        }
        self.wanted = self.tokens.len();
        self.tokens.push(id);
        // What was guessed is in the cache already.
        self.computed += usize::from(guessed);
        let (text, stopped) = self.text.as_mut().map(|text| text.push(id)).unwrap_or_default();
        let (logprob, top_logprobs) = chances.map(|(own, top)| (Some(own), top)).unwrap_or_default();
        self.outlet.send(Ok(Event::Token(Token { id, text, logprob, top_logprobs, ..Token::default() })));
        if let Some(stop) = stopped {
            self.stop = Some(StopMatch::Text(stop));
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
            // What stopped it is told of answers that did stop, and were not cancelled meanwhile.
            let stop = self.stop.take().filter(|_| reason == FinishReason::Stop);
            Event::Finished(Finished { reason, stop, text, reasoning: String::new(), stats: self.stats() })
        });
        // Whoever hears of the end finds its place free.
        self.place = None;
        self.outlet.send(event);
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
        let inbox = std::sync::Arc::<super::super::inbox::Inbox>::default();
        let (outlet, _generation) = Outlet::pair(1, std::sync::Arc::clone(&inbox));
        let place = inbox.place(1, 0).expect("room");
        let (request, mix, at) = (Request::new([1, 2]), vec![0.5], Instant::now());
        let submission = Submission { request, most_tokens: 9, mix, seed: 0, outlet, place, at, id: 1 };
        let mut sequence = Sequence::new(submission, &[], None);
        sequence.restart(&mut cache);
        let root = cache.root(&[0.5]);
        assert_ne!(root, Chain::default());
        assert_eq!((sequence.computed, sequence.shared), (0, (0, root)));
    }
}
