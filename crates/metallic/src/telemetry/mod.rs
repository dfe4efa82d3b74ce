//! What the engine tells while it works, and where that goes.
//!
//! Every part of the engine tells [events](Event) through `tracing`. A [`Telemetry`] takes them and writes them to files, hands them to the
//! program, or to readers that attach to the process. Where there is none, or nobody asks it for anything, nothing is made.
//!
//! ```no_run
//! use metallic::telemetry::Telemetry;
//!
//! let telemetry = Telemetry::new("my program", "1.0");
//! telemetry.write_lines("run.jsonl")?;
//! telemetry.install()?;
//! // … load and generate …
//! for error in telemetry.finish() {
//!     eprintln!("{error}");
//! }
//! # Ok::<(), metallic::telemetry::TelemetryError>(())
//! ```
//!
//! A program that has a subscriber of its own keeps it: either it writes [`line_of`] each event itself, or it hands events to
//! [`Telemetry::observe`].

mod hub;
#[cfg(unix)]
mod socket;
pub(crate) mod tell;
mod trace;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

pub use metallic_telemetry::*;

use hub::{Hub, Listener, Outlet};
#[cfg(unix)]
use socket::Socket;
#[cfg(unix)]
pub use socket::{Process, processes};
pub use tell::{load_event, loading, tell_load, warn};
use trace::Trace;
use writer::{Lines, Writer};

/// Why something cannot be told, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// A file cannot be written.
    #[error("cannot write {what} to `{}`: {source}", path.display())]
    Write {
        /// What it is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The socket cannot be opened.
    #[error("nobody can attach to this process: {source}")]
    Socket {
        /// What the system says, of which path.
        source: io::Error,
    },
    /// The process has a subscriber already.
    #[error("this process has another subscriber of `tracing`; hand its events to `Telemetry::observe`")]
    Subscriber,
    /// Everything was finished before.
    #[error("telemetry has ended: {what} comes too late")]
    Ended {
        /// What was asked for.
        what: &'static str,
    },
}

/// Takes what the engine tells, and hands it to files and readers. Dropping it ends them in order.
#[derive(Debug)]
pub struct Telemetry {
    hub: Arc<Hub>,
    files: Mutex<Vec<OpenFile>>,
    #[cfg(unix)]
    socket: Mutex<Option<Socket>>,
}

#[derive(Debug)]
struct OpenFile {
    what: &'static str,
    path: PathBuf,
    writer: Writer,
}

impl Telemetry {
    /// Nobody listens yet. `program` and `version` stand in the first record.
    pub fn new(program: impl Into<Name>, version: impl Into<Name>) -> Telemetry {
        let hub = Arc::new(Hub::default());
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let (program, version, pid) = (program.into(), version.into(), std::process::id());
        hub.take(&Arc::new(Record::now(Event::Start(Start { program, version, pid, unix }))));
        Telemetry {
            hub,
            files: Mutex::default(),
            #[cfg(unix)]
            socket: Mutex::default(),
        }
    }

    /// Makes it the subscriber of the whole process.
    pub fn install(&self) -> Result<(), TelemetryError> {
        tracing::subscriber::set_global_default(self.subscriber()).map_err(|_| TelemetryError::Subscriber)
    }

    /// It as a subscriber, for `tracing::subscriber::with_default`. An engine tells the subscriber of the thread that made it.
    pub fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + 'static {
        Listener(Arc::clone(&self.hub))
    }

    /// Takes an event of another subscriber's, if it is one of the engine's.
    pub fn observe(&self, event: &tracing::Event<'_>) {
        if let Some(record) = record_of(event) {
            self.hub.take(&record);
        }
    }

    /// Writes every record from now on to a new file, a line of JSON each. A thread does so; records that it has no room for are counted.
    pub fn write_lines(&self, path: impl AsRef<Path>) -> Result<(), TelemetryError> {
        let path = path.as_ref();
        self.write("telemetry", path, Lines::create)
    }

    /// Writes a timeline to a new file, which <https://ui.perfetto.dev> and `chrome://tracing` show: steps, sampling, compilation and loading
    /// of the host, operations of the device by layer, and counters.
    pub fn write_trace(&self, path: impl AsRef<Path>) -> Result<(), TelemetryError> {
        self.write("a trace", path.as_ref(), Trace::create)
    }

    /// Opens the socket of this process, in the folder that [`processes`] looks in: `$METALLIC_RUNTIME_DIR`, else
    /// `$XDG_RUNTIME_DIR/metallic`, else one of this user's alone in the folder for temporary files. Until somebody attaches nothing is made
    /// but what lasts. A reader that is too slow loses records, and is told how many; nothing waits for it.
    #[cfg(unix)]
    pub fn listen(&self) -> Result<PathBuf, TelemetryError> {
        let socket = Socket::open(&self.hub).map_err(|source| TelemetryError::Socket { source })?;
        let path = socket.path().to_owned();
        *self.socket() = Some(socket);
        Ok(path)
    }

    #[cfg(unix)]
    fn socket(&self) -> std::sync::MutexGuard<'_, Option<Socket>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<S: writer::Sink + 'static>(
        &self,
        what: &'static str,
        path: &Path,
        create: impl FnOnce(&Path) -> io::Result<S>,
    ) -> Result<(), TelemetryError> {
        let failed = |source| TelemetryError::Write { what, path: path.to_owned(), source };
        let sink = create(path).map_err(failed)?;
        let name = format!("`{}`", path.display());
        let writer = Writer::start(&self.hub, Some(name), sink).map_err(failed)?;
        let writer = writer.ok_or(TelemetryError::Ended { what })?;
        self.files().push(OpenFile { what, path: path.to_owned(), writer });
        Ok(())
    }

    /// Hands what holds now and every record from now on to this program. Of those that are not taken `capacity` wait; more are lost, which is
    /// told by an [`Event::Lost`].
    pub fn channel(&self, capacity: usize) -> Receiver<Record> {
        let (to, from) = sync_channel(capacity);
        // After the end the line is closed at once.
        let _ = self.hub.attach(Outlet::Program(to));
        from
    }

    /// Writes what is still to be written, and the end. Gives what could not be. Later events go nowhere.
    pub fn finish(&self) -> Vec<TelemetryError> {
        let files = std::mem::take(&mut *self.files());
        let ended = files.into_iter().filter_map(|OpenFile { what, path, writer }| {
            writer.finish().map(|source| TelemetryError::Write { what, path, source })
        });
        let errors = ended.collect();
        #[cfg(unix)]
        if let Some(socket) = self.socket().take() {
            socket.close();
        }
        self.hub.close();
        errors
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Vec<OpenFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // Whoever wants to know what failed asks before.
        let _ = self.finish();
    }
}
