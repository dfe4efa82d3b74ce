//! The server as clients meet it.
// Bodies are written where they are used.
#![allow(clippy::needless_pass_by_value)]

mod browser;
mod chaos;
mod chat;
mod completions;
mod formats;
mod listening;
mod messages;
mod models;
mod others;
mod patience;
mod refusals;
mod responses;
mod support;
mod tools;
