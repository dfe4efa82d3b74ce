//! A smaller model that guesses: its program, its cache, and what of each sequence is in it.

use std::collections::HashMap;
use std::time::Instant;

use metallic_core::{BLOCK_TOKENS, Program, SequenceSpan, Step, Wanted};

use super::adapt::Costs;
use crate::generate::EngineError;
use crate::generate::cache::{KvCache, Table};
use crate::generate::config::EngineConfig;
use crate::generate::pool::Chain;
use crate::generate::sample::{Sampler, Scratch};
use crate::model::LOGITS;

/// A smaller model that guesses for an [`Engine`](crate::generate::Engine): it has the same vocabulary, and keeps no recurrent
/// states, which could not be taken back where a guess was wrong.
pub struct Draft {
    program: Box<dyn Program>,
    config: EngineConfig,
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Draft {
    /// A program that guesses. Of `config` count the context, the vocabulary, what the program keeps and the budget for that,
    /// and the size of steps.
    pub fn new(program: Box<dyn Program>, config: EngineConfig) -> Result<Self, EngineError> {
        config.validate()?;
        if config.states.is_recurrent() {
            let needed = "one whose states can be taken back: without recurrent layers";
            return Err(EngineError::parameter("the draft model", "recurrent", needed));
        }
        Ok(Self { program, config })
    }
}

/// What one sequence is asked for.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) serial: u64,
    /// Prompt and answer.
    pub(super) tokens: &'a [u32],
    pub(super) prompt_len: usize,
    pub(super) sampler: &'a Sampler,
    /// Most guesses.
    pub(super) most: usize,
    /// Seconds that guesses may save it: to know what it has said so far must not take more.
    pub(super) worth: f64,
}

/// Tokens that are caught up with in a step as long as it is not known what they take, and at least.
const CAUGHT_UP: [usize; 2] = [32, 8];
/// How much the last step counts in what they take.
const FRESH: f64 = 0.25;

/// What of a sequence is in the cache.
#[derive(Debug, Default)]
struct Held {
    table: Table,
    /// Its tokens, with guesses at the end.
    tokens: Vec<u32>,
    /// Blocks that others may begin with, and the prefix they make.
    shared: (usize, Chain),
}

/// Tokens that one sequence brings to a step of the smaller model.
#[derive(Clone, Copy)]
struct Turn {
    /// Which ask it is for.
    ask: usize,
    tokens: usize,
    /// The token after its last is wanted.
    is_last: bool,
}

/// The smaller model at work.
pub(super) struct Drafter {
    program: Box<dyn Program>,
    config: EngineConfig,
    cache: KvCache,
    held: HashMap<u64, Held>,
    /// What a round of guesses of so many sequences takes.
    pub(super) costs: Costs,
    /// Seconds that a token takes that it catches up with.
    each: Option<f64>,
    scratch: Scratch,
}

impl Drafter {
    pub(super) fn new(draft: Draft) -> Self {
        let Draft { program, config } = draft;
        let near = config.at_once(usize::MAX).near;
        let cache = KvCache::new(&config.states, config.block_limits(), near);
        let (held, costs, scratch) = (HashMap::new(), Costs::default(), Scratch::default());
        Self { program, config, cache, held, costs, each: None, scratch }
    }

    /// Blocks of its cache that sequences have.
    pub(super) fn held_blocks(&self) -> usize {
        self.cache.held().far
    }

    /// Sequences of which something is kept.
    #[cfg(test)]
    pub(super) fn held_for(&self) -> Vec<u64> {
        self.held.keys().copied().collect()
    }

    /// Gives back what sequences have that are gone.
    pub(super) fn keep(&mut self, is_there: impl Fn(u64) -> bool) {
        let gone: Vec<u64> = self.held.keys().copied().filter(|serial| !is_there(*serial)).collect();
        for serial in gone {
            if let Some(mut held) = self.held.remove(&serial) {
                self.cache.give_back(&mut held.table);
            }
        }
    }

    /// Guesses what follows, `rounds` tokens of each at most. Where it has not seen a prompt yet, a piece of that is computed, as
    /// large as `spare` seconds let it be, and nothing is guessed before it knows all of it.
    pub(super) fn draft(
        &mut self,
        asks: &[Ask<'_>],
        rounds: usize,
        spare: f64,
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        let mut drafts = vec![Vec::new(); asks.len()];
        let mut turns = self.catch_up(asks, rounds, spare);
        for round in 0..rounds {
            turns.retain(|turn| round == 0 || drafts[turn.ask].len() == round);
            turns.retain(|turn| round < asks[turn.ask].most || !turn.is_last);
            if turns.is_empty() {
                break;
            }
            let start = Instant::now();
            for turn in &turns {
                let held = self.held.entry(asks[turn.ask].serial).or_default();
                let from = held.tokens.len();
                match drafts[turn.ask].last() {
                    Some(guess) => held.tokens.push(*guess),
                    None => held.tokens.extend_from_slice(&asks[turn.ask].tokens[from..from + turn.tokens]),
                }
            }
            self.run(asks, &turns)?;
            self.choose(asks, &turns, &mut drafts)?;
            let (tokens, seconds) =
                (turns.iter().map(|turn| turn.tokens).sum(), start.elapsed().as_secs_f64());
            if turns.iter().all(|turn| turn.tokens <= 2) {
                self.costs.note(turns.len(), seconds);
            } else {
                self.took(tokens, seconds);
            }
            turns.retain(|turn| turn.is_last);
            for turn in &mut turns {
                turn.tokens = 1;
            }
        }
        Ok(drafts)
    }

    /// Notes what a step took that caught up with so many tokens.
    fn took(&mut self, tokens: usize, seconds: f64) {
        let each = seconds / tokens.max(1) as f64;
        self.each = Some(self.each.map_or(each, |old| old + FRESH * (each - old)));
    }

    /// How many tokens may be caught up with in so many seconds.
    fn fitting(&self, spare: f64) -> usize {
        let [first, least] = CAUGHT_UP;
        let fitting = match self.each {
            _ if spare.is_infinite() => usize::MAX,
            Some(each) => ((spare / each) as usize).max(least),
            None => first,
        };
        fitting.min(self.config.step_tokens)
    }

    /// What each sequence has to bring that the cache does not have, in so far as there is room and time.
    fn catch_up(&mut self, asks: &[Ask<'_>], rounds: usize, spare: f64) -> Vec<Turn> {
        let (mut left, each) = (self.fitting(spare), self.each.unwrap_or(0.0));
        let mut turns = Vec::with_capacity(asks.len());
        for (index, ask) in asks.iter().enumerate() {
            let Self { program, config, cache, held, .. } = self;
            let ahead = rounds.min(ask.most);
            let fits = ask.tokens.len() + ahead <= config.context_length;
            if ahead == 0 || !fits || ask.tokens.iter().any(|id| *id as usize >= config.vocab_size) {
                continue;
            }
            let held = held.entry(ask.serial).or_insert_with(|| {
                let root = cache.root(&[]);
                let (table, chain) = cache.take_prefix(root, ask.tokens, |_| true);
                let known = table.len();
                let tokens = ask.tokens[..known * BLOCK_TOKENS].to_vec();
                Held { table, tokens, shared: (known, chain) }
            });
            let same = held.tokens.iter().zip(ask.tokens).take_while(|(a, b)| a == b).count();
            // Guesses that were wrong are written over.
            let known = same.min(ask.tokens.len() - 1);
            held.tokens.truncate(known);
            held.share(cache, known);
            cache.free_unseen(&mut held.table, known);
            let missing = ask.tokens.len() - known;
            let is_worth_it = missing <= 2 || missing as f64 * each <= ask.worth;
            // A token or two are no catching up: they come with the guesses.
            let tokens = if missing <= 2 { missing } else { missing.min(left) };
            let is_last = tokens == missing;
            let end = known + tokens + if is_last { ahead - 1 } else { 0 };
            if tokens == 0 || !is_worth_it || cache.extend(&mut held.table, end, program.as_mut()).is_none() {
                continue;
            }
            left = left.saturating_sub(tokens);
            turns.push(Turn { ask: index, tokens, is_last });
        }
        turns
    }

    /// Computes the last tokens of each; logits come back of those that want the next.
    fn run(&mut self, asks: &[Ask<'_>], turns: &[Turn]) -> Result<(), EngineError> {
        let (mut tokens, mut positions, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        let mut sequences = Vec::with_capacity(turns.len());
        for turn in turns {
            let Some(held) = self.held.get(&asks[turn.ask].serial) else { continue };
            let (start, end) = (tokens.len(), held.tokens.len());
            let past = end - turn.tokens;
            tokens.extend_from_slice(&held.tokens[past..]);
            positions.extend((past..end).map(|position| position as u32));
            if turn.is_last {
                outputs.push(tokens.len() as u32 - 1);
            }
            let (blocks, near) = (&held.table.far[..], &held.table.near[..]);
            sequences.push(SequenceSpan { tokens: start..tokens.len(), past, blocks, near, slot: 0 });
        }
        let step = Step {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
            wanted: if outputs.is_empty() { Wanted::NONE } else { Wanted::only(LOGITS) },
            ..Step::default()
        };
        self.program.run(&step)?;
        Ok(())
    }

    /// Guesses by the logits of a step. With the same random numbers as the model will choose by: so the two agree as often as
    /// their distributions do.
    fn choose(
        &mut self,
        asks: &[Ask<'_>],
        turns: &[Turn],
        drafts: &mut [Vec<u32>],
    ) -> Result<(), EngineError> {
        let vocab = self.config.vocab_size;
        let wanting = turns.iter().filter(|turn| turn.is_last);
        let (found, needed) = (self.program.output(LOGITS).len(), wanting.clone().count() * vocab);
        if needed > 0 && found != needed {
            return Err(EngineError::Output { found, needed });
        }
        for (row, turn) in wanting.enumerate() {
            let ask = &asks[turn.ask];
            let Some(held) = self.held.get(&ask.serial) else { continue };
            let logits = &self.program.output(LOGITS)[row * vocab..][..vocab];
            let draw = held.tokens.len().saturating_sub(ask.prompt_len) as u64;
            // Where it has nothing to guess, the sequence goes on without.
            if let Ok(id) = ask.sampler.sample(&mut self.scratch, logits, &held.tokens, draw) {
                drafts[turn.ask].push(id);
            }
        }
        Ok(())
    }
}

impl Held {
    /// Makes full blocks of tokens that are certain known to prompts that begin the same way.
    fn share(&mut self, cache: &mut KvCache, certain: usize) {
        let (done, mut chain) = self.shared;
        let full = certain.min(self.tokens.len()) / BLOCK_TOKENS;
        for (index, tokens) in self.tokens.as_chunks().0.iter().enumerate().take(full).skip(done) {
            chain = cache.share(&mut self.table, index, chain, *tokens);
        }
        self.shared = (full.max(done), chain);
    }
}
