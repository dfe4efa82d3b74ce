//! Options for guessing ahead.

use clap::{Args, ValueEnum};
use metallic::{Llm, Speculation};

use crate::{load, term::Ui};

/// Whether and how tokens are guessed ahead.
#[derive(Debug, Default, Args)]
pub(crate) struct SpeculationOptions {
    /// Guess tokens ahead, and check them in one step: the same answer, faster where it repeats what came before [default: off]
    #[arg(long, value_name = "HOW")]
    pub(crate) speculate: Option<How>,
    /// Let a smaller model with the same vocabulary guess ahead: alias, OWNER/REPO[:FILE|:QUANT], GGUF file or folder
    #[arg(long, value_name = "MODEL", conflicts_with = "speculate")]
    pub(crate) draft: Option<String>,
}

/// How tokens are guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum How {
    /// What followed the last time the same tokens stood there
    Lookup,
    /// Not at all
    Off,
}

impl SpeculationOptions {
    /// Fetches the smaller model where it is not on this machine.
    pub(crate) fn resolve(&self, ui: Ui) -> anyhow::Result<Speculation> {
        Ok(match (&self.draft, self.speculate) {
            (Some(model), _) => Speculation::draft(load::path(model, ui)?),
            (None, Some(How::Lookup)) => Speculation::lookup(),
            (None, Some(How::Off) | None) => Speculation::Off,
        })
    }

    /// Says so where a model does not guess although it should.
    pub(crate) fn tell(&self, llm: &Llm, ui: Ui) {
        if self.is_on() && !llm.engine().config().speculation.is_on() {
            ui.note("note: nothing is guessed ahead: the model has recurrent layers, whose states cannot be taken back");
        }
    }

    /// Whether anything is to be guessed.
    pub(crate) fn is_on(&self) -> bool {
        self.draft.is_some() || self.speculate == Some(How::Lookup)
    }
}
