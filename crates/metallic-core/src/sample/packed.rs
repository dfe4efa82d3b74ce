//! The choices of a step as one list of words, which a device reads as it is.

use super::choose::{TINY, number};
use super::{Choice, ChoiceError, Edit, in_ranges, ln};

/// Words of a row's record.
pub const HEADER: usize = 16;
/// Words of an edit: the token, its count, the bits of its bias.
pub const EDIT: usize = 3;

/// The choices of all rows of a step: a record of [`HEADER`] words for each row, in the order of the fields of [`Record`],
/// then the edits of all rows, of [`EDIT`] words each.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    records: Vec<u32>,
    edits: Vec<u32>,
    words: Vec<u32>,
}

impl Choices {
    /// Forgets all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.records.clear();
        self.edits.clear();
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.records.len() / HEADER
    }

    /// Adds a row. Edits are in ascending order of their tokens.
    pub fn push(&mut self, choice: &Choice, edits: &[Edit]) -> Result<(), ChoiceError> {
        choice.validate()?;
        ascending(edits.iter().map(|edit| edit.id))?;
        let bias = |edit: &Edit| ("bias", edit.bias, edit.bias < f32::INFINITY, "a finite number or -inf");
        in_ranges(edits.iter().map(bias))?;
        let end = self.records.len() + HEADER + self.edits.len() + edits.len() * EDIT;
        if u32::try_from(end).is_err() {
            return Err(ChoiceError::TooMany { found: end });
        }
        // From the first edit of all rows; `words` adds what lies before.
        let record = Record::of(choice, self.edits.len(), edits.len());
        self.records.extend(record.words());
        self.edits.extend(edits.iter().flat_map(|edit| [edit.id, edit.count, edit.bias.to_bits()]));
        Ok(())
    }

    /// All of it, as [`choose()`](super::choose()) and devices read it.
    pub fn words(&mut self) -> &[u32] {
        self.words.clear();
        self.words.extend_from_slice(&self.records);
        self.words.extend_from_slice(&self.edits);
        for record in self.words[..self.records.len()].chunks_exact_mut(HEADER) {
            record[EDITS_AT] += self.records.len() as u32;
        }
        &self.words
    }
}

/// The word of a record that says where its edits begin.
const EDITS_AT: usize = 13;

/// How one row's token is chosen, as a device sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// `1 / temperature`; 0: the best token.
    pub inverse_temperature: f32,
    /// Tokens that stay; 0: all.
    pub top_k: u32,
    /// A share of the weight, times `2³²`; 0: all.
    pub typical: u32,
    /// A share of the weight, times `2³²`; 0: all.
    pub top_p: u32,
    /// `ln(min_p)`; `-inf`: all.
    pub ln_min_p: f32,
    /// Factor on negative logits of tokens that came before.
    pub repetition: f32,
    /// Factor on positive ones.
    pub inverse_repetition: f32,
    /// Taken from the logit of a token that came before.
    pub presence: f32,
    /// Taken from it for each time it came before.
    pub frequency: f32,
    /// Which sequence of random numbers: low and high word.
    pub seed: [u32; 2],
    /// Which draw of it: low and high word.
    pub draw: [u32; 2],
    /// The first word of its edits.
    pub edits_at: u32,
    /// How many edits there are.
    pub edits: u32,
}

impl Record {
    fn of(choice: &Choice, edits_at: usize, edits: usize) -> Record {
        // Exact for shares of 2⁻⁸ and more; 0 means all, so that no share may become it.
        let share = |p: f32| if p < 1.0 { ((f64::from(p) * 4_294_967_296.0) as u32).max(1) } else { 0 };
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let greedy = choice.temperature == 0.0;
        Record {
            inverse_temperature: if greedy { 0.0 } else { choice.temperature.recip() },
            top_k: choice.top_k,
            typical: share(choice.typical),
            top_p: share(choice.top_p),
            ln_min_p: if choice.min_p.is_normal() { ln(choice.min_p) } else { f32::NEG_INFINITY },
            repetition: choice.repetition,
            inverse_repetition: choice.repetition.recip(),
            presence: choice.presence,
            frequency: choice.frequency,
            seed: halves(choice.seed),
            draw: halves(choice.draw),
            edits_at: edits_at as u32,
            edits: edits as u32,
        }
    }

    /// The words, in the order of the fields.
    pub fn words(&self) -> [u32; HEADER] {
        [
            self.inverse_temperature.to_bits(),
            self.top_k,
            self.typical,
            self.top_p,
            self.ln_min_p.to_bits(),
            self.repetition.to_bits(),
            self.inverse_repetition.to_bits(),
            self.presence.to_bits(),
            self.frequency.to_bits(),
            self.seed[0],
            self.seed[1],
            self.draw[0],
            self.draw[1],
            self.edits_at,
            self.edits,
            0,
        ]
    }

    /// The record of a row and the words of its edits, found to be such as [`Choices`] makes them.
    pub fn read(words: &[u32], row: usize) -> Result<(Record, &[[u32; EDIT]]), ChoiceError> {
        let missing = |needed: usize| ChoiceError::Words { row, needed, found: words.len() };
        let end = row.saturating_add(1).saturating_mul(HEADER);
        let header = words.get(end - HEADER..end).and_then(|words| words.first_chunk::<HEADER>());
        let header = header.ok_or(missing(end))?;
        let float = |at: usize| f32::from_bits(header[at]);
        let record = Record {
            inverse_temperature: float(0),
            top_k: header[1],
            typical: header[2],
            top_p: header[3],
            ln_min_p: float(4),
            repetition: float(5),
            inverse_repetition: float(6),
            presence: float(7),
            frequency: float(8),
            seed: [header[9], header[10]],
            draw: [header[11], header[12]],
            edits_at: header[EDITS_AT],
            edits: header[14],
        };
        record.validate()?;
        let (first, edits) = (record.edits_at as usize, record.edits as usize);
        let last = first.saturating_add(edits.saturating_mul(EDIT));
        let edits = words.get(first..last).ok_or(missing(last))?.as_chunks::<EDIT>().0;
        ascending(edits.iter().map(|[id, ..]| *id))?;
        Ok((record, edits))
    }

    fn validate(&self) -> Result<(), ChoiceError> {
        let factor = |x: f32| x > 0.0 && x.is_normal();
        let t = self.inverse_temperature;
        let warm = (0.0..=Choice::LEAST_TEMPERATURE.recip()).contains(&t);
        in_ranges([
            ("1 / temperature", t, warm, "from 0 to 1000000"),
            ("ln(min_p)", self.ln_min_p, self.ln_min_p <= 0.0, "at most 0"),
            ("repetition", self.repetition, factor(self.repetition), "above 0"),
            ("1 / repetition", self.inverse_repetition, factor(self.inverse_repetition), "above 0"),
            ("presence", self.presence, self.presence.is_finite(), "finite"),
            ("frequency", self.frequency, self.frequency.is_finite(), "finite"),
        ])
    }

    /// The logit `x` of an edited token: `x = bounded(x + bias)`, and where it came before
    /// `x = bounded(fma(x, x > 0 ? 1 / repetition : repetition, -presence))`, then `x = bounded(fma(-count, frequency, x))`;
    /// [`Edit::REPEATED`] takes both penalties for 0. What is impossible stays so.
    pub fn edited(&self, logit: f32, edit: Edit) -> f32 {
        let x = number(logit);
        if x == f32::NEG_INFINITY || edit.bias.is_nan() || edit.bias == f32::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        let x = bounded(x + edit.bias);
        if edit.count == 0 {
            return x;
        }
        let factor = if x > 0.0 { self.inverse_repetition } else { self.repetition };
        if edit.count == Edit::REPEATED {
            return bounded(x * factor);
        }
        let x = bounded(x.mul_add(factor, -self.presence));
        bounded((-(edit.count as f32)).mul_add(self.frequency, x))
    }
}

/// `x` between the smallest and the largest number; 0 where it is nearly.
fn bounded(x: f32) -> f32 {
    if x.abs() < TINY { 0.0 } else { x.clamp(f32::MIN, f32::MAX) }
}

fn ascending(ids: impl Iterator<Item = u32> + Clone) -> Result<(), ChoiceError> {
    match ids.clone().zip(ids.skip(1)).find(|(before, id)| id <= before) {
        Some((before, id)) => Err(ChoiceError::Order { id, before }),
        None => Ok(()),
    }
}
