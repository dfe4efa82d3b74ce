//! The `metallic` binary against a hub that lives in the test.
// Signals, shells and /proc are part of what is tested.
#![cfg(unix)]

mod disk;
mod hub;
mod pull;
mod stop;
mod support;
mod usage;
mod wheel;
