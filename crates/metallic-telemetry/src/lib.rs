//! What the engine tells while it works: one type of event for files, timelines, dashboards and metrics.
//!
//! Events travel as `tracing` events of the target [`TARGET`] with two fields: `kind`, and `json`, the event as one line, which is written
//! when somebody asks for it; those that hold until they are told anew have `lasting` as well. Where nobody listens, none is made:
//! [`emit`] looks at one number and goes on. Spans around the work are of the target [`SPANS`].
#![forbid(unsafe_code)]

mod event;

use std::error::Error;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};

pub use event::{
    CacheSummary, Compile, CompileSource, End, Event, Fault, Load, Lost, Memory, Name, OpTime, Ops, Owned,
    Phase, PoolSummary, Preemption, ProviderChoice, Queue, Request, Start, Step, Verify, Warning,
};
/// What spans and subscribers are made with, in the version that events go through.
pub use tracing;

/// The target of all events.
pub const TARGET: &str = "metallic::telemetry";
/// The target of spans.
pub const SPANS: &str = "metallic";
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

/// Whether anybody listens, or keeps what lasts for those who come later.
#[inline]
pub fn is_kept() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::INFO, lasting)
}

/// Tells what holds until it is told anew, such as what is loaded: a subscriber may take such events, which have the field `lasting`,
/// while it takes no others. Whoever comes late learns from them where things stand.
#[inline]
pub fn emit_lasting(event: impl FnOnce() -> Event) {
    if is_kept() {
        deliver_lasting(event());
    }
}

#[cold]
fn deliver(event: Event) {
    let (kind, told) = (event.kind(), Told(Arc::new(Record::now(event))));
    let json: &(dyn Error + 'static) = &told;
    tracing::event!(target: TARGET, tracing::Level::INFO, kind, json);
}

#[cold]
fn deliver_lasting(event: Event) {
    let (kind, told) = (event.kind(), Told(Arc::new(Record::now(event))));
    let json: &(dyn Error + 'static) = &told;
    tracing::event!(target: TARGET, tracing::Level::INFO, kind, json, lasting = true);
}

/// A record on its way through `tracing`, which knows no values of others but errors: as text it is its line, made when it is asked for,
/// and a subscriber that knows this crate takes it as it is.
#[derive(Debug)]
struct Told(Arc<Record>);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.to_line())
    }
}

impl Error for Told {}

/// The line in a `tracing` event, for subscribers; `None` for events of others.
pub fn line_of(event: &tracing::Event<'_>) -> Option<String> {
    if event.metadata().target() != TARGET {
        return None;
    }
    let mut found = Line(None);
    event.record(&mut found);
    found.0
}

/// The record in a `tracing` event, without a line being made; `None` for events of others.
pub fn record_of(event: &tracing::Event<'_>) -> Option<Arc<Record>> {
    if event.metadata().target() != TARGET {
        return None;
    }
    let mut found = Taken(None);
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

struct Taken(Option<Arc<Record>>);

impl Visit for Taken {
    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}

    fn record_error(&mut self, _: &Field, value: &(dyn Error + 'static)) {
        if let Some(Told(record)) = value.downcast_ref() {
            self.0 = Some(Arc::clone(record));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing::span::{Attributes, Id};
    use tracing::{Metadata, Subscriber};

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
        emit_lasting(|| unreachable!("nobody keeps it"));
    }

    /// Takes events that last, and others where it is told to.
    #[derive(Default)]
    struct Listener {
        all: bool,
        found: Mutex<Vec<(String, Arc<Record>)>>,
    }

    struct Shared(Arc<Listener>);

    impl Subscriber for Shared {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == TARGET && (self.0.all || metadata.fields().field("lasting").is_some())
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            let (line, record) = (line_of(event), record_of(event));
            self.0.found.lock().unwrap().push((line.expect("a line"), record.expect("a record")));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn subscribers_get_lines_and_records_and_may_take_only_what_lasts() {
        let warning = || Event::Warning(Warning { about: "copy".into(), text: "slow".to_owned() });
        for all in [false, true] {
            let listener = Arc::new(Listener { all, ..Listener::default() });
            tracing::subscriber::with_default(Shared(Arc::clone(&listener)), || {
                assert_eq!((is_on(), is_kept()), (all, true));
                emit(|| Event::Queue(Queue::default()));
                emit_lasting(warning);
                tracing::info!(target: "another", "of somebody else");
            });
            let found = listener.found.lock().unwrap();
            let kinds: Vec<&str> = found.iter().map(|(_, record)| record.event.kind()).collect();
            assert_eq!(kinds, if all { vec!["queue", "warning"] } else { vec!["warning"] });
            assert!(found.iter().all(|(line, record)| Record::parse(line).unwrap() == **record));
        }
    }
}
