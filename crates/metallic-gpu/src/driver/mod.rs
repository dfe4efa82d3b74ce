//! What the driver of a real GPU would have to decide, decided by pure functions: they are tested on any machine, the
//! driver that calls them can be run on few.

pub(crate) mod archive;
pub(crate) mod batch;
pub(crate) mod check;
pub(crate) mod choose;
pub(crate) mod fault;
pub(crate) mod import;
#[cfg_attr(not(any(test, target_os = "macos", metal_on_linux)), allow(dead_code))]
pub(crate) mod language;
pub(crate) mod memory;
pub(crate) mod mps;
pub(crate) mod progress;
pub(crate) mod residency;
#[cfg_attr(not(any(test, feature = "cuda")), allow(dead_code))]
pub(crate) mod staging;
pub(crate) mod steps;
pub(crate) mod ticks;
