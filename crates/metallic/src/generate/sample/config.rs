//! How the next token is chosen: the parameters and their ranges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::generate::EngineError;

/// How the next token is chosen. The stages run in the order of [`crate::generate::sample`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Flattens (above 1) or sharpens (below 1) the distribution; 0 takes the best token.
    pub temperature: f32,
    /// Keeps the `top_k` best tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most typical tokens until they hold this much probability; 1 keeps all.
    pub typical: f32,
    /// Keeps the best tokens until they hold this much probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this share as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the window; 1 does nothing.
    pub repetition_penalty: f32,
    /// Taken from the logit of every token in the window.
    pub presence_penalty: f32,
    /// Taken from the logit of a token once for each time it is in the window.
    pub frequency_penalty: f32,
    /// How many of the latest tokens, the prompt's included, the penalties look at.
    pub penalty_window: usize,
    /// Added to the logits of these ids; `-inf` bans one.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Same seed, same tokens. Without one the engine picks one and reports it.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            typical: 1.0,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: BTreeMap::new(),
            seed: None,
        }
    }
}

impl Sampling {
    /// The best token each time; of equals the one with the lowest id.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::plain() }
    }

    /// The model's own distribution: temperature 1 and nothing else.
    pub fn plain() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Self::default() }
    }

    /// Checks every parameter against its range.
    pub fn validate(&self, vocab: usize) -> Result<(), EngineError> {
        let share = "above 0 and at most 1";
        let finite = "a finite number";
        let ranges = [
            ("temperature", self.temperature, self.temperature >= 0.0, "a finite number, 0 or more"),
            ("typical", self.typical, self.typical > 0.0 && self.typical <= 1.0, share),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, share),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "a finite number above 0",
            ),
            ("presence_penalty", self.presence_penalty, true, finite),
            ("frequency_penalty", self.frequency_penalty, true, finite),
        ];
        for (name, found, in_range, needed) in ranges {
            if !found.is_finite() || !in_range {
                return Err(EngineError::parameter(name, found, needed));
            }
        }
        for (&id, &bias) in &self.logit_bias {
            if id as usize >= vocab {
                return Err(EngineError::parameter("logit_bias", id, "about ids of the vocabulary"));
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(EngineError::parameter("logit_bias", bias, "a finite number or -inf"));
            }
        }
        Ok(())
    }

    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}
