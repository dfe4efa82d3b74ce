//! Metal.framework for Linux, over [softmetal]: programs that are written in Rust on `objc2-metal` run here unchanged,
//! host code and kernels, and every step is held to Metal's rules.
//!
//! The crate has no interface that a program calls to use Metal: it *is* the framework and the Objective-C runtime
//! below it, by the symbols that objc2 links to. `cargo xtask metal-on-linux` builds programs against it. What is
//! public here is for tests: which devices and which macOS there are ([`set_devices`], [`set_macos`]), what fails ([`faults`]), what was done wrong
//! ([`problems`]), and what was never released ([`leaks`]).
//!
//! What breaks a rule panics with a sentence that says what Metal would do: where Metal's validation layer would end
//! the process, a test fails. On other systems than Linux the crate is empty.
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

pub mod faults;
mod foundation;
mod leaks;
mod metal;
mod mps;
mod mps_graph;
mod objc;
mod problem;
mod settings;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use leaks::{Leak, blocks, leaks};
pub use metal::profile::{Profile, Times};
pub use mps::set_graph_commits;
pub use problem::{Problem, Rule, problems};
pub use settings::{Settings, set_captures, set_checked, set_devices, set_macos, set_pools_required};

/// What is behind a lock, also where a thread has panicked with it: a refused message must not spoil the next test.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
