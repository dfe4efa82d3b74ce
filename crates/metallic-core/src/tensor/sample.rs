//! Drawing tokens from rows of a tensor.

use crate::sample::{Choice, Choices, Edit, NO_CANDIDATE, Scratch, choose};

/// How a token is drawn from each row of logits: as [`crate::sample`] says, row `r` with draw `draw + 2³² r`. Counts are those
/// of tokens that came before. A row in which no token is possible gives [`NO_CANDIDATE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// 0 takes the best token; else at least [`Choice::LEAST_TEMPERATURE`].
    pub temperature: f32,
    /// How many of the best tokens may be drawn; 0: all.
    pub top_k: usize,
    /// Makes tokens that came before less likely, by a factor; 1: off. More than 0.
    pub repetition: f32,
    /// Taken from the logit of every token that came before; 0: off.
    pub presence: f32,
    /// Taken from the logit of a token for each time it came before; 0: off.
    pub frequency: f32,
    /// Which sequence of random numbers.
    pub seed: u64,
    /// Which draw of that sequence: count it up from token to token.
    pub draw: u32,
}

impl Default for Sample {
    /// Plain sampling at temperature 1 with seed 0.
    fn default() -> Sample {
        Sample {
            temperature: 1.0,
            top_k: 0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
            draw: 0,
        }
    }
}

impl Sample {
    /// Whether tokens that came before are treated differently, so that counts are needed.
    pub fn has_penalties(&self) -> bool {
        self.choice(0).has_penalties()
    }

    /// How the token of a row is chosen.
    pub fn choice(&self, row: u32) -> Choice {
        Choice {
            temperature: self.temperature,
            top_k: u32::try_from(self.top_k).unwrap_or(0),
            repetition: self.repetition,
            presence: self.presence,
            frequency: self.frequency,
            seed: self.seed,
            draw: u64::from(row) << 32 | u64::from(self.draw),
            ..Choice::default()
        }
    }

    /// The token of row `row` with these logits; `counts` is as long as they are, or empty. Parameters outside their ranges
    /// choose none.
    pub fn draw(&self, row: u32, logits: &[f32], counts: &[u32]) -> u32 {
        let seen = (0..).zip(counts).filter(|(_, count)| **count > 0);
        let edits: Vec<Edit> = seen.map(|(id, count)| Edit { id, count: *count, bias: 0.0 }).collect();
        let mut choices = Choices::default();
        let chosen = choices
            .push(&self.choice(row), &edits)
            .and_then(|()| choose(choices.words(), 0, logits, &mut Scratch::default()));
        chosen.ok().flatten().unwrap_or(NO_CANDIDATE)
    }
}
