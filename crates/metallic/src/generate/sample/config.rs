//! How the next token is chosen: the parameters and their ranges.

use std::collections::BTreeMap;

use metallic_core::sample::{Choice, ChoiceError};
use serde::{Deserialize, Serialize};

use crate::generate::EngineError;

/// How the next token is chosen. The stages run in the order of [`crate::generate::sample`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Sampling {
    /// Flattens (above 1) or sharpens (below 1) the distribution; 0 takes the best token. Below a millionth it is that.
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
    /// Taken from the logit of every token of the answer in the window.
    pub presence_penalty: f32,
    /// Taken from the logit of a token once for each time it is in the window, the prompt left out.
    pub frequency_penalty: f32,
    /// How many of the latest tokens the penalties look at; that of repetition looks at the prompt's, too.
    pub penalty_window: usize,
    /// Added to the logits of these ids; `-inf` bans one.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Same seed, same tokens. Without one the engine picks one and reports it.
    pub seed: Option<u64>,
}

metallic_core::setters!(Sampling {
    temperature: f32,
    top_k: usize,
    typical: f32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    penalty_window: usize,
    logit_bias: impl Into<BTreeMap<u32, f32>>,
    seed: impl Into<Option<u64>>,
});

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
        self.choice(0, 0).validate().map_err(|error| match error {
            ChoiceError::Parameter { name, found, needed } => {
                EngineError::parameter(public_name(name), found, needed)
            }
            other => other.into(),
        })?;
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
        self.choice(0, 0).has_penalties()
    }

    /// The choice of token `draw` of an answer.
    pub(super) fn choice(&self, seed: u64, draw: u64) -> Choice {
        let t = self.temperature;
        Choice {
            temperature: if t > 0.0 { t.max(Choice::LEAST_TEMPERATURE) } else { t },
            // More than can be counted is all.
            top_k: u32::try_from(self.top_k).unwrap_or(0),
            typical: self.typical,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition: self.repetition_penalty,
            presence: self.presence_penalty,
            frequency: self.frequency_penalty,
            seed,
            draw,
        }
    }
}

/// What a parameter of a choice is called here.
fn public_name(name: &'static str) -> &'static str {
    match name {
        "repetition" => "repetition_penalty",
        "presence" => "presence_penalty",
        "frequency" => "frequency_penalty",
        same => same,
    }
}
