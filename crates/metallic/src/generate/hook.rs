//! What stands between logits and token: a program's own code, and a format that the answer must have.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::EngineError;
use crate::text::ReasoningSplitter;

/// What a [`Request`](super::Request) may run on the engine's thread before each choice: it sees the tokens so far, prompt and
/// answer, and may change the logits of the next one.
pub type LogitsHook = Box<dyn FnMut(&[u32], &mut [f32]) + Send>;

/// Where an answer stands before its next token.
#[cfg_attr(not(feature = "constrain"), allow(dead_code))]
pub(crate) struct Place<'a> {
    /// Prompt and answer so far.
    pub(crate) tokens: &'a [u32],
    /// How many of `tokens` are the prompt.
    pub(crate) prompt_len: usize,
    /// Tokens that may still come.
    pub(crate) room: usize,
    /// Tokens that end the answer and are not part of it.
    pub(crate) stop_tokens: &'a [u32],
}

/// What becomes of an answer whose format was asked.
#[cfg_attr(not(feature = "constrain"), allow(dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on, with the tokens whose logits are left.
    Next,
    /// It is complete.
    End,
}

/// A format that the answer must have.
pub(crate) trait Restrict: Send {
    /// Leaves alone what the model thinks before it answers.
    fn wait_for(&mut self, thoughts: ReasoningSplitter);

    /// Bans what may not come next.
    fn restrict(&mut self, place: &Place<'_>, row: &mut [f32]) -> Result<Verdict, EngineError>;
}

/// A hook, a format, or both, and the memory they work in: the program's own logits stay as they are.
#[derive(Default)]
pub(super) struct Hook {
    call: Option<LogitsHook>,
    format: Option<Box<dyn Restrict>>,
    row: Vec<f32>,
}

impl Hook {
    pub(super) fn set_call(&mut self, call: LogitsHook) {
        self.call = Some(call);
    }

    #[cfg(feature = "constrain")]
    pub(super) fn set_format(&mut self, format: Box<dyn Restrict>) {
        self.format = Some(format);
    }

    /// Has the format wait for the end of thoughts.
    pub(super) fn wait_for(&mut self, thoughts: &ReasoningSplitter) {
        if let Some(format) = &mut self.format {
            format.wait_for(thoughts.clone());
        }
    }

    /// The logits as the hook and the format leave them; `None`: the answer is complete. The format is asked where the next token
    /// of the answer is chosen. A panic is an error of its request.
    pub(super) fn run(
        &mut self,
        place: &Place<'_>,
        chooses: bool,
        logits: &[f32],
    ) -> Result<Option<&[f32]>, EngineError> {
        let Self { call, format, row } = self;
        row.clear();
        row.extend_from_slice(logits);
        let run = || {
            if let Some(call) = call {
                call(place.tokens, row);
            }
            format.as_mut().filter(|_| chooses).map_or(Ok(Verdict::Next), |f| f.restrict(place, row))
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(Verdict::Next)) => Ok(Some(row)),
            Ok(Ok(Verdict::End)) => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(panic) => Err(EngineError::Hook { message: panic_message(panic.as_ref()) }),
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".to_owned())
}
