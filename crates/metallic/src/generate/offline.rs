//! What tools ask of a program without an engine: logits, a greedy continuation, perplexity.
//!
//! Each function has the program to itself and uses its cache blocks from the first on.

use std::time::Instant;

use metallic_core::sample::argmax;
use metallic_core::{BLOCK_TOKENS, Program, SequenceSpan, Step, Wanted};
use serde::Serialize;

use super::EngineError;
use super::pool::blocks_for;
use super::sample::log_sum_exp;
use crate::model::LOGITS;
use crate::telemetry::tell::{self, Steps};

/// Tokens of a step that yields one row at most, and of a step that yields a row for each token: logits are large.
const STEP_TOKENS: usize = 512;
const STEP_ROWS: usize = 128;

/// Logits after the last token as one row, or with `all` after every token. Tokens are computed `chunk` at a time.
pub fn logits(
    program: &mut dyn Program,
    tokens: &[u32],
    chunk: usize,
    all: bool,
) -> Result<Vec<Vec<f32>>, EngineError> {
    if tokens.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    if chunk == 0 {
        return Err(EngineError::parameter("chunk", chunk, "1 or more"));
    }
    let mut lone = Lone::new(program, tokens.len())?;
    let mut rows = Vec::with_capacity(if all { tokens.len() } else { 1 });
    for piece in tokens.chunks(chunk) {
        let last = lone.past + piece.len() == tokens.len();
        let wanted = if all { piece.len() } else { usize::from(last) };
        lone.feed(piece, wanted, |row| rows.push(row.to_vec()))?;
    }
    Ok(rows)
}

/// The `n` tokens that follow by taking the best each time; of equals the lowest id. End tokens are tokens like others.
pub fn greedy(program: &mut dyn Program, tokens: &[u32], n: usize) -> Result<Vec<u32>, EngineError> {
    if tokens.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let mut lone = Lone::new(program, (tokens.len() + n).saturating_sub(1))?;
    let mut answer = Vec::with_capacity(n);
    if n == 0 {
        return Ok(answer);
    }
    let mut next = Ok(0);
    for piece in tokens.chunks(STEP_TOKENS) {
        let last = lone.past + piece.len() == tokens.len();
        lone.feed(piece, usize::from(last), |row| next = best(row))?;
    }
    loop {
        let id = next?;
        answer.push(id);
        if answer.len() == n {
            return Ok(answer);
        }
        next = Ok(0);
        lone.feed(&[id], 1, |row| next = best(row))?;
    }
}

fn best(row: &[f32]) -> Result<u32, EngineError> {
    argmax(row).ok_or_else(|| EngineError::no_candidate(row))
}

/// How well a model predicts a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// `e` to the mean negative log-likelihood.
    pub ppl: f64,
    /// Tokens predicted.
    pub tokens: usize,
    /// Windows of the text.
    pub chunks: usize,
}

/// Perplexity by the usual method: the text is cut into windows of `ctx` tokens, an incomplete last one is dropped, the first
/// token of each window is replaced by `bos` where the tokenizer adds one, and the second half of each window is
/// predicted. `on_chunk` sees the figures so far after each window.
pub fn perplexity(
    program: &mut dyn Program,
    tokens: &[u32],
    ctx: usize,
    bos: Option<u32>,
    mut on_chunk: impl FnMut(&Perplexity),
) -> Result<Perplexity, EngineError> {
    if ctx < 3 {
        return Err(EngineError::parameter("ctx", ctx, "3 or more"));
    }
    let mut so_far = Perplexity { ppl: f64::NAN, tokens: 0, chunks: 0 };
    let mut loss = 0.0;
    let mut lone = Lone::new(program, ctx - 1)?;
    for text in tokens.chunks_exact(ctx) {
        let mut window = text.to_vec();
        window[0] = bos.unwrap_or(window[0]);
        loss += window_loss(&mut lone, &window)?;
        so_far.tokens += ctx - 1 - ctx / 2;
        so_far.chunks += 1;
        so_far.ppl = (loss / so_far.tokens as f64).exp();
        on_chunk(&so_far);
    }
    match so_far.chunks {
        0 => Err(EngineError::TextTooShort { tokens: tokens.len(), window: ctx }),
        _ => Ok(so_far),
    }
}

/// Negative log-likelihood of the tokens after the middle of a window, in sum.
fn window_loss(lone: &mut Lone<'_>, window: &[u32]) -> Result<f64, EngineError> {
    let (context, predicting) = window[..window.len() - 1].split_at(window.len() / 2);
    lone.past = 0;
    for piece in context.chunks(STEP_TOKENS) {
        lone.feed(piece, 0, |_| ())?;
    }
    let mut targets = window[window.len() / 2 + 1..].iter();
    let mut loss = 0.0;
    for piece in predicting.chunks(STEP_ROWS) {
        lone.feed(piece, piece.len(), |row| {
            // A target outside the vocabulary makes the next step fail; as the very last token it has no probability.
            let logit = targets.next().and_then(|id| row.get(*id as usize)).copied();
            loss += log_sum_exp(row) - f64::from(logit.unwrap_or(f32::NEG_INFINITY));
        })?;
    }
    Ok(loss)
}

/// One sequence that has a program to itself.
struct Lone<'p> {
    program: &'p mut dyn Program,
    blocks: Vec<u32>,
    /// Tokens in the cache.
    past: usize,
    steps: Steps,
}

impl<'p> Lone<'p> {
    fn new(program: &'p mut dyn Program, tokens: usize) -> Result<Self, EngineError> {
        let blocks = blocks_for(tokens);
        program.reserve_blocks(blocks)?;
        program.reserve_slots(1)?;
        Ok(Self { program, blocks: (0..blocks as u32).collect(), past: 0, steps: Steps::default() })
    }

    /// Computes the next tokens and visits the logits after the last `wanted` of them.
    fn feed(&mut self, tokens: &[u32], wanted: usize, visit: impl FnMut(&[f32])) -> Result<(), EngineError> {
        debug_assert!(self.past + tokens.len() <= self.blocks.len() * BLOCK_TOKENS);
        let len = tokens.len();
        let positions: Vec<u32> = (self.past..self.past + len).map(|p| p as u32).collect();
        let outputs: Vec<u32> = (len - wanted..len).map(|row| row as u32).collect();
        let sequences =
            [SequenceSpan { tokens: 0..len, past: self.past, blocks: &self.blocks, near: &[], slot: 0 }];
        let step = Step {
            tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
            wanted: Wanted::only(LOGITS),
            ..Step::default()
        };
        // One token after others is the next of an answer.
        let decoding = usize::from(len == 1 && self.past > 0);
        let told = self.steps.begin(self.program, &step, decoding);
        let cost = self.program.run(&step).inspect_err(|error| tell::fault("step", error))?;
        self.past += len;
        let told = told.map(|told| (told, Instant::now()));
        let visited = self.visit(wanted, visit);
        if let Some((told, start)) = told {
            told.end(cost, start.elapsed());
        }
        if self.steps.is_due() {
            self.steps.sum_up(self.program, None);
        }
        visited
    }

    /// Visits the logits of the last rows of the step that was run.
    fn visit(&self, wanted: usize, visit: impl FnMut(&[f32])) -> Result<(), EngineError> {
        if wanted == 0 {
            return Ok(());
        }
        let output = self.program.output(LOGITS);
        if output.is_empty() || !output.len().is_multiple_of(wanted) {
            return Err(EngineError::Output { found: output.len(), needed: wanted });
        }
        output.chunks_exact(output.len() / wanted).for_each(visit);
        Ok(())
    }
}
