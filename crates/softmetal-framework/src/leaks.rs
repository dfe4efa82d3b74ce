//! What was never released.

use crate::foundation::is_traced;
use crate::objc::{self, Id};
use crate::problem::problems;

/// An object that is still alive.
#[derive(Debug, Clone)]
pub struct Leak {
    /// Its class, address and label.
    pub object: String,
    /// References to it.
    pub references: usize,
    /// The function that made it, where that is known.
    pub made_by: Option<String>,
}

/// Objects of Metal that are alive now: nothing, where everything was released. Devices and objects of Foundation,
/// which programs keep in statics, are not among them.
pub fn leaks() -> Vec<Leak> {
    crate::metal::settle();
    let mut found: Vec<Id> = objc::alive();
    found.retain(|id| id.class().is_some_and(|class| is_traced(class) && !crate::metal::is_device(class)));
    let describe =
        |id: Id| Leak { object: id.describe(), references: id.retain_count(), made_by: id.origin() };
    found.into_iter().map(describe).collect()
}

/// Blocks that were copied and never released.
pub fn blocks() -> usize {
    crate::metal::settle();
    usize::try_from(objc::blocks_alive()).unwrap_or(0)
}

/// What a process that was asked to be strict ends with: leaks, and problems that nobody took.
pub(crate) fn at_exit() -> Vec<String> {
    let leak = |leak: Leak| {
        let place = leak.made_by.map(|place| format!(", made by {place}")).unwrap_or_default();
        format!("Metal validation, leak: {} has {} references at exit{place}", leak.object, leak.references)
    };
    let blocks = match blocks() {
        0 => None,
        count => Some(format!("Metal validation, leak: {count} blocks were copied and not released")),
    };
    let problems = problems().into_iter().map(|problem| format!("at exit: {problem}"));
    leaks().into_iter().map(leak).chain(blocks).chain(problems).collect()
}
