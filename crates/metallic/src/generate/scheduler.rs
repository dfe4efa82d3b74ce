//! The step loop: which tokens of which sequences run next, and what becomes of the results.

use std::collections::VecDeque;
use std::ops::Range;

use metallic_core::sample::argmax;
use metallic_core::{BLOCK_TOKENS, Program, RunStats, SequenceSpan, Step};

use super::engine::{EngineConfig, EngineStats};
use super::pool::{BlockPool, Chain, blocks_for};
use super::sample::Scratch;
use super::sequence::{Outcome, Sequence, Submission};
use super::{Detokenize, EngineError, FinishReason};

/// All sequences, the program and its cache.
pub(super) struct Scheduler<'t> {
    program: Box<dyn Program>,
    config: EngineConfig,
    text: Option<&'t dyn Detokenize>,
    pool: BlockPool,
    /// In order of arrival; preempted sequences stand before those that never ran.
    waiting: VecDeque<Sequence<'t>>,
    /// In order of arrival: the last is the youngest.
    running: Vec<Sequence<'t>>,
    /// Tokens each running sequence brings to this step.
    shares: Vec<usize>,
    /// Steps that are given to the device at once.
    ahead: usize,
    inputs: Inputs,
    scratch: Scratch,
    steps: u64,
    computed_tokens: u64,
    preemptions: u64,
}

/// What a step is made of, kept to reuse the memory.
#[derive(Default)]
struct Inputs {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    outputs: Vec<u32>,
}

impl<'t> Scheduler<'t> {
    pub(super) fn new(
        program: Box<dyn Program>,
        config: EngineConfig,
        text: Option<&'t dyn Detokenize>,
    ) -> Self {
        Self {
            program,
            text,
            pool: BlockPool::new(config.block_limit()),
            config,
            waiting: VecDeque::new(),
            running: Vec::new(),
            shares: Vec::new(),
            ahead: 1,
            inputs: Inputs::default(),
            scratch: Scratch::default(),
            steps: 0,
            computed_tokens: 0,
            preemptions: 0,
        }
    }

    pub(super) fn submit(&mut self, submission: Submission) {
        self.waiting.push_back(Sequence::new(submission, &self.config.end_tokens, self.text));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(super) fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            held_blocks: self.pool.held(),
            cached_blocks: self.pool.idle(),
            reserved_blocks: self.pool.reserved(),
            block_limit: self.config.block_limit(),
            steps: self.steps,
            computed_tokens: self.computed_tokens,
            preemptions: self.preemptions,
        }
    }

    /// Runs one step, if there is anything to do.
    pub(super) fn step(&mut self) {
        self.admit();
        self.share_step();
        self.ahead = self.steps_ahead();
        self.make_room();
        // Making room may have set a sequence aside, and with it the reason to look ahead.
        if self.ahead > 1 && self.shares.len() == self.running.len() && self.shares.iter().all(|s| *s == 1) {
            self.run_ahead();
        } else {
            self.run();
        }
        self.sweep();
    }

    /// How many steps may be given to the device at once: every sequence takes its best tokens, none is about to end,
    /// and nobody waits to be let in.
    fn steps_ahead(&self) -> usize {
        let most = self.program.steps_ahead();
        if most < 2 || !self.waiting.is_empty() {
            return 1;
        }
        let may = |s: &Sequence<'_>| s.pending() == 1 && s.is_greedy() && s.outcome.is_none();
        if !self.running.iter().all(may) {
            return 1;
        }
        self.running.iter().map(Sequence::room).min().unwrap_or(1).min(most)
    }

    /// Runs several steps in one go. Tokens past an end are dropped; their places in the cache are written again.
    fn run_ahead(&mut self) {
        let steps = self.ahead;
        let count = self.running.len();
        let tokens: Vec<u32> = self.running.iter().filter_map(|s| s.tokens.last().copied()).collect();
        let positions: Vec<u32> = self.running.iter().map(|s| s.computed as u32).collect();
        let outputs: Vec<u32> = (0..count as u32).collect();
        let sequences: Vec<SequenceSpan<'_>> = self
            .running
            .iter()
            .enumerate()
            .map(|(i, s)| SequenceSpan { tokens: i..i + 1, past: s.computed, blocks: &s.blocks })
            .collect();
        let step = Step { tokens: &tokens, positions: &positions, sequences: &sequences, outputs: &outputs };
        let mut chosen = Vec::with_capacity(steps * count);
        let Ok(cost) = self.program.run_ahead(&step, steps, &mut chosen) else {
            // Whatever failed, one step at a time says which sequence it was.
            return self.run();
        };
        if chosen.len() != steps * count {
            let error = EngineError::Output { found: chosen.len(), needed: steps * count };
            return self.fail(0..count, &error);
        }
        self.steps += steps as u64;
        self.computed_tokens += (steps * count) as u64;
        let vocab = self.config.vocab_size;
        let last = self.program.output(0).chunks_exact(vocab);
        for ((i, sequence), logits) in self.running.iter_mut().enumerate().zip(last) {
            // A row without a number stays one to the end, so looking at the last is enough.
            if argmax(logits) != chosen.get((steps - 1) * count + i).copied() {
                sequence.outcome = Some(Err(EngineError::no_candidate(logits)));
                continue;
            }
            for row in chosen.chunks_exact(count) {
                sequence.advance(1, &RunStats::default());
                if self.config.prefix_cache {
                    sequence.share_full_blocks(&mut self.pool);
                }
                sequence.accept(row[i], None);
                if sequence.outcome.is_some() {
                    break;
                }
            }
            sequence.bill(&cost);
        }
    }

    /// Ends the requests that were cancelled.
    pub(super) fn sweep_cancelled(&mut self) {
        for sequence in self.running.iter_mut().chain(&mut self.waiting) {
            if sequence.outlet.is_cancelled() {
                sequence.outcome = Some(Ok(FinishReason::Cancelled));
            }
        }
        self.sweep();
    }

    /// Ends every request the same way.
    pub(super) fn end_all(&mut self, outcome: &Outcome) {
        for mut sequence in self.running.drain(..).chain(self.waiting.drain(..)) {
            self.pool.give_back(&mut sequence.blocks);
            sequence.end(outcome.clone());
        }
    }

    /// Tells every caller of a failure without touching the cache, which may be in any state.
    pub(super) fn abandon(&mut self, error: &EngineError) {
        for sequence in self.running.drain(..).chain(self.waiting.drain(..)) {
            sequence.outlet.send(Err(error.clone()));
        }
    }

    /// Lets waiting sequences in, first come first served, while the cache has room for all their tokens, for what the
    /// running ones still have to compute, and for one more block of each: so that prefill is not begun in vain.
    fn admit(&mut self) {
        while self.running.len() < self.config.max_sequences
            && let Some(mut sequence) = self.waiting.pop_front()
        {
            let (mut blocks, chain) = if self.config.prefix_cache {
                self.pool.take_prefix(&sequence.tokens)
            } else {
                (Vec::new(), Chain::default())
            };
            let needed = blocks_for(sequence.tokens.len()) - blocks.len();
            let promised: usize =
                self.running.iter().map(|s| blocks_for(s.tokens.len()) + 1 - s.blocks.len()).sum();
            if !self.running.is_empty() && self.pool.available() < needed + promised {
                self.pool.give_back(&mut blocks);
                self.waiting.push_front(sequence);
                return;
            }
            sequence.admit(blocks, chain);
            self.running.push(sequence);
        }
    }

    /// Shares the step's tokens out.
    fn share_step(&mut self) {
        let pending = self.running.iter().map(Sequence::pending);
        share_tokens(pending, self.config.step_tokens, &mut self.shares);
    }

    /// Takes the blocks the step writes to, oldest sequence first; when they run out the youngest is set aside.
    fn make_room(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &mut self.running[i];
            let tokens = sequence.computed + self.shares[i] + (self.ahead - 1);
            if sequence.blocks.len() >= blocks_for(tokens) {
                i += 1;
            } else if let Some(block) = self.pool.take(self.program.as_mut()) {
                sequence.blocks.push(block);
            } else if self.ahead > 1 {
                self.ahead = 1;
            } else if self.running.len() > 1 {
                self.preempt_youngest();
            } else {
                self.running[i].outcome = Some(Err(self.no_room(i)));
                self.shares[i] = 0;
                return;
            }
        }
    }

    fn preempt_youngest(&mut self) {
        if let Some(mut youngest) = self.running.pop() {
            self.shares.pop();
            youngest.preempt(&mut self.pool);
            self.preemptions += 1;
            self.waiting.push_front(youngest);
        }
    }

    /// Why a sequence that has the cache to itself cannot have another block.
    fn no_room(&self, i: usize) -> EngineError {
        match &self.pool.growth_error {
            Some(error) => error.clone().into(),
            None => self.config.over_budget(self.running[i].computed + self.shares[i]),
        }
    }

    /// Runs the step. If it fails, each sequence runs alone, so that only those that fail by themselves end.
    fn run(&mut self) {
        let all = 0..self.running.len();
        let active = self.shares.iter().filter(|share| **share > 0).count();
        if active == 0 {
            return;
        }
        match self.run_together(all.clone()) {
            Ok(cost) => self.absorb(all, &cost),
            Err(error) if active == 1 => self.fail(all, &error),
            Err(_) => {
                for i in all.filter(|i| self.shares[*i] > 0).collect::<Vec<_>>() {
                    match self.run_together(i..i + 1) {
                        Ok(cost) => self.absorb(i..i + 1, &cost),
                        Err(error) => self.fail(i..i + 1, &error),
                    }
                }
            }
        }
    }

    fn run_together(&mut self, members: Range<usize>) -> Result<RunStats, EngineError> {
        let Inputs { tokens, positions, outputs } = &mut self.inputs;
        tokens.clear();
        positions.clear();
        outputs.clear();
        let mut sequences = Vec::with_capacity(members.len());
        for i in members.filter(|i| self.shares[*i] > 0) {
            let sequence = &self.running[i];
            let cached = sequence.computed..sequence.computed + self.shares[i];
            let start = tokens.len();
            tokens.extend_from_slice(&sequence.tokens[cached.clone()]);
            positions.extend(cached.clone().map(|p| p as u32));
            sequences.push(SequenceSpan {
                tokens: start..tokens.len(),
                past: cached.start,
                blocks: &sequence.blocks,
            });
            if cached.end == sequence.tokens.len() {
                outputs.push(tokens.len() as u32 - 1);
            }
        }
        let step = Step { tokens, positions, sequences: &sequences, outputs };
        let cost = self.program.run(&step)?;
        let (found, needed) = (self.program.output(0).len(), outputs.len() * self.config.vocab_size);
        // A program may leave its last result in place when a step asks for none.
        if !outputs.is_empty() && found != needed {
            return Err(EngineError::Output { found, needed });
        }
        self.steps += 1;
        self.computed_tokens += tokens.len() as u64;
        Ok(cost)
    }

    /// Takes the results of a step into the sequences that made it.
    fn absorb(&mut self, members: Range<usize>, cost: &RunStats) {
        let mut rows = self.program.output(0).chunks_exact(self.config.vocab_size);
        let shares = &self.shares[members.clone()];
        for (sequence, &share) in
            self.running[members].iter_mut().zip(shares).filter(|(_, share)| **share > 0)
        {
            sequence.advance(share, cost);
            if self.config.prefix_cache {
                sequence.share_full_blocks(&mut self.pool);
            }
            if sequence.pending() == 0
                && let Some(logits) = rows.next()
            {
                sequence.choose(logits, &mut self.scratch);
            }
        }
    }

    fn fail(&mut self, members: Range<usize>, error: &EngineError) {
        let shares = &self.shares[members.clone()];
        for (sequence, _) in self.running[members].iter_mut().zip(shares).filter(|(_, share)| **share > 0) {
            sequence.outcome = Some(Err(error.clone()));
        }
    }

    /// Takes out the sequences that have ended: all their blocks are given back before any caller hears of it.
    fn sweep(&mut self) {
        let ended = |s: &mut Sequence<'_>| s.outcome.is_some();
        let mut done: Vec<Sequence<'_>> = self.running.extract_if(.., ended).collect();
        for mut sequence in std::mem::take(&mut self.waiting) {
            if ended(&mut sequence) { done.push(sequence) } else { self.waiting.push_back(sequence) }
        }
        for sequence in &mut done {
            self.pool.give_back(&mut sequence.blocks);
        }
        for mut sequence in done {
            if let Some(outcome) = sequence.outcome.take() {
                sequence.end(outcome);
            }
        }
    }
}

/// Shares `budget` tokens out: one to each sequence that waits for its next token only, then the rest to those with more
/// to compute, oldest first.
fn share_tokens(pending: impl Iterator<Item = usize> + Clone, budget: usize, shares: &mut Vec<usize>) {
    let decoding = pending.clone().filter(|n| *n == 1).count();
    let mut left = budget.saturating_sub(decoding);
    shares.clear();
    shares.extend(pending.map(|n| {
        if n == 1 {
            return 1;
        }
        let share = n.min(left);
        left -= share;
        share
    }));
}

/// Tokens a cache of so many blocks holds.
pub(super) fn tokens_in(blocks: usize) -> usize {
    blocks.saturating_mul(BLOCK_TOKENS)
}

#[cfg(test)]
mod tests {
    use super::share_tokens;

    fn shares(pending: &[usize], budget: usize) -> Vec<usize> {
        let mut shares = vec![99];
        share_tokens(pending.iter().copied(), budget, &mut shares);
        shares
    }

    #[test]
    fn decoding_comes_first_and_prefill_shares_what_is_left_oldest_first() {
        assert_eq!(shares(&[100, 1, 50, 1], 112), [100, 1, 10, 1]);
        assert_eq!(shares(&[100, 1, 50, 1], 64), [62, 1, 0, 1]);
        assert_eq!(shares(&[100, 1], 1), [0, 1]);
        assert_eq!(shares(&[3, 4], 512), [3, 4]);
        assert!(shares(&[], 8).is_empty());
    }
}
