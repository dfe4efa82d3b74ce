//! What the engine tells while it works: one type of event for files, timelines, dashboards and metrics.
//!
//! Events travel as `tracing` events of the target [`TARGET`] with two fields: `kind`, and `json`, the event as one line. Where nobody
//! listens, none is made: [`emit`] looks at one number and goes on.
#![forbid(unsafe_code)]

mod event;

use std::fmt::{Debug, Write as _};
use std::sync::LazyLock;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};

pub use event::{
    CacheSummary, Compile, CompileSource, End, Event, Fault, Load, Memory, Name, OpTime, Ops, Owned, Phase,
    PoolSummary, Preemption, ProviderChoice, Queue, Request, Start, Step, Verify, Warning,
};

/// The target of all events.
pub const TARGET: &str = "metallic::telemetry";
/// The version of what lines contain. It goes up where a field changes its meaning or goes away, not where one is added.
pub const VERSION: u32 = 1;

/// An event with its time: one line of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub v: u32,
    /// Seconds since the process first looked at the clock of this crate.
    pub t: f64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// A line that is no record.
#[derive(Debug)]
pub enum LineError {
    /// It is of another version.
    Version {
        /// Which.
        found: u64,
    },
    /// It is no JSON, or has not the fields of its kind.
    Malformed(serde_json::Error),
}

impl std::fmt::Display for LineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LineError::Version { found } => {
                write!(f, "telemetry of version {found}; this program reads version {VERSION}")
            }
            LineError::Malformed(error) => write!(f, "no telemetry: {error}"),
        }
    }
}

impl std::error::Error for LineError {}

impl Record {
    /// Now.
    pub fn now(event: Event) -> Record {
        Record { v: VERSION, t: seconds(), event }
    }

    /// Reads a line.
    pub fn parse(line: &str) -> Result<Record, LineError> {
        #[derive(Deserialize)]
        struct Versioned {
            v: u64,
        }
        // The version first: what follows may be of any form in another one.
        let Versioned { v } = serde_json::from_str(line).map_err(LineError::Malformed)?;
        if v != u64::from(VERSION) {
            return Err(LineError::Version { found: v });
        }
        serde_json::from_str(line).map_err(LineError::Malformed)
    }

    /// As a line, without its end. Numbers that are none are written as `null` by JSON, which [`Record::parse`] refuses, so events have none.
    pub fn to_line(&self) -> String {
        // Nothing in an event can fail to be written: its keys are strings.
        serde_json::to_string(self).unwrap_or_default()
    }
}

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Seconds on the clock of all records.
pub fn seconds() -> f64 {
    BEGAN.elapsed().as_secs_f64()
}

/// A moment on the clock of all records, in seconds; 0 for those before it began.
pub fn seconds_at(moment: Instant) -> f64 {
    moment.saturating_duration_since(*BEGAN).as_secs_f64()
}

/// Whether anybody listens.
#[inline]
pub fn is_on() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::INFO)
}

/// Tells an event to whoever listens; it is made only then.
#[inline]
pub fn emit(event: impl FnOnce() -> Event) {
    if is_on() {
        deliver(event());
    }
}

#[cold]
fn deliver(event: Event) {
    let kind = event.kind();
    let record = Record::now(event);
    tracing::event!(target: TARGET, tracing::Level::INFO, kind, json = %record.to_line());
}

/// The line in a `tracing` event, for subscribers; `None` for events of others.
pub fn line_of(event: &tracing::Event<'_>) -> Option<String> {
    if event.metadata().target() != TARGET {
        return None;
    }
    let mut found = Line(None);
    event.record(&mut found);
    found.0
}

struct Line(Option<String>);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "json" {
            let mut line = String::new();
            // Writing to a string does not fail.
            let _ = write!(line, "{value:?}");
            self.0 = Some(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_flat_line() {
        let step = Step { step: 3, tokens: 2, seconds: 0.5, ..Step::default() };
        let line = Record { v: VERSION, t: 1.5, event: Event::Step(step) }.to_line();
        assert!(
            line.starts_with(r#"{"v":1,"t":1.5,"kind":"step","step":3,"#) && !line.contains('\n'),
            "{line}"
        );
        let found = Record::parse(&line).expect("a line");
        assert_eq!((found.event.kind(), found.to_line()), ("step", line));
    }

    #[test]
    fn lines_of_other_versions_and_other_texts_are_told_apart() {
        let newer = Record::parse(r#"{"v":2,"anything":[]}"#).expect_err("another version");
        assert_eq!(newer.to_string(), "telemetry of version 2; this program reads version 1");
        for line in [
            "",
            "{",
            "[]",
            r#"{"t":1}"#,
            r#"{"v":1,"t":1,"kind":"step"}"#,
            r#"{"v":1,"t":1,"kind":"nothing"}"#,
        ] {
            let error = Record::parse(line).expect_err(line).to_string();
            assert!(error.starts_with("no telemetry: "), "{error}");
        }
    }

    #[test]
    fn nothing_is_made_where_nobody_listens() {
        emit(|| unreachable!("nobody listens"));
    }
}
