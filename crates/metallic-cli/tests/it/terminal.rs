//! A terminal that tests can type into and look at: tmux, with a server of its own for each test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{BINARY, Machine};

/// How long a screen may take to look as it should; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A pane with a shell line running in it.
pub(crate) struct Pane<'a> {
    machine: &'a Machine,
    socket: PathBuf,
}

/// Panes so far: a server that goes may still hold its socket.
static PANES: AtomicUsize = AtomicUsize::new(0);

/// Whether there is a tmux. Where there is none the test says so, and fails if every test is to run.
pub(crate) fn is_there() -> bool {
    let found = Command::new("tmux").arg("-V").output();
    metallic_testkit::needed(found.map_err(|error| format!("tmux: {error}"))).is_some()
}

impl<'a> Pane<'a> {
    /// Runs the binary in a pane of this size. `before` stands before it on the shell's line: variables. When it has ended, the exit code is
    /// in `code`, and what the terminal was left like in `modes`.
    pub(crate) fn start(machine: &'a Machine, size: (u16, u16), before: &str, args: &str) -> Pane<'a> {
        let number = PANES.fetch_add(1, Ordering::SeqCst);
        let pane = Pane { machine, socket: machine.folder().join(format!("tmux-{number}")) };
        for left in ["code", "modes", "errors"] {
            let _ = fs::remove_file(machine.folder().join(left));
        }
        let line = format!(
            "stty -a > modes-before; {before} {BINARY} {args} 2> errors; echo $? > code; stty -a > modes; echo back at the shell; sleep 600"
        );
        let (width, height) = (size.0.to_string(), size.1.to_string());
        let args = ["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, "sh", "-c", &line];
        let started = pane.tmux(&args);
        assert!(started.status.success(), "{started:?}");
        pane
    }

    fn tmux(&self, args: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        self.machine.prepare(&mut command);
        for name in ["TMUX", "NO_COLOR", "LC_CTYPE", "COLUMNS", "LINES"] {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C.UTF-8").env("TERM", "xterm-256color");
        command.arg("-S").arg(&self.socket).args(args).stdin(Stdio::null()).output().unwrap()
    }

    pub(crate) fn screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p"]).stdout).unwrap()
    }

    /// The screen with its escapes.
    pub(crate) fn coloured(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p", "-e"]).stdout).unwrap()
    }

    /// Waits for a screen that has all of these, and gives it.
    #[track_caller]
    pub(crate) fn until(&self, wanted: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if wanted.iter().all(|text| screen.contains(text)) {
                return screen;
            }
            assert!(Instant::now() < end, "wanted {wanted:?} on\n{screen}\n{}", self.file("errors"));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Types keys, by their names of tmux.
    pub(crate) fn keys(&self, keys: &[&str]) {
        assert!(self.tmux(&[&["send-keys"], keys].concat()).status.success());
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        assert!(self.tmux(&["resize-window", "-x", &width, "-y", &height]).status.success());
    }

    /// Sends a signal to the program in the pane.
    pub(crate) fn signal(&self, signal: &str) {
        let shell = String::from_utf8(self.tmux(&["display-message", "-p", "#{pane_pid}"]).stdout).unwrap();
        let children = Command::new("pgrep").args(["-P", shell.trim(), "metallic"]).output().unwrap();
        let pid = String::from_utf8(children.stdout).unwrap();
        assert!(Command::new("kill").args([signal, pid.trim()]).status().unwrap().success(), "{pid:?}");
    }

    /// Waits until the program has ended; gives its exit code. The terminal must be as it was before.
    #[track_caller]
    pub(crate) fn left(&self) -> i32 {
        let screen = self.until(&["back at the shell"]);
        assert!(!screen.contains("decode tok/s"), "{screen}");
        assert_eq!(self.file("modes"), self.file("modes-before"));
        let cursor =
            String::from_utf8(self.tmux(&["display-message", "-p", "#{cursor_flag}#{alternate_on}"]).stdout);
        assert_eq!(cursor.unwrap().trim(), "10", "the cursor is shown, on the usual screen");
        self.file("code").trim().parse().unwrap()
    }

    pub(crate) fn file(&self, name: impl AsRef<Path>) -> String {
        fs::read_to_string(self.machine.folder().join(name)).unwrap_or_default()
    }
}

impl Drop for Pane<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
