//! Rules of Metal and of Objective-C, and what happens to those who break them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::lock;

macro_rules! rules {
    ($($(#[$doc:meta])+ $rule:ident,)+) => {
        /// What was broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $($(#[$doc])+ $rule,)+
        }
    };
}
rules! {
    /// An object is used after its last release.
    UseAfterRelease,
    /// An object is released more often than it was retained.
    OverRelease,
    /// An object goes while a command buffer that does not hold it is under way, or before it is committed.
    ReleasedInFlight,
    /// An object of another class than the message takes, or one that was never initialised.
    WrongObject,
    /// A message that the class does not answer.
    NoMethod,
    /// An object is autoreleased where no pool is open.
    NoPool,
    /// An encoder is used after it ended, left open, or begun beside another.
    EncoderState,
    /// A command buffer is used in an order that it does not allow.
    CommandBufferState,
    /// A kernel's argument has nothing bound to it.
    MissingBinding,
    /// An index, offset or length that does not fit.
    Range,
    /// An offset or a length that is not a multiple of what it must be.
    Alignment,
    /// A threadgroup that the pipeline or the device does not allow.
    Threadgroup,
    /// Memory is used in a way that its storage mode excludes.
    StorageMode,
    /// Two dispatches that may run together use the same memory, and one writes.
    Hazard,
    /// A resource that Metal does not track is used by two encoders, and no fence orders them.
    Untracked,
    /// Memory that no residency set or command makes reachable.
    Residency,
    /// Objects of two devices meet.
    Device,
    /// A descriptor that lacks something, or asks for what there is not.
    Descriptor,
    /// A kernel did wrong: what the checked build of softmetal reports, or a crash.
    Kernel,
    /// A block of the program panicked on a thread of Metal's, which ends the process on a Mac.
    Handler,
    /// Something that takes too much to check: whether it is right is not known.
    Unchecked,
}

/// One broken rule.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Which.
    pub rule: Rule,
    /// What happened, and what Metal would do.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SAID}, {:?}: {}", self.rule, self.text)
    }
}

/// How every message begins.
const SAID: &str = "Metal validation";

static PROBLEMS: Mutex<Vec<Problem>> = Mutex::new(Vec::new());

/// Takes the problems since the last call, of all threads, oldest first.
pub fn problems() -> Vec<Problem> {
    std::mem::take(&mut *lock(&PROBLEMS))
}

/// Writes a problem down and goes on.
pub(crate) fn note(rule: Rule, text: String) {
    keep(Problem { rule, text });
}

fn keep(problem: Problem) {
    eprintln!("{problem}");
    lock(&PROBLEMS).push(problem);
}

/// Writes a problem down and ends what led to it, as Metal's validation layer would end the process.
///
/// # Panics
/// Always, except on a thread that panics already.
pub(crate) fn refuse(rule: Rule, text: String) {
    let problem = Problem { rule, text };
    let said = problem.to_string();
    keep(problem);
    assert!(std::thread::panicking(), "{said}");
}

/// Does what may panic on a thread that others wait for: it is written down, and the thread goes on.
pub(crate) fn caught(what: &str, f: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else { return };
    let text = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast_ref::<&str>().map_or("without a text", |text| *text).to_owned(),
    };
    // A rule that was broken is written down already.
    if !text.starts_with(SAID) {
        note(Rule::Handler, format!("{what} panics, on a thread where nobody can catch it: {text}"));
    }
}
