//! Failures on request: each is counted down by its own kind of event, and happens once.

use std::sync::{Mutex, OnceLock};

use crate::lock;

/// What can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// A buffer, heap, queue or command buffer: null comes back.
    Allocation,
    /// A library or a pipeline: an error comes back.
    Compile,
    /// A command buffer ends with the error of a GPU that faulted.
    Gpu,
    /// A command buffer ends because it took too long.
    Timeout,
    /// A command buffer ends because the device was removed, and so do all after it.
    DeviceRemoved,
    /// A command buffer ends for want of memory.
    OutOfMemory,
    /// An archive, residency set or sample buffer: an error comes back.
    Object,
    /// A moment that the GPU was asked to note: it does not.
    Sample,
    /// A kernel, matrix or graph of MPS: nil comes back.
    Library,
}

const NAMES: [(&str, Fault); 9] = [
    ("allocation", Fault::Allocation),
    ("compile", Fault::Compile),
    ("gpu", Fault::Gpu),
    ("timeout", Fault::Timeout),
    ("removed", Fault::DeviceRemoved),
    ("memory", Fault::OutOfMemory),
    ("object", Fault::Object),
    ("sample", Fault::Sample),
    ("library", Fault::Library),
];

/// Faults that are still to come, each with the events until then.
fn planned() -> &'static Mutex<Vec<(Fault, usize)>> {
    static PLANNED: OnceLock<Mutex<Vec<(Fault, usize)>>> = OnceLock::new();
    PLANNED
        .get_or_init(|| Mutex::new(std::env::var("SOFTMETAL_FAULTS").map_or(Vec::new(), |text| parse(&text))))
}

/// # Panics
/// On what names no fault: a test must not pass because nothing failed.
fn parse(text: &str) -> Vec<(Fault, usize)> {
    let one = |word: &str| {
        let (name, nth) = word.trim().split_once(':').unwrap_or((word.trim(), "1"));
        let fault = NAMES.iter().find(|(known, _)| *known == name)?.1;
        Some((fault, nth.parse().ok().filter(|nth| *nth > 0)?))
    };
    let words = text.split(',').filter(|word| !word.trim().is_empty());
    words
        .map(|word| {
            one(word).unwrap_or_else(|| {
                let names = NAMES.map(|(name, _)| name).join(", ");
                panic!("SOFTMETAL_FAULTS: `{word}` is none of {names}, with `:` and a number from 1 on")
            })
        })
        .collect()
}

/// Lets the `nth` such event from now on fail, counted from 1.
pub fn plan(fault: Fault, nth: usize) {
    lock(planned()).push((fault, nth.max(1)));
}

/// Forgets what was planned and did not happen; how many that were.
pub fn clear() -> usize {
    std::mem::take(&mut *lock(planned())).len()
}

/// Whether this event is the one to fail.
pub(crate) fn strikes(fault: Fault) -> bool {
    let mut planned = lock(planned());
    let mut struck = false;
    planned.retain_mut(|(kind, left)| {
        if *kind != fault {
            return true;
        }
        *left -= 1;
        struck |= *left == 0;
        *left > 0
    });
    struck
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_counted_down_and_named() {
        assert_eq!(parse("timeout, allocation:3"), [(Fault::Timeout, 1), (Fault::Allocation, 3)]);
        for wrong in ["nothing", "gpu:0", "gpu:x"] {
            assert!(std::panic::catch_unwind(|| parse(wrong)).is_err(), "{wrong}");
        }
        plan(Fault::Compile, 2);
        assert!(!strikes(Fault::Compile) && !strikes(Fault::Gpu) && strikes(Fault::Compile));
        assert!(!strikes(Fault::Compile));
        assert_eq!(clear(), 0);
    }
}
