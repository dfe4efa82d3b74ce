//! The `metallic` binary: against a hub that lives in the test, and with small models.
// Signals, shells and /proc are part of what is tested.
#![cfg(unix)]

mod answer;
mod bad;
mod devices;
mod diff;
mod disk;
mod hostile;
mod hub;
mod nvidia;
mod piped;
mod pull;
mod quantize;
mod repair;
mod split;
mod stop;
mod strangers;
mod support;
mod template;
mod tools;
mod tune;
mod usage;
mod wheel;
