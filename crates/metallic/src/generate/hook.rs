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

    /// Finds out what may come next, at a place whose logits are still being computed. Mistakes show when it is asked.
    fn prepare(&mut self, place: &Place<'_>);

    /// Writes into `row` the logits of what may come next, and bans all else.
    fn restrict(
        &mut self,
        place: &Place<'_>,
        logits: &[f32],
        row: &mut Vec<f32>,
    ) -> Result<Verdict, EngineError>;
}

/// A hook, a format, or both, and the memory they work in: the program's own logits stay as they are.
#[derive(Default)]
pub(super) struct Hook {
    call: Option<LogitsHook>,
    format: Option<Box<dyn Restrict>>,
    row: Vec<f32>,
    /// The logits as the program's own code leaves them to the format.
    edited: Vec<f32>,
    /// What the format has made of `row`, before it is asked for.
    ready: Option<Result<Verdict, EngineError>>,
    /// What the format broke down with while it looked ahead.
    broken: Option<String>,
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

    /// Whether there is a format, and nothing of the program's own that comes before it.
    pub(super) fn is_format(&self) -> bool {
        self.format.is_some() && self.call.is_none()
    }

    /// Has the format do what needs no logits. A panic is told where its token is chosen.
    pub(super) fn prepare(&mut self, place: &Place<'_>) {
        let Some(format) = &mut self.format else { return };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| format.prepare(place))) {
            self.broken = Some(panic_message(panic.as_ref()));
        }
    }

    /// Has the format ban what may not come next; the same place is [run](Self::run) next.
    pub(super) fn restrict(&mut self, place: &Place<'_>, logits: &[f32]) {
        self.ready = None;
        self.ready = Some(self.decide(place, true, logits));
    }

    /// The logits as the hook and the format leave them; `None`: the answer is complete. The format is asked where the next token
    /// of the answer is chosen. A panic is an error of its request.
    pub(super) fn run(
        &mut self,
        place: &Place<'_>,
        chooses: bool,
        logits: &[f32],
    ) -> Result<Option<&[f32]>, EngineError> {
        let verdict = match self.ready.take() {
            Some(verdict) => verdict?,
            None => self.decide(place, chooses, logits)?,
        };
        Ok((verdict == Verdict::Next).then_some(&self.row[..]))
    }

    fn decide(&mut self, place: &Place<'_>, chooses: bool, logits: &[f32]) -> Result<Verdict, EngineError> {
        let Self { call, format, row, edited, broken, .. } = self;
        if let Some(message) = broken {
            return Err(EngineError::Hook { message: message.clone() });
        }
        let is_edited = call.is_some();
        let run = || {
            let mut edit = |to: &mut Vec<f32>| {
                to.clear();
                to.extend_from_slice(logits);
                if let Some(call) = call {
                    call(place.tokens, to);
                }
            };
            match format.as_mut().filter(|_| chooses) {
                None => {
                    edit(row);
                    Ok(Verdict::Next)
                }
                Some(format) if is_edited => {
                    edit(edited);
                    format.restrict(place, edited, row)
                }
                Some(format) => format.restrict(place, logits, row),
            }
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            Err(EngineError::Hook { message })
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Breaks;

    impl Restrict for Breaks {
        fn wait_for(&mut self, _: ReasoningSplitter) {}

        fn prepare(&mut self, _: &Place<'_>) {
            panic!("while it looked ahead");
        }

        fn restrict(&mut self, _: &Place<'_>, _: &[f32], _: &mut Vec<f32>) -> Result<Verdict, EngineError> {
            Ok(Verdict::Next)
        }
    }

    #[test]
    fn a_format_that_breaks_down_while_it_looks_ahead_fails_where_its_token_is_chosen() {
        let mut hook = Hook { format: Some(Box::new(Breaks)), ..Hook::default() };
        let place = Place { tokens: &[1], prompt_len: 1, room: 1, stop_tokens: &[] };
        assert!(hook.run(&place, true, &[0.0]).is_ok());
        hook.prepare(&place);
        hook.restrict(&place, &[0.0]);
        let error = hook.run(&place, true, &[0.0]).unwrap_err().to_string();
        assert!(error.contains("while it looked ahead"), "{error}");
        assert!(hook.run(&place, true, &[0.0]).is_err(), "nor is it asked again");
    }
}
