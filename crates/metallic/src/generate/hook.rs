//! A program's own code between logits and token.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::EngineError;

/// What a [`Request`](super::Request) may run on the engine's thread before each choice: it sees the tokens so far, prompt and
/// answer, and may change the logits of the next one.
pub type LogitsHook = Box<dyn FnMut(&[u32], &mut [f32]) + Send>;

/// A hook, and the memory it works in: the program's own logits stay as they are.
pub(super) struct Hook {
    call: LogitsHook,
    row: Vec<f32>,
}

impl Hook {
    pub(super) fn new(call: LogitsHook) -> Self {
        Self { call, row: Vec::new() }
    }

    /// The logits as the hook leaves them. Its panic is an error of its request.
    pub(super) fn run(&mut self, tokens: &[u32], logits: &[f32]) -> Result<&[f32], EngineError> {
        let Self { call, row } = self;
        row.clear();
        row.extend_from_slice(logits);
        match catch_unwind(AssertUnwindSafe(|| call(tokens, row))) {
            Ok(()) => Ok(row),
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
