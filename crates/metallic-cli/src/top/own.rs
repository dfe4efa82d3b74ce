//! The dashboard of this very process: a thread has the terminal while the command works.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::Context;
use clap::Args;

use super::{
    app::{App, Source},
    live::{Live, Records},
    screen,
    state::State,
    view::{Feed, Look, Stands, theme::Theme},
};
use crate::{
    answer::Show,
    fail::Stopped,
    interrupt::{self, Interrupted},
    telemetry,
};

/// For commands that end with a result.
#[derive(Debug, Default, Args)]
pub(crate) struct DashboardOptions {
    /// Show the dashboard of `metallic top` meanwhile, with the text so far; `q` leaves it, or ends the work, and the result is printed then
    #[arg(long, conflicts_with = "json")]
    pub(crate) dashboard: bool,
}

impl DashboardOptions {
    /// Where one is wanted: see [`Dashboard::prepare`].
    pub(crate) fn prepare(&self) -> anyhow::Result<Option<Prepared>> {
        self.dashboard.then(Dashboard::prepare).transpose()
    }
}

/// What the command and the picture share.
#[derive(Debug, Default)]
struct Shared {
    text: Mutex<String>,
    /// The command is done: whoever looks may leave without ending it.
    done: AtomicBool,
    /// The terminal is needed for something else.
    closed: AtomicBool,
}

impl Shared {
    fn text(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While this lives, the terminal shows the dashboard.
#[derive(Debug)]
pub(crate) struct Dashboard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// What is told already, for a dashboard that comes when everything is loaded.
#[derive(Debug)]
pub(crate) struct Prepared(Records);

impl Prepared {
    /// Takes the terminal. Nothing else may write to it from now on.
    pub(crate) fn start(self) -> anyhow::Result<Dashboard> {
        let Prepared(records) = self;
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let show = move || {
            let mut own = Own { live: Live::new(records), text: String::new(), shared: Arc::clone(&seen) };
            let shown = App::new(&mut own, Look::default(), Theme::of_environment(false))
                .run(&|| seen.closed.load(Ordering::SeqCst));
            // Who leaves before the end ends the work.
            if !seen.done.load(Ordering::SeqCst) && !seen.closed.load(Ordering::SeqCst) {
                interrupt::press();
            }
            shown
        };
        let thread = thread::Builder::new().name("metallic-top".to_owned()).spawn(show);
        Ok(Dashboard { shared, thread: Some(thread.context("cannot start the dashboard")?) })
    }
}

impl Dashboard {
    /// Checks that there is a terminal, and begins to listen; the command must have begun to tell.
    pub(crate) fn prepare() -> anyhow::Result<Prepared> {
        screen::check()?;
        let records = telemetry::records().context("this command tells nothing that could be shown")?;
        Ok(Prepared(Records::Own(records)))
    }

    /// Fails once whoever looks has left, before the work was done.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) { Err(Interrupted) } else { Ok(()) }
    }

    /// What is shown below the figures, as a place for answers.
    pub(crate) fn pane(&self) -> Pane {
        Pane { shared: Arc::clone(&self.shared), hide_thoughts: false }
    }

    /// The work is done: waits until whoever looks has seen enough.
    pub(crate) fn wait(mut self) -> anyhow::Result<()> {
        self.shared.done.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        match thread.join() {
            Ok(Err(error)) if error.is::<Stopped>() => Ok(()),
            Ok(shown) => shown,
            // The hook has said why.
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // What is told next is why the command ends.
            let _ = thread.join();
        }
    }
}

/// Text for the pane of the dashboard.
#[derive(Clone, Debug)]
pub(crate) struct Pane {
    shared: Arc<Shared>,
    hide_thoughts: bool,
}

impl Pane {
    /// Without thoughts, if they are to be hidden.
    pub(crate) fn hiding(self, hide: bool) -> Pane {
        Pane { hide_thoughts: hide, ..self }
    }

    /// All of it so far.
    pub(crate) fn text(&self) -> String {
        self.shared.text().clone()
    }
}

impl Write for Pane {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shared.text().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Show for Pane {
    fn answer(&mut self, text: &str) -> io::Result<()> {
        self.shared.text().push_str(text);
        Ok(())
    }

    fn thought(&mut self, text: &str) -> io::Result<()> {
        if self.hide_thoughts { Ok(()) } else { self.answer(text) }
    }
}

struct Own {
    live: Live,
    /// A copy, so that the pane is not locked while it is drawn.
    text: String,
    shared: Arc<Shared>,
}

impl Source for Own {
    fn advance(&mut self, seconds: f64) {
        self.live.advance(seconds);
        let text = self.shared.text();
        self.text.push_str(text.get(self.text.len()..).unwrap_or_default());
    }

    fn state(&self) -> &State {
        self.live.state()
    }

    fn feed(&self) -> Feed<'_> {
        let done = self.shared.done.load(Ordering::SeqCst);
        let stands = match self.live.stands() {
            Stands::Moves if done => Stands::Ended,
            stands => stands,
        };
        Feed::Own { stands, answer: &self.text }
    }

    fn pause(&mut self) {
        self.live.pause();
    }
}
