//! A thread that writes records, so that no step waits for a disk or a reader.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel, sync_channel};
use std::thread;
use std::time::Duration;

use metallic_telemetry::{End, Event, Record, Warning};

use super::hub::{Hub, Outlet, Totals};

/// Records that wait to be written at most: seconds of work.
pub(super) const WAITING: usize = 4096;
/// How long records gather before they are written; in the shortest steps there are, some hundreds.
const GATHERS: Duration = Duration::from_millis(50);
/// How long the end waits for what is still to be written.
const PATIENCE: Duration = Duration::from_secs(3);

/// What records become.
pub(super) trait Sink: Send {
    /// Writes one, to a buffer.
    fn write(&mut self, record: &Record) -> io::Result<()>;

    /// Writes the last one.
    fn end(&mut self, record: &Record) -> io::Result<()>;

    /// Hands what is buffered to the system.
    fn flush(&mut self) -> io::Result<()>;
}

/// A line of JSON for each record.
pub(super) struct Lines<W: Write>(BufWriter<W>);

impl Lines<File> {
    /// In a new file.
    pub(super) fn create(path: &std::path::Path) -> io::Result<Lines<File>> {
        Ok(Lines::to(File::create(path)?))
    }
}

impl<W: Write> Lines<W> {
    pub(super) fn to(out: W) -> Lines<W> {
        Lines(BufWriter::with_capacity(1 << 16, out))
    }
}

impl<W: Write + Send> Sink for Lines<W> {
    fn write(&mut self, record: &Record) -> io::Result<()> {
        self.0.write_all((record.to_line() + "\n").as_bytes())
    }

    fn end(&mut self, record: &Record) -> io::Result<()> {
        self.write(record)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A tap of a hub with the thread that writes it.
#[derive(Debug)]
pub(super) struct Writer {
    id: u64,
    hub: Arc<Hub>,
    /// Takes the figures of the end, once the tap is gone.
    totals: Sender<Totals>,
    /// Comes when all is written, with what went wrong.
    done: Receiver<Option<io::Error>>,
}

impl Writer {
    /// Starts to write what holds now and everything from now on. `None` after the end of all. Where writing fails, others are told, if
    /// it has a name.
    pub(super) fn start(
        hub: &Arc<Hub>,
        name: Option<String>,
        sink: impl Sink + 'static,
    ) -> io::Result<Option<Writer>> {
        let (to, records) = sync_channel(WAITING);
        let Some(id) = hub.attach(Outlet::Writer(to)) else { return Ok(None) };
        let (finished, done) = channel();
        let (totals, figures) = channel();
        let writer = Writer { id, hub: Arc::clone(hub), totals, done };
        let hub = Arc::clone(hub);
        let work = move || {
            let written = write_all(sink, &records, &figures);
            if written.is_err() {
                hub.detach(id);
            }
            if let (Err(error), Some(name)) = (&written, name) {
                let text = format!("{name} is written no further: {error}");
                hub.take(&Arc::new(Record::now(Event::Warning(Warning { about: "telemetry".into(), text }))));
            }
            // Whoever waits for it may have given up.
            let _ = finished.send(written.err());
        };
        thread::Builder::new().name("metallic-telemetry".to_owned()).spawn(work).inspect_err(|_| {
            writer.hub.detach(id);
        })?;
        Ok(Some(writer))
    }

    /// Writes the end; gives what went wrong meanwhile.
    pub(super) fn finish(self) -> Option<io::Error> {
        self.finish_within(PATIENCE)
    }

    /// Whether its thread has ended.
    pub(super) fn is_done(&self) -> bool {
        !matches!(self.done.try_recv(), Err(TryRecvError::Empty))
    }

    /// The same, where that takes no longer.
    pub(super) fn finish_within(self, patience: Duration) -> Option<io::Error> {
        // Where the thread has ended, it has said why.
        let _ = self.totals.send(self.hub.detach(self.id));
        match self.done.recv_timeout(patience) {
            Ok(error) => error,
            Err(RecvTimeoutError::Timeout) => {
                Some(io::Error::new(io::ErrorKind::TimedOut, format!("not all was written in {patience:?}")))
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

fn write_all(
    mut sink: impl Sink,
    records: &Receiver<Arc<Record>>,
    figures: &Receiver<Totals>,
) -> io::Result<()> {
    let mut totals = None;
    // Waits for the first record of a while, then lets others gather: a thread that is woken for every step takes a processor from
    // the next one.
    while let Ok(mut record) = records.recv() {
        loop {
            sink.write(&record)?;
            match records.try_recv() {
                Ok(next) => record = next,
                Err(_) => break,
            }
        }
        // Who looks at the file sees all there is.
        sink.flush()?;
        if totals.is_none() {
            totals = figures.recv_timeout(GATHERS).ok();
        }
    }
    let Totals { steps, lost } = totals.or_else(|| figures.recv().ok()).unwrap_or_default();
    sink.end(&Record::now(Event::End(End { steps, lost })))?;
    sink.flush()
}
