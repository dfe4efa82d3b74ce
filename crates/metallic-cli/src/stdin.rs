//! What is piped in. It is read on a thread of its own, so that a pipe nobody ever closes holds up only those who asked for it.

use std::{
    io::{self, IsTerminal, Read},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::Context;

use crate::{
    fail::Failure,
    term::{self, Ui},
};

/// How long the first byte of a pipe that nobody asked for may take.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
/// Far more than any context holds.
pub(crate) const MOST_BYTES: usize = 64 << 20;

/// All of stdin, without the line break that ends it. Waits for its end, and says so where that takes long.
pub(crate) fn all(ui: Ui) -> anyhow::Result<String> {
    let chunks = chunks()?;
    let first = match chunks.recv_timeout(GRACE) {
        Err(RecvTimeoutError::Timeout) if !io::stdin().is_terminal() => {
            ui.note("note: waiting for a text on stdin, until it ends");
            chunks.recv().ok()
        }
        Err(RecvTimeoutError::Timeout) => chunks.recv().ok(),
        other => other.ok(),
    };
    text(first, &chunks)
}

/// What is piped in besides a prompt, for programs that may or may not have been given something: nothing on a terminal,
/// and nothing where the first byte does not come soon.
pub(crate) fn if_any(ui: Ui) -> anyhow::Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let chunks = chunks()?;
    let first = match chunks.recv_timeout(GRACE) {
        Ok(first) => first,
        Err(RecvTimeoutError::Disconnected) => {
            // /dev/null is a way to say that there is nothing; a file or a pipe may be a mistake.
            if !is_device() {
                ui.note("note: stdin is empty; the prompt stands alone");
            }
            return Ok(None);
        }
        Err(RecvTimeoutError::Timeout) => {
            ui.note(&format!(
                "note: stdin is open, but nothing came in {} s; going on without it (`-` after the prompt waits for it, `</dev/null` does not)",
                GRACE.as_secs()
            ));
            return Ok(None);
        }
    };
    text(Some(first), &chunks).map(Some)
}

#[cfg(unix)]
fn is_device() -> bool {
    use std::{
        fs::File,
        os::{fd::AsFd, unix::fs::FileTypeExt},
    };
    let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    // A closed stdin is nothing, too.
    file.and_then(|file| file.metadata()).map_or(true, |data| data.file_type().is_char_device())
}

#[cfg(not(unix))]
fn is_device() -> bool {
    true
}

type Chunk = io::Result<Vec<u8>>;

fn chunks() -> anyhow::Result<Receiver<Chunk>> {
    let (send, receive) = mpsc::sync_channel(4);
    let read = move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut chunk = vec![0; 1 << 16];
            let read = match stdin.read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => Ok(read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = read.is_err();
            let chunk = read.map(|read| {
                chunk.truncate(read);
                chunk
            });
            if send.send(chunk).is_err() || failed {
                return;
            }
        }
    };
    thread::Builder::new().name("stdin".to_owned()).spawn(read).context("cannot read from stdin")?;
    Ok(receive)
}

fn text(first: Option<Chunk>, rest: &Receiver<Chunk>) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    for chunk in first.into_iter().chain(rest.iter()) {
        bytes.extend(chunk.context("cannot read from stdin")?);
        if bytes.len() > MOST_BYTES {
            let reason = format!("stdin has more than {MOST_BYTES} bytes, which no context holds");
            return Err(Failure::new(reason, "give a shorter text, or a part of it (`head -c`)").into());
        }
    }
    let text = term::utf8(bytes, "stdin")?;
    Ok(term::chomp(&text).to_owned())
}
