//! What the driver's results mean for whoever asked.

use std::ffi::c_int;

/// What a result of the driver means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Done,
    /// There is no room; everything else goes on.
    NoMemory,
    /// The context is broken: every later call gives the same result, and nothing that lies on the GPU can be reached.
    Lost,
    /// This call failed.
    Failed,
}

/// Results after which a context cannot be used again, by their numbers in `cuda.h`.
const LOST: [(c_int, &str); 17] = [
    (4, "the driver is shutting down"),
    (46, "the device is not available"),
    (201, "the context is no longer valid"),
    (214, "an uncorrectable memory error"),
    (220, "an uncorrectable error of the link between GPUs"),
    (226, "a contained memory error"),
    (700, "an illegal address"),
    (702, "a kernel ran too long"),
    (709, "the context was destroyed"),
    (710, "an assertion of a kernel"),
    (714, "an error of the hardware's stack"),
    (715, "an illegal instruction"),
    (716, "a misaligned address"),
    (717, "an address of another space"),
    (718, "an invalid program counter"),
    (719, "a launch that failed"),
    (721, "memory of the matrix units was not given back"),
];

pub(super) fn meaning(status: c_int) -> Meaning {
    match status {
        0 => Meaning::Done,
        2 => Meaning::NoMemory,
        _ if LOST.iter().any(|(code, _)| *code == status) => Meaning::Lost,
        _ => Meaning::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_told_apart_by_what_can_still_be_done() {
        for (status, expected) in [
            (0, Meaning::Done),
            (2, Meaning::NoMemory),
            // An invalid value, a kernel that is not in its module, a launch with too many threads, PTX that is refused.
            (1, Meaning::Failed),
            (218, Meaning::Failed),
            (500, Meaning::Failed),
            (701, Meaning::Failed),
            (999, Meaning::Failed),
            (-7, Meaning::Failed),
        ] {
            assert_eq!(meaning(status), expected, "{status}");
        }
        for (status, why) in LOST {
            assert_eq!(meaning(status), Meaning::Lost, "{status}: {why}");
        }
        assert!(LOST.is_sorted_by_key(|(code, _)| *code), "each stands once, in order");
    }
}
