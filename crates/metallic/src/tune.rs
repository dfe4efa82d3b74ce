//! Which numbers of a GPU's plans are fastest with a model: measured, one field after another.

use metallic_core::{BackendError, Program};

use crate::bench::{Test, measure};
use crate::device::Providers;
use crate::device::tuning::{Field, Tuned, Tuning};
use crate::generate::{self, EngineError};

/// Less than this part more or less is no difference, however quiet a device is.
const LEAST: f64 = 0.01;
/// Logits of a variant may be off by this part of their range: rounding, and not another result.
const ROUNDING: f32 = 0.02;
/// Tokens whose logits are compared, and how many of them go at once: each goes through other kernels.
const COMPARED: [(usize, usize); 3] = [(8, 1), (24, 8), (40, 40)];

/// What is measured.
#[derive(Clone, Debug)]
pub struct TunePlan {
    /// Whose tokens per second count.
    pub tests: Vec<Test>,
    /// Times each variant is measured, in turns with what it is compared with.
    pub rounds: usize,
    /// Only the values next to the one in use.
    pub quick: bool,
}

/// What became of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// No plan of the tests changes with it.
    Same,
    /// Tokens per second against those of the value in use, by test; 1 where its plans are the same.
    Ratios(Vec<f64>),
    /// It cannot be had here: why.
    Failed(String),
}

/// A value that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// It.
    pub value: u32,
    /// What became of it.
    pub outcome: Outcome,
}

/// A field that was tried.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Which.
    pub field: &'static Field,
    /// Its value before.
    pub from: u32,
    /// Its value from then on.
    pub to: u32,
    /// Its other values.
    pub trials: Vec<Trial>,
}

impl Tried {
    /// What the new value has gained, by test; `None` where the old one stays.
    pub fn gain(&self) -> Option<&[f64]> {
        let chosen = self.trials.iter().find(|trial| trial.value == self.to && self.to != self.from)?;
        match &chosen.outcome {
            Outcome::Ratios(ratios) => Some(ratios),
            Outcome::Same | Outcome::Failed(_) => None,
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Tunings {
    /// What plans went by before.
    pub before: Tuning,
    /// What is fastest; the same as before where nothing is.
    pub after: Tuning,
    /// Every field, in the order in which they were tried.
    pub fields: Vec<Tried>,
    /// Tokens per second before and after, by test; empty where nothing was to be compared.
    pub tests: Vec<(Test, [f64; 2])>,
}

/// What the search asks of a device.
pub trait Variants {
    /// Plans go by these numbers from now on.
    fn set(&mut self, tuning: Tuning) -> Result<(), BackendError>;

    /// Runs a test once, the first one since numbers were set, and gives a number for how its kernels were launched.
    fn look(&mut self, test: Test) -> Result<u64, BackendError>;

    /// Tokens per second of a test.
    fn sample(&mut self, test: Test) -> Result<f64, BackendError>;

    /// What the model computes now: rows of logits.
    fn logits(&mut self) -> Result<Vec<Vec<f32>>, BackendError>;
}

/// A program on a GPU whose plans go by `tuned`.
pub struct OnDevice<'a> {
    /// It.
    pub program: &'a mut dyn Program,
    /// Tokens of its vocabulary.
    pub vocab: usize,
    /// Tokens of its context.
    pub context: usize,
    /// What its plans go by.
    pub tuned: Tuned,
    /// Who serves its operations.
    pub providers: Providers,
}

impl OnDevice<'_> {
    /// One that takes another's place is not what was to be measured.
    fn without_substitutes<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let known = self.providers.quarantined().len();
        let result = run(self);
        match self.providers.quarantined().get(known).cloned() {
            None => result,
            Some(left_out) => {
                self.providers.release();
                result.and(Err(left_out.error.on("tune")))
            }
        }
    }
}

impl Variants for OnDevice<'_> {
    fn set(&mut self, tuning: Tuning) -> Result<(), BackendError> {
        self.tuned.set(tuning).map_err(|error| error.on("tune"))
    }

    fn look(&mut self, test: Test) -> Result<u64, BackendError> {
        self.without_substitutes(|own| measure(own.program, own.vocab, test, 0))?;
        Ok(self.tuned.plans())
    }

    fn sample(&mut self, test: Test) -> Result<f64, BackendError> {
        Ok(self.without_substitutes(|own| measure(own.program, own.vocab, test, 1))?.median())
    }

    fn logits(&mut self) -> Result<Vec<Vec<f32>>, BackendError> {
        let mut rows = Vec::new();
        for (tokens, chunk) in COMPARED {
            let count = tokens.min(self.context.saturating_sub(1)).max(1);
            let tokens: Vec<u32> = (0..count).map(|i| (i * 7919 % self.vocab.max(1)) as u32).collect();
            let found = generate::logits(self.program, &tokens, chunk, true);
            rows.extend(found.map_err(|error| match error {
                EngineError::Backend(error) => error,
                other => BackendError::Failed { device: "tune", reason: other.to_string() },
            })?);
        }
        Ok(rows)
    }
}

/// Tokens per second of one variant, by test; no samples where its plans are those of the value in use.
type Samples = Vec<Vec<f64>>;

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(samples: &[f64]) -> f64 {
    sorted(samples).get(samples.len() / 2).copied().unwrap_or(0.0)
}

/// How far samples lie apart, as a part of their median: from the first quarter to the third.
fn spread(samples: &[f64]) -> f64 {
    let (sorted, n) = (sorted(samples), samples.len());
    match (sorted.get(n / 4), sorted.get((3 * n / 4).min(n.saturating_sub(1)))) {
        (Some(low), Some(high)) => (high - low) / median(samples).max(f64::MIN_POSITIVE),
        _ => 0.0,
    }
}

/// How much faster a variant is, by test.
fn ratios(current: &Samples, other: &Samples) -> Vec<f64> {
    let ratio = |(current, other): (&Vec<f64>, &Vec<f64>)| {
        if other.is_empty() || median(current) <= 0.0 { 1.0 } else { median(other) / median(current) }
    };
    current.iter().zip(other).map(ratio).collect()
}

/// The best of the variants that are faster than the current one by more than the noise in a test at least, and slower by more than
/// the noise in none; `None` where there is none. Of equals the first.
pub fn winner(current: &Samples, others: &[Samples]) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (index, other) in others.iter().enumerate() {
        let noise = current.iter().zip(other).map(|(a, b)| LEAST.max(spread(a)).max(spread(b)));
        let tests: Vec<(f64, f64)> = ratios(current, other).into_iter().zip(noise).collect();
        let gains = tests.iter().any(|(ratio, noise)| *ratio > 1.0 + noise);
        let loses = tests.iter().any(|(ratio, noise)| *ratio < 1.0 - noise);
        let all: f64 = tests.iter().map(|(ratio, _)| ratio).product();
        if gains && !loses && all > best.map_or(1.0, |(_, best)| best) {
            best = Some((index, all));
        }
    }
    best.map(|(index, _)| index)
}

/// Whether two results differ by rounding alone; else what is found.
fn same_results(expected: &[Vec<f32>], found: &[Vec<f32>]) -> Result<(), String> {
    for (expected, found) in expected.iter().zip(found) {
        let low = expected.iter().copied().fold(f32::INFINITY, f32::min);
        let high = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let allowed = ROUNDING * (high - low).max(f32::MIN_POSITIVE);
        // What is no number is near to nothing.
        let near = |(a, b): &(&f32, &f32)| (*a - *b).abs() <= allowed;
        let far = expected.iter().zip(found).find(|pair| !near(pair));
        if let Some((expected, found)) = far {
            return Err(format!("it computes another result: a logit is {found}, it was {expected}"));
        }
    }
    if expected.len() == found.len() { Ok(()) } else { Err("it computes fewer results".to_owned()) }
}

/// Whether a variant may fail like this: it is no fault of the device's.
fn is_of_variant(error: &BackendError) -> bool {
    matches!(
        error,
        BackendError::Unsupported { .. } | BackendError::Compile { .. } | BackendError::OutOfMemory { .. }
    )
}

/// Finds the fastest numbers, beginning with `before`; `tell` is told what is being tried.
pub fn tune(
    device: &mut dyn Variants,
    before: Tuning,
    plan: &TunePlan,
    tell: &mut dyn FnMut(&str),
) -> Result<Tunings, BackendError> {
    let mut search = Search { device, plan, current: before, expected: Vec::new() };
    search.device.set(before)?;
    search.expected = search.device.logits()?;
    let mut fields = Vec::new();
    for field in Tuning::FIELDS {
        tell(field.name);
        let tried = search.field(field)?;
        search.current = field.with(&search.current, tried.to).map_err(|error| error.on("tune"))?;
        fields.push(tried);
    }
    let mut after = search.current;
    let mut tests = Vec::new();
    if after != before {
        tell("all together");
        let [old, new] = search.compare(before, after)?;
        let figures = plan.tests.iter().zip(old.iter().zip(&new));
        tests = figures.map(|(test, (old, new))| (*test, [median(old), median(new)])).collect();
        // What each gained alone may be nothing together.
        if winner(&old, &[new]).is_none() {
            after = before;
        }
    }
    search.device.set(after)?;
    Ok(Tunings { before, after, fields, tests })
}

struct Search<'a> {
    device: &'a mut dyn Variants,
    plan: &'a TunePlan,
    current: Tuning,
    /// Logits that every variant has to give.
    expected: Vec<Vec<f32>>,
}

impl Search<'_> {
    /// The values of a field that are tried.
    fn values(&self, field: &Field) -> Vec<u32> {
        let own = field.of(&self.current);
        let place = field.values.iter().position(|value| *value == own).unwrap_or(0);
        let near = |at: usize| !self.plan.quick || at.abs_diff(place) == 1;
        let others = field.values.iter().enumerate().filter(|(at, value)| **value != own && near(*at));
        others.map(|(_, value)| *value).collect()
    }

    /// How the kernels of every test are launched with these numbers.
    fn look(&mut self, tuning: Tuning) -> Result<Vec<u64>, BackendError> {
        let mut plans = Vec::new();
        for test in &self.plan.tests {
            self.device.set(tuning)?;
            plans.push(self.device.look(*test)?);
        }
        Ok(plans)
    }

    /// Which tests a variant changes, after it has shown that it gives the same results.
    fn changes(&mut self, tuning: Tuning, usual: &[u64]) -> Result<Result<Vec<bool>, String>, BackendError> {
        let mut run = || {
            let plans = self.look(tuning)?;
            let changed: Vec<bool> = plans.iter().zip(usual).map(|(own, usual)| own != usual).collect();
            let logits = if changed.contains(&true) { Some(self.device.logits()?) } else { None };
            Ok((changed, logits))
        };
        match run() {
            Ok((changed, None)) => Ok(Ok(changed)),
            Ok((changed, Some(logits))) => Ok(same_results(&self.expected, &logits).map(|()| changed)),
            Err(error) if is_of_variant(&error) => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }

    fn field(&mut self, field: &'static Field) -> Result<Tried, BackendError> {
        let (current, from) = (self.current, field.of(&self.current));
        let usual = self.look(current)?;
        // What changes something, with the tests that it changes.
        let (mut trials, mut rivals) = (Vec::new(), Vec::new());
        for value in self.values(field) {
            let tuning = field.with(&current, value).map_err(|error| error.on("tune"))?;
            let outcome = match self.changes(tuning, &usual)? {
                Err(reason) => Outcome::Failed(reason),
                Ok(changed) if changed.contains(&true) => {
                    rivals.push((trials.len(), tuning, changed));
                    Outcome::Ratios(Vec::new())
                }
                Ok(_) => Outcome::Same,
            };
            trials.push(Trial { value, outcome });
        }
        let mut to = from;
        if !rivals.is_empty() {
            let (own, others) = self.race(&rivals)?;
            for ((at, ..), samples) in rivals.iter().zip(&others) {
                trials[*at].outcome = Outcome::Ratios(ratios(&own, samples));
            }
            to = winner(&own, &others).map_or(from, |index| trials[rivals[index].0].value);
        }
        Ok(Tried { field, from, to, trials })
    }

    /// Measures the current numbers and their rivals in turns, so that what the device does meanwhile hits all alike.
    fn race(
        &mut self,
        rivals: &[(usize, Tuning, Vec<bool>)],
    ) -> Result<(Samples, Vec<Samples>), BackendError> {
        let tests = self.plan.tests.len();
        let (mut own, mut others) = (vec![Vec::new(); tests], vec![vec![Vec::new(); tests]; rivals.len()]);
        for _ in 0..self.plan.rounds.max(1) {
            for (index, test) in self.plan.tests.iter().enumerate() {
                if !rivals.iter().any(|(.., changed)| changed[index]) {
                    continue;
                }
                self.device.set(self.current)?;
                own[index].push(self.device.sample(*test)?);
                for ((_, tuning, changed), samples) in rivals.iter().zip(&mut others) {
                    if changed[index] {
                        self.device.set(*tuning)?;
                        samples[index].push(self.device.sample(*test)?);
                    }
                }
            }
        }
        Ok((own, others))
    }

    /// Measures two sets of numbers in all tests, in turns.
    fn compare(&mut self, old: Tuning, new: Tuning) -> Result<[Samples; 2], BackendError> {
        let mut samples = [(); 2].map(|()| vec![Vec::new(); self.plan.tests.len()]);
        for _ in 0..self.plan.rounds.max(1) {
            for (index, test) in self.plan.tests.iter().enumerate() {
                for (tuning, samples) in [old, new].into_iter().zip(&mut samples) {
                    self.device.set(tuning)?;
                    samples[index].push(self.device.sample(*test)?);
                }
            }
        }
        Ok(samples)
    }
}

#[cfg(test)]
mod tests;
