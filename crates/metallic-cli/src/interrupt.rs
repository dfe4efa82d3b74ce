//! Ctrl-C: work that polls the flag stops tidily; everything else stops at once.

use std::{
    io::{self, IsTerminal, Write},
    process,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{fail, telemetry, top::screen};

static PRESSED: AtomicBool = AtomicBool::new(false);
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

/// How long a wait may go without looking at the flag.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// The user pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// While one of these lives, the first Ctrl-C only sets the flag; the second ends the program.
#[must_use]
pub(crate) struct Listener(());

impl Listener {
    pub(crate) fn new() -> Self {
        if LISTENERS.fetch_add(1, Ordering::SeqCst) == 0 {
            PRESSED.store(false, Ordering::SeqCst);
        }
        Self(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes over Ctrl-C for the whole program.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if LISTENERS.load(Ordering::SeqCst) == 0 || PRESSED.swap(true, Ordering::SeqCst) {
            screen::restore();
            if io::stderr().is_terminal() {
                // The line may hold half an answer, or a progress bar.
                let _ = writeln!(io::stderr());
            }
            fail::report(&Interrupted.into(), fail::INTERRUPTED);
            // What could not be written does not matter any more.
            let _ = telemetry::finish();
            process::exit(fail::INTERRUPTED.into());
        }
    })
    .context("cannot listen for Ctrl-C")
}

/// As Ctrl-C does where somebody listens.
pub(crate) fn press() {
    PRESSED.store(true, Ordering::SeqCst);
}

/// Fails once Ctrl-C was pressed.
pub(crate) fn check() -> Result<(), Interrupted> {
    if PRESSED.load(Ordering::SeqCst) { Err(Interrupted) } else { Ok(()) }
}

/// Sleeps, but wakes for Ctrl-C.
pub(crate) fn sleep(duration: Duration) -> Result<(), Interrupted> {
    let end = Instant::now() + duration;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(POLL));
    }
}

/// Runs blocking `work` on a thread of its own, so that Ctrl-C need not wait for it.
/// An interrupted thread is left behind: the program is about to end.
pub(crate) fn run_aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Interrupted> {
    let (send, receive) = mpsc::sync_channel(1);
    thread::spawn(move || send.send(work()));
    loop {
        match receive.recv_timeout(POLL) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => check()?,
            // The work panicked; the hook has printed why.
            Err(RecvTimeoutError::Disconnected) => process::exit(101),
        }
    }
}
