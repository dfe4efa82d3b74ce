//! How fast a program runs: prompts of a length, and one token after another, at a depth of the cache.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use metallic_core::sample::{Choice, Choices};
use metallic_core::{
    BLOCK_TOKENS, BackendError, Fed, KernelCount, Program, RunStats, SequenceSpan, Step, Wanted,
};
use serde::Serialize;

use crate::model::{CHOSEN, LOGITS};
use crate::telemetry::tell::{self, Steps, UnderWay};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// A prompt: tokens computed in steps as large as the device does well with, logits after the last one.
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
    /// Tokens computed, of each sequence.
    pub tokens: usize,
    /// Tokens in the cache before the first of them.
    pub depth: usize,
    /// Sequences side by side.
    pub sequences: usize,
}

impl Test {
    /// Its name: `pp512`, `tg128`, `tg128@d4096`, `tg128x8`.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prefill => "pp",
            Kind::Decode => "tg",
        };
        let depth = if self.depth > 0 { format!("@d{}", self.depth) } else { String::new() };
        let sequences = if self.sequences > 1 { format!("x{}", self.sequences) } else { String::new() };
        format!("{kind}{}{depth}{sequences}", self.tokens)
    }
}

/// Tokens per second of each repetition, and what they cost together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// Tokens per second, one for each repetition.
    pub samples: Vec<f64>,
    /// What the repetitions cost the device; `ops` is filled where the backend profiles.
    pub stats: RunStats,
    /// Seconds of all repetitions.
    pub seconds: f64,
    /// Steps of all repetitions.
    pub steps: u64,
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

    /// Bytes moved a second, as often as they are read or written, by what the device counts; 0 where it counts nothing.
    pub fn bytes_per_second(&self) -> f64 {
        (self.stats.bytes_read + self.stats.bytes_written) as f64 / self.seconds.max(1e-9)
    }

    /// Multiplications with additions a second, by what the device counts; 0 where it counts nothing.
    pub fn multiply_adds_per_second(&self) -> f64 {
        self.stats.multiply_adds as f64 / self.seconds.max(1e-9)
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

/// Runs a test once to warm up and then `repetitions` times. The ids are arbitrary ones of a vocabulary of `vocab`. Where a
/// device has several steps at once, it chooses the tokens of an answer, as it does for the engine; else logits come back.
pub fn measure(
    program: &mut dyn Program,
    vocab: usize,
    test: Test,
    repetitions: usize,
) -> Result<Measurement, BackendError> {
    let mut batch = Batch::new(program, test)?;
    let (depth, tokens) = (ids(test.depth, vocab), ids(test.tokens, vocab));
    let most = batch.program.step_tokens();
    for piece in depth.chunks(most) {
        batch.feed(piece, Wanted::NONE)?;
    }
    let mut measured = Measurement::default();
    for repetition in 0..=repetitions {
        (batch.past, batch.steps) = (test.depth, 0);
        let mut stats = RunStats::default();
        let start = Instant::now();
        match test.kind {
            Kind::Prefill => {
                for piece in tokens.chunks(most) {
                    let last = batch.past + piece.len() == test.depth + test.tokens;
                    stats.add(&batch.feed(piece, if last { Wanted::only(LOGITS) } else { Wanted::NONE })?);
                }
            }
            Kind::Decode if batch.program.depth() > 1 => stats = batch.answer(&tokens)?,
            Kind::Decode => {
                for token in tokens.chunks(1) {
                    stats.add(&batch.feed(token, Wanted::only(LOGITS))?);
                }
            }
        }
        if repetition > 0 {
            let computed = (test.tokens * test.sequences) as f64;
            let seconds = start.elapsed().as_secs_f64();
            measured.samples.push(computed / seconds.max(1e-9));
            measured.seconds += seconds;
            measured.steps += batch.steps;
            measured.stats.add(&stats);
        }
    }
    Ok(measured)
}

/// The kernels of one step of a test, as its plan counts them: the next token of each sequence, or a piece of the prompt as the
/// engine takes it. What is in the cache does not matter, so nothing is computed before. Empty where a device plans nothing.
pub fn count(program: &mut dyn Program, vocab: usize, test: Test) -> Result<Vec<KernelCount>, BackendError> {
    let mut batch = Batch::new(program, test)?;
    batch.past = test.depth;
    let tokens = match test.kind {
        Kind::Prefill => test.tokens.min(batch.program.step_tokens()),
        Kind::Decode => test.tokens.min(1),
    };
    let chooses = test.kind == Kind::Decode && batch.program.depth() > 1;
    batch.feed(&ids(tokens, vocab), Wanted::only(if chooses { CHOSEN } else { LOGITS }))?;
    Ok(batch.program.kernels())
}

/// Ids scattered over the vocabulary, the same in each run.
fn ids(count: usize, vocab: usize) -> Vec<u32> {
    let step = |state: u64| state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    let states = std::iter::successors(Some(step(count as u64)), |state| Some(step(*state)));
    states.take(count).map(|state| ((state >> 33) % vocab.max(1) as u64) as u32).collect()
}

/// Sequences that have the program to themselves and compute the same tokens side by side.
struct Batch<'p> {
    program: &'p mut dyn Program,
    /// The cache blocks of each.
    blocks: Vec<Vec<u32>>,
    choices: Choices,
    /// Tokens in the cache that count; those behind are written over.
    past: usize,
    /// Steps since a repetition began.
    steps: u64,
    teller: Steps,
    /// Those under way, where somebody listens.
    told: VecDeque<Option<UnderWay>>,
}

impl<'p> Batch<'p> {
    fn new(program: &'p mut dyn Program, test: Test) -> Result<Self, BackendError> {
        let each = (test.depth + test.tokens).div_ceil(BLOCK_TOKENS);
        program.reserve_blocks(each * test.sequences)?;
        program.reserve_slots(test.sequences)?;
        let blocks = (0..test.sequences).map(|i| (i * each..(i + 1) * each).map(|b| b as u32).collect());
        let mut choices = Choices::default();
        for _ in 0..test.sequences {
            let greedy = choices.push(&Choice::greedy(), &[]);
            greedy.map_err(|e| BackendError::Failed { device: "bench", reason: e.to_string() })?;
        }
        let (teller, told) = (Steps::default(), VecDeque::new());
        Ok(Self { blocks: blocks.collect(), choices, program, past: 0, steps: 0, teller, told })
    }

    /// Computes the next tokens of each sequence; the last of each gives a result where one is wanted.
    fn feed(&mut self, tokens: &[u32], wanted: Wanted) -> Result<RunStats, BackendError> {
        self.submit(tokens, wanted, false)?;
        self.finish()
    }

    /// Waits for the oldest step under way, and tells it.
    fn finish(&mut self) -> Result<RunStats, BackendError> {
        let mut stats = self.program.finish().inspect_err(|error| tell::fault("step", error))?;
        if let Some(told) = self.told.pop_front().flatten() {
            let each = std::mem::take(&mut stats.each);
            told.end(RunStats { each, ..stats.clone() }, Duration::ZERO);
        }
        if self.teller.is_due() {
            self.teller.sum_up(self.program, None);
        }
        Ok(stats)
    }

    /// One token after another; each step is submitted while the one before is under way, and takes its tokens.
    fn answer(&mut self, tokens: &[u32]) -> Result<RunStats, BackendError> {
        let mut stats = RunStats::default();
        for (index, token) in tokens.chunks(1).enumerate() {
            self.submit(token, Wanted::only(CHOSEN), index > 0)?;
            if index > 0 {
                stats.add(&self.finish()?);
            }
        }
        stats.add(&self.finish()?);
        Ok(stats)
    }

    fn submit(&mut self, tokens: &[u32], wanted: Wanted, fed: bool) -> Result<(), BackendError> {
        let (n, count) = (tokens.len(), self.blocks.len());
        let all = tokens.repeat(count);
        let positions: Vec<u32> = (self.past as u32..(self.past + n) as u32).collect();
        let past = self.past;
        let mut sequences = Vec::with_capacity(count);
        for (i, blocks) in self.blocks.iter().enumerate() {
            sequences.push(SequenceSpan {
                tokens: i * n..(i + 1) * n,
                past,
                blocks,
                near: &[],
                slot: i as u32,
            });
        }
        let last: Vec<u32> = (1..=count).map(|i| (i * n) as u32 - 1).collect();
        let feeds: Vec<Fed> = (0..count as u32).filter(|_| fed).map(|i| Fed { token: i, row: i }).collect();
        let step = Step {
            tokens: &all,
            fed: &feeds,
            positions: &positions.repeat(count),
            sequences: &sequences,
            outputs: if wanted == Wanted::NONE { &[] } else { &last },
            choices: if wanted == Wanted::only(CHOSEN) { self.choices.words() } else { &[] },
            wanted,
            ..Step::default()
        };
        let decoding = if n == 1 && past > 0 { count } else { 0 };
        self.told.push_back(self.teller.begin(self.program, &step, decoding));
        self.program.submit(&step)?;
        self.past += n;
        self.steps += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metallic_core::{Blocks, ProgramMemory, StepLimits};

    #[test]
    fn figures_of_known_samples_are_known() {
        let of = |samples: &[f64]| Measurement { samples: samples.to_vec(), ..Measurement::default() };
        let m = of(&[4.0, 1.0, 1.0]);
        assert_eq!((m.mean(), m.median()), (2.0, 1.0));
        assert!((m.sd() - 3f64.sqrt()).abs() < 1e-12);
        assert_eq!(of(&[4.0, 1.0]).median(), 2.5);
        assert_eq!((of(&[]).mean(), of(&[]).median(), of(&[7.0]).sd()), (0.0, 0.0, 0.0));
    }

    #[test]
    fn rates_are_what_was_counted_in_the_time_of_all_repetitions() {
        let stats = RunStats { bytes_read: 7, bytes_written: 3, multiply_adds: 40, ..RunStats::default() };
        let m = Measurement { stats, seconds: 2.0, ..Measurement::default() };
        assert_eq!((m.bytes_per_second(), m.multiply_adds_per_second()), (5.0, 20.0));
        assert_eq!(Measurement::default().bytes_per_second(), 0.0);
    }

    /// Keeps the past, the number of tokens and of outputs of every step.
    #[derive(Default)]
    struct Recorder {
        reserved: Blocks,
        chooses: bool,
        steps: Vec<(usize, usize, usize)>,
        fed: Vec<usize>,
    }

    impl Program for Recorder {
        fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
            self.reserved = self.reserved.max(blocks);
            Ok(())
        }

        fn reserved(&self) -> Blocks {
            self.reserved
        }

        fn reserve_slots(&mut self, _: usize) -> Result<(), BackendError> {
            Ok(())
        }

        fn copy_slot(&mut self, _: u32, _: u32) -> Result<(), BackendError> {
            Ok(())
        }

        fn depth(&self) -> usize {
            1 + usize::from(self.chooses)
        }

        fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
            let fed_rows = if self.chooses { step.outputs.len() } else { 0 };
            step.validate(&StepLimits {
                vocab: 7,
                blocks: self.reserved,
                slots: None,
                fed_rows,
                adapters: 0,
            })?;
            self.steps.push((step.sequences[0].past, step.tokens.len(), step.outputs.len()));
            self.fed.push(step.fed.len());
            Ok(())
        }

        fn finish(&mut self) -> Result<RunStats, BackendError> {
            Ok(RunStats { dispatches: 1, ..RunStats::default() })
        }

        fn ids(&self, _index: usize) -> &[u32] {
            &[]
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
        let test = Test { kind: Kind::Prefill, tokens: 600, depth: 40, sequences: 1 };
        let measured = measure(&mut program, 7, test, 1).unwrap();
        let once = [(40, 512, 0), (552, 88, 1)];
        assert_eq!(program.steps, [&[(0, 40, 0)], &once[..], &once].concat());
        assert_eq!((measured.samples.len(), measured.stats.dispatches), (1, 2), "the warm-up does not count");
        assert!(measured.steps == 2 && measured.seconds > 0.0);
        assert_eq!(test.name(), "pp600@d40");
    }

    #[test]
    fn one_step_is_counted_at_the_depth_without_computing_it() {
        for (kind, chooses, tokens) in
            [(Kind::Prefill, false, 512), (Kind::Decode, false, 1), (Kind::Decode, true, 1)]
        {
            let mut program = Recorder { chooses, ..Recorder::default() };
            let test = Test { kind, tokens: 600, depth: 40, sequences: 2 };
            assert_eq!(count(&mut program, 7, test).unwrap(), []);
            assert_eq!(program.steps, [(40, 2 * tokens, 2)]);
        }
    }

    #[test]
    fn an_answer_goes_token_by_token_and_each_repetition_begins_at_the_depth() {
        let mut program = Recorder::default();
        let measured =
            measure(&mut program, 7, Test { kind: Kind::Decode, tokens: 2, depth: 0, sequences: 1 }, 2)
                .unwrap();
        assert_eq!(program.steps, [(0, 1, 1), (1, 1, 1)].repeat(3));
        assert_eq!(measured.samples.len(), 2);
    }

    #[test]
    fn a_device_that_chooses_is_given_each_step_while_it_has_the_one_before() {
        let mut program = Recorder { chooses: true, ..Recorder::default() };
        let test = Test { kind: Kind::Decode, tokens: 3, depth: 0, sequences: 4 };
        let measured = measure(&mut program, 7, test, 1).unwrap();
        assert_eq!(program.steps, [(0, 4, 4), (1, 4, 4), (2, 4, 4)].repeat(2));
        assert_eq!(program.fed, [0, 4, 4, 0, 4, 4]);
        assert_eq!((measured.stats.dispatches, measured.steps, test.name().as_str()), (3, 3, "tg3x4"));
    }
}
