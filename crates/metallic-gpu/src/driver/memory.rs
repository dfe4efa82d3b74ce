//! Memory before it is asked for.

use crate::error::GpuError;
use crate::gpu::Limits;

/// Bytes to allocate for a buffer of so many: a device makes no empty ones.
#[cfg_attr(not(any(target_os = "macos", metal_on_linux)), allow(dead_code))]
pub(crate) fn rounded(bytes: usize) -> usize {
    bytes.max(16)
}

/// Whether so many bytes more may be had, with `held` in use. Past the budget the system takes memory from the GPU
/// while it works, and results are lost.
pub(crate) fn check(what: &'static str, needed: usize, held: u64, limits: &Limits) -> Result<(), GpuError> {
    if needed > limits.max_buffer {
        return Err(GpuError::no_room("one buffer", needed, limits.max_buffer as u64));
    }
    match limits.budget {
        Some(budget) if held.saturating_add(needed as u64) > budget => {
            Err(GpuError::no_room(what, needed, budget))
        }
        _ => Ok(()),
    }
}

/// Asks a device for memory, and once more where it has none and `make_room` says that something was let go.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) fn asked_twice<T>(
    ask: impl Fn() -> Result<T, GpuError>,
    make_room: impl FnOnce() -> Result<bool, GpuError>,
) -> Result<T, GpuError> {
    match ask() {
        Err(full @ GpuError::OutOfMemory { .. }) => {
            if make_room()? {
                ask()
            } else {
                Err(full)
            }
        }
        other => other,
    }
}

/// The budget, from what the system recommends; none where it recommends nothing, as in some virtual machines.
pub(crate) fn budget(recommended: u64) -> Option<u64> {
    (recommended > 0).then_some(recommended)
}

/// Bytes in use: what the system counts for the process, or what the driver itself knows of, if that is more. Whether
/// the system counts shared pages of a file is not written anywhere.
pub(crate) fn held(counted_by_system: u64, counted_here: u64) -> u64 {
    counted_by_system.max(counted_here)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    #[test]
    fn the_budget_is_kept_before_memory_is_asked_for() {
        let limits = Limits { budget: Some(1000), max_buffer: 600, ..LIMITS };
        assert_eq!(check("weights", 600, 400, &limits), Ok(()));
        let error = check("weights", 600, 401, &limits).unwrap_err();
        assert_eq!(error.to_string(), "no room for 600 bytes of weights: 1000 bytes are allowed in all");
        let error = check("weights", 601, 0, &limits).unwrap_err();
        assert!(matches!(error, GpuError::OutOfMemory { budget: Some(600), .. }), "{error}");
        assert!(check("weights", 1, u64::MAX, &limits).is_err());
        assert_eq!(check("weights", 600, u64::MAX, &Limits { budget: None, ..limits }), Ok(()));
    }

    #[test]
    fn a_device_without_room_is_asked_again_only_where_something_was_let_go() {
        let full = || GpuError::no_room("buffers", 7, None);
        // Answers of the device, what is let go in between, what comes of it, and how often the device was asked.
        for (answers, room, expected, times) in [
            ([Ok(1), Ok(2)], Ok(true), Ok(1), 1),
            ([Err(full()), Ok(2)], Ok(true), Ok(2), 2),
            ([Err(full()), Ok(2)], Ok(false), Err(full()), 1),
            ([Err(full()), Err(full())], Ok(true), Err(full()), 2),
            (
                [Err(full()), Ok(2)],
                Err(GpuError::execution("work", "it failed")),
                Err(GpuError::execution("work", "it failed")),
                1,
            ),
            (
                [Err(GpuError::execution("a call", "it failed")), Ok(2)],
                Ok(true),
                Err(GpuError::execution("a call", "it failed")),
                1,
            ),
        ] {
            let asked = std::cell::Cell::new(0);
            let ask = || {
                asked.set(asked.get() + 1);
                answers[asked.get() - 1].clone()
            };
            assert_eq!((asked_twice(ask, || room.clone()), asked.get()), (expected, times));
        }
    }

    #[test]
    fn a_system_that_recommends_nothing_sets_no_budget() {
        assert_eq!((budget(0), budget(7)), (None, Some(7)));
    }

    #[test]
    fn the_larger_count_holds() {
        assert_eq!((held(5, 3), held(3, 5)), (5, 5));
    }
}
