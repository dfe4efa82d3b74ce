//! How fast a program runs: prompts of a length, and one token after another, at a depth of the cache.

use std::time::Instant;

use metallic_core::{BLOCK_TOKENS, BackendError, Program, RunStats, SequenceSpan, Step};
use serde::Serialize;

/// Tokens of a step, as the engine takes a long prompt.
const STEP_TOKENS: usize = 512;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// A prompt: tokens computed in steps of 512, logits after the last one.
    #[serde(rename = "pp")]
    Prefill,
    /// An answer: one token a step, logits after each.
    #[serde(rename = "tg")]
    Decode,
}

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// What is measured.
    pub kind: Kind,
    /// Tokens computed.
    pub tokens: usize,
    /// Tokens in the cache before the first of them.
    pub depth: usize,
}

impl Test {
    /// Its name: `pp512`, `tg128`, `tg128@d4096`.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prefill => "pp",
            Kind::Decode => "tg",
        };
        match self.depth {
            0 => format!("{kind}{}", self.tokens),
            depth => format!("{kind}{}@d{depth}", self.tokens),
        }
    }
}

/// Tokens per second of each repetition, and what they cost together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// Tokens per second, one for each repetition.
    pub samples: Vec<f64>,
    /// What the repetitions cost the device; `time_by_op` is filled where the backend profiles.
    pub stats: RunStats,
}

impl Measurement {
    /// The mean; 0 without samples.
    pub fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len().max(1) as f64
    }

    /// The middle sample, or the mean of the two in the middle; 0 without samples.
    pub fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[n / 2],
            n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        }
    }

    /// The standard deviation as estimated from the samples; 0 for fewer than two.
    pub fn sd(&self) -> f64 {
        if self.samples.len() < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self.samples.iter().map(|x| (x - mean).powi(2)).sum();
        (squares / (self.samples.len() - 1) as f64).sqrt()
    }
}

/// Runs a test once to warm up and then `repetitions` times. The ids are arbitrary ones of a vocabulary of `vocab`.
pub fn measure(
    program: &mut dyn Program,
    vocab: usize,
    test: Test,
    repetitions: usize,
) -> Result<Measurement, BackendError> {
    let mut sequence = Sequence::new(program, test.depth + test.tokens)?;
    let (depth, tokens) = (ids(test.depth, vocab), ids(test.tokens, vocab));
    for piece in depth.chunks(STEP_TOKENS) {
        sequence.feed(piece, false)?;
    }
    let mut measured = Measurement::default();
    for repetition in 0..=repetitions {
        sequence.past = test.depth;
        let mut stats = RunStats::default();
        let start = Instant::now();
        match test.kind {
            Kind::Prefill => {
                for piece in tokens.chunks(STEP_TOKENS) {
                    let last = sequence.past + piece.len() == test.depth + test.tokens;
                    stats.add(&sequence.feed(piece, last)?);
                }
            }
            Kind::Decode => {
                for token in tokens.chunks(1) {
                    stats.add(&sequence.feed(token, true)?);
                }
            }
        }
        if repetition > 0 {
            measured.samples.push(test.tokens as f64 / start.elapsed().as_secs_f64().max(1e-9));
            measured.stats.add(&stats);
        }
    }
    Ok(measured)
}

/// Ids scattered over the vocabulary, the same in each run.
fn ids(count: usize, vocab: usize) -> Vec<u32> {
    let step = |state: u64| state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    let states = std::iter::successors(Some(step(count as u64)), |state| Some(step(*state)));
    states.take(count).map(|state| ((state >> 33) % vocab.max(1) as u64) as u32).collect()
}

/// One sequence that has the program to itself.
struct Sequence<'p> {
    program: &'p mut dyn Program,
    blocks: Vec<u32>,
    positions: Vec<u32>,
    /// Tokens in the cache that count; those behind are written over.
    past: usize,
}

impl<'p> Sequence<'p> {
    fn new(program: &'p mut dyn Program, tokens: usize) -> Result<Self, BackendError> {
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        program.reserve_blocks(blocks)?;
        let positions = (0..tokens as u32).collect();
        Ok(Self { program, blocks: (0..blocks as u32).collect(), positions, past: 0 })
    }

    fn feed(&mut self, tokens: &[u32], logits: bool) -> Result<RunStats, BackendError> {
        let last = [tokens.len() as u32 - 1];
        let sequences = [SequenceSpan { tokens: 0..tokens.len(), past: self.past, blocks: &self.blocks }];
        let stats = self.program.run(&Step {
            tokens,
            positions: &self.positions[self.past..self.past + tokens.len()],
            sequences: &sequences,
            outputs: if logits { &last } else { &[] },
        })?;
        self.past += tokens.len();
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metallic_core::ProgramMemory;

    #[test]
    fn figures_of_known_samples_are_known() {
        let of = |samples: &[f64]| Measurement { samples: samples.to_vec(), stats: RunStats::default() };
        let m = of(&[4.0, 1.0, 1.0]);
        assert_eq!((m.mean(), m.median()), (2.0, 1.0));
        assert!((m.sd() - 3f64.sqrt()).abs() < 1e-12);
        assert_eq!(of(&[4.0, 1.0]).median(), 2.5);
        assert_eq!((of(&[]).mean(), of(&[]).median(), of(&[7.0]).sd()), (0.0, 0.0, 0.0));
    }

    /// Keeps the past, the number of tokens and of outputs of every step.
    #[derive(Default)]
    struct Recorder {
        reserved: usize,
        steps: Vec<(usize, usize, usize)>,
    }

    impl Program for Recorder {
        fn reserve_blocks(&mut self, blocks: usize) -> Result<(), BackendError> {
            self.reserved = self.reserved.max(blocks);
            Ok(())
        }

        fn reserved_blocks(&self) -> usize {
            self.reserved
        }

        fn run(&mut self, step: &Step<'_>) -> Result<RunStats, BackendError> {
            step.validate(7, self.reserved)?;
            self.steps.push((step.sequences[0].past, step.tokens.len(), step.outputs.len()));
            Ok(RunStats { dispatches: 1, ..RunStats::default() })
        }

        fn output(&self, _index: usize) -> &[f32] {
            &[]
        }

        fn memory(&self) -> ProgramMemory {
            ProgramMemory::default()
        }
    }

    #[test]
    fn a_prompt_goes_in_steps_of_512_with_logits_at_its_end() {
        let mut program = Recorder::default();
        let test = Test { kind: Kind::Prefill, tokens: 600, depth: 40 };
        let measured = measure(&mut program, 7, test, 1).unwrap();
        let once = [(40, 512, 0), (552, 88, 1)];
        assert_eq!(program.steps, [&[(0, 40, 0)], &once[..], &once].concat());
        assert_eq!((measured.samples.len(), measured.stats.dispatches), (1, 2), "the warm-up does not count");
        assert_eq!(test.name(), "pp600@d40");
    }

    #[test]
    fn an_answer_goes_token_by_token_and_each_repetition_begins_at_the_depth() {
        let mut program = Recorder::default();
        let measured = measure(&mut program, 7, Test { kind: Kind::Decode, tokens: 2, depth: 0 }, 2).unwrap();
        assert_eq!(program.steps, [(0, 1, 1), (1, 1, 1)].repeat(3));
        assert_eq!(measured.samples.len(), 2);
    }
}
