//! How an engine guesses ahead.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::generate::EngineError;

/// Most tokens that may be guessed at once: each has a row of logits.
const MOST_TOKENS: usize = 64;

/// How an engine guesses tokens ahead, which the model then checks in one step. Answers stay the same, token by token, at any
/// temperature: a guess counts only where it is what would have been chosen anyway.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Speculation {
    /// Nothing is guessed.
    #[default]
    Off,
    /// What followed the last time the same tokens stood there, in prompt and answer, is guessed to follow again.
    Lookup(LookupOptions),
    /// What a smaller model would answer is guessed.
    Draft(DraftOptions),
}

impl Speculation {
    /// Looking up with the usual limits.
    pub fn lookup() -> Self {
        Self::Lookup(LookupOptions::default())
    }

    /// A smaller model at `path`, with the usual limits.
    pub fn draft(path: impl Into<PathBuf>) -> Self {
        Self::Draft(DraftOptions { path: path.into(), ..DraftOptions::default() })
    }

    /// Whether anything is guessed.
    pub fn is_on(&self) -> bool {
        !matches!(self, Self::Off)
    }

    pub(in crate::generate) fn validate(&self) -> Result<(), EngineError> {
        let (tokens, shortest) = match self {
            Self::Off => return Ok(()),
            Self::Lookup(options) => (options.tokens, options.shortest),
            Self::Draft(options) => (options.tokens, 1),
        };
        if !(1..=MOST_TOKENS).contains(&tokens) {
            return Err(EngineError::parameter("the tokens guessed at once", tokens, "from 1 to 64"));
        }
        if shortest == 0 {
            return Err(EngineError::parameter("the shortest match of a lookup", 0, "1 or more"));
        }
        Ok(())
    }

    /// Most tokens guessed at once, and whether only where that pays.
    pub(in crate::generate) fn limits(&self) -> (usize, bool) {
        match self {
            Self::Off => (0, true),
            Self::Lookup(options) => (options.tokens, options.adaptive),
            Self::Draft(options) => (options.tokens, options.adaptive),
        }
    }
}

/// How guesses are looked up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LookupOptions {
    /// Most tokens guessed at once, from 1 to 64.
    pub tokens: usize,
    /// So many tokens must have stood there before for what followed them to count; fewer than 2 count as 2.
    pub shortest: usize,
    /// Guesses only where that is faster, by what steps take and how often guesses were right; else wherever there is a match.
    pub adaptive: bool,
}

impl Default for LookupOptions {
    fn default() -> Self {
        Self { tokens: 15, shortest: 2, adaptive: true }
    }
}

metallic_core::setters!(LookupOptions { tokens: usize, shortest: usize, adaptive: bool });

/// Which smaller model guesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DraftOptions {
    /// Its file or folder, for [`Llm`](crate::Llm); an [`Engine`](crate::generate::Engine) is given its program.
    pub path: PathBuf,
    /// Most tokens guessed at once, from 1 to 64.
    pub tokens: usize,
    /// Guesses only where that is faster; else always as many as allowed.
    pub adaptive: bool,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self { path: PathBuf::new(), tokens: 8, adaptive: true }
    }
}

metallic_core::setters!(DraftOptions { path: impl Into<PathBuf>, tokens: usize, adaptive: bool });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_out_of_range_are_refused_by_name() {
        for tokens in [0, 65] {
            for speculation in [
                Speculation::Lookup(LookupOptions::default().tokens(tokens)),
                Speculation::Draft(DraftOptions::default().tokens(tokens)),
            ] {
                let error = speculation.validate().unwrap_err().to_string();
                assert_eq!(error, format!("the tokens guessed at once is {tokens}, it must be from 1 to 64"));
            }
        }
        let none = Speculation::Lookup(LookupOptions::default().shortest(0));
        assert!(none.validate().unwrap_err().to_string().contains("shortest match"));
        assert!(Speculation::Off.validate().is_ok() && Speculation::lookup().validate().is_ok());
    }
}
