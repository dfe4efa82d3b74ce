//! A line for each request, written by a thread: a terminal or a pipe that nobody reads must not hold up answers.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use metallic_server::LogSink;

use crate::fail::Failure;

/// Lines that may wait to be written. Where there are more they are left out, and counted.
const WAITING: usize = 4096;
/// How long the end of the program waits for lines that nobody reads.
const PATIENCE: Duration = Duration::from_secs(1);

/// A log that is open. Dropping it waits until what was said is written, within reason.
pub(super) struct Log {
    entries: SyncSender<Entry>,
}

enum Entry {
    Line(String),
    /// Whoever waits for all that was said before.
    Flush(SyncSender<()>),
}

impl Log {
    /// Opens the file at `path`; `-` is stderr.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let out: Box<dyn Write + Send> = if path == Path::new("-") {
            Box::new(io::stderr())
        } else {
            let file = fs::OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
                let reason = format!("cannot write `{}`: {error}", path.display());
                Failure::new(reason, "give `--log` a file in a folder that may be written to")
            })?;
            Box::new(file)
        };
        Self::to(out, WAITING)
    }

    fn to(out: Box<dyn Write + Send>, waiting: usize) -> anyhow::Result<Self> {
        let (entries, said) = mpsc::sync_channel(waiting);
        thread::Builder::new()
            .name("metallic-log".to_owned())
            .spawn(move || write(out, &said))
            .context("cannot start writing the log")?;
        Ok(Self { entries })
    }

    /// Takes what the server says of its requests.
    pub(super) fn sink(&self) -> LogSink {
        let say = self.sayer();
        LogSink::new(move |record| {
            if let Ok(line) = serde_json::to_string(record) {
                say(line);
            }
        })
    }

    fn sayer(&self) -> impl Fn(String) + Send + Sync + 'static {
        let (entries, lost) = (self.entries.clone(), AtomicU64::new(0));
        move |mut line| {
            line.push('\n');
            let before = lost.load(Ordering::Relaxed);
            if before > 0 {
                line.insert_str(0, &format!("{{\"lost_lines\":{before}}}\n"));
            }
            match entries.try_send(Entry::Line(line)) {
                Ok(()) => lost.fetch_sub(before, Ordering::Relaxed),
                Err(_) => lost.fetch_add(1, Ordering::Relaxed),
            };
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let (done, written) = mpsc::sync_channel(1);
        if self.entries.try_send(Entry::Flush(done)).is_ok() {
            // Whether it was in time or not, the program ends.
            let _ = written.recv_timeout(PATIENCE);
        }
    }
}

fn write(mut out: Box<dyn Write + Send>, said: &Receiver<Entry>) {
    for entry in said {
        match entry {
            // A log that cannot be written does not end the service.
            Entry::Line(line) => drop(out.write_all(line.as_bytes()).and_then(|()| out.flush())),
            // Whoever waited may have gone.
            Entry::Flush(done) => drop(done.send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// A pipe that is read from when its gate is opened.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Gated>);

    #[derive(Default)]
    struct Gated {
        written: Mutex<Written>,
        opened: Condvar,
    }

    #[derive(Default)]
    struct Written {
        is_open: bool,
        bytes: Vec<u8>,
    }

    impl Pipe {
        fn open(&self) {
            self.0.written.lock().unwrap().is_open = true;
            self.0.opened.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.written.lock().unwrap().bytes.clone()).unwrap()
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let Gated { written, opened } = &*self.0;
            let mut written = opened.wait_while(written.lock().unwrap(), |written| !written.is_open).unwrap();
            written.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up_and_the_lines_left_out_are_counted() {
        let pipe = Pipe::default();
        let log = Log::to(Box::new(pipe.clone()), 4).unwrap();
        let say = log.sayer();
        (0..100).for_each(|i| say(format!("{{\"id\":{i}}}")));
        pipe.open();
        // Until there is room again.
        while !pipe.text().contains("lost_lines") {
            say("{}".to_owned());
            thread::sleep(Duration::from_millis(1));
        }
        drop(log);
        let text = pipe.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(&lines[..2], ["{\"id\":0}", "{\"id\":1}"]);
        let lost = lines.iter().find_map(|line| line.strip_prefix("{\"lost_lines\":"));
        let lost: u64 = lost.unwrap().trim_end_matches('}').parse().unwrap();
        assert!((90..=100).contains(&lost), "{lines:?}");
    }

    #[test]
    fn what_was_said_is_written_before_the_end() {
        let pipe = Pipe::default();
        pipe.open();
        let log = Log::to(Box::new(pipe.clone()), 2000).unwrap();
        let say = log.sayer();
        (0..1000).for_each(|i| say(i.to_string()));
        drop(log);
        assert_eq!(pipe.text().lines().count(), 1000);
    }
}
