//! The `metallic` binary: against a hub that lives in the test, and with small models.
// Signals, shells and /proc are part of what is tested.
#![cfg(unix)]

mod answer;
mod bad;
mod caches;
mod devices;
mod diff;
mod disk;
mod doctor;
mod hostile;
mod hub;
mod nvidia;
mod piped;
mod pull;
mod quantize;
mod repair;
mod serve;
mod split;
mod stop;
mod strangers;
mod structure;
mod support;
mod telemetry;
mod template;
mod terminal;
mod tools;
mod top;
mod tune;
mod usage;
mod wheel;
