//! The clang on this machine.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use crate::{
    cache::{Cache, Key},
    error::{Error, Result},
};

/// A clang that is new enough.
#[derive(Debug, Clone)]
pub struct Toolchain {
    /// The program.
    pub clang: PathBuf,
    /// Its major version.
    pub major: u32,
    /// The first line it prints about itself.
    pub version: String,
    /// The longest one run of it may take.
    pub limit: Duration,
    /// How often it was run; clones count together.
    runs: Arc<AtomicU64>,
}

/// What a run of the compiler left.
#[derive(Debug)]
pub struct Output {
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

impl Toolchain {
    /// The oldest major version that compiles bfloat arithmetic.
    pub const OLDEST: u32 = 17;

    /// What it is called, in the order of preference: programs on the path, then files.
    pub const NAMES: [&str; 9] = [
        "clang-19",
        "clang-20",
        "clang-21",
        "clang-22",
        "clang-18",
        "clang-17",
        "clang",
        "/opt/homebrew/opt/llvm/bin/clang",
        "/usr/local/opt/llvm/bin/clang",
    ];

    /// Finds clang: `SOFTMETAL_CLANG` if it is set, else the first of [`Toolchain::NAMES`] that is new enough.
    pub fn find() -> Result<Self> {
        if let Some(named) = env::var_os("SOFTMETAL_CLANG").filter(|name| !name.is_empty()) {
            let path = locate(&named).ok_or_else(|| Error::NoClang {
                tried: vec![format!("SOFTMETAL_CLANG={}", named.to_string_lossy())],
            })?;
            return Self::at(&path);
        }
        let mut unfit = None;
        for name in Self::NAMES {
            let Some(path) = locate(OsStr::new(name)) else { continue };
            match Self::at(&path) {
                Ok(found) => return Ok(found),
                Err(error) => unfit = unfit.or(Some(error)),
            }
        }
        Err(unfit.unwrap_or_else(|| Error::NoClang { tried: Self::NAMES.map(String::from).into() }))
    }

    /// Asks one compiler for its version. The answer is kept in the user's cache as long as the program does not change.
    pub fn at(clang: &Path) -> Result<Self> {
        let note = Cache::of_user()
            .ok()
            .map(|cache| cache.folder().join(format!("clang-{}", Key::of(&file_identity(clang)))));
        if let Some(known) = note.as_ref().and_then(|note| fs::read_to_string(note).ok())
            && let Ok(found) = Self::judge(clang, known.trim())
        {
            return Ok(found);
        }
        let run = Command::new(clang).arg("--version").stdin(Stdio::null()).output();
        let output = run.map_err(Error::io("run", clang))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let found = Self::judge(clang, text.lines().next().unwrap_or_default().trim())?;
        if let Some(note) = note {
            // Without the note the next call only takes longer.
            let _ = fs::write(note, &found.version);
        }
        Ok(found)
    }

    fn judge(clang: &Path, version: &str) -> Result<Self> {
        let unfit = || Error::UnfitClang {
            path: clang.to_owned(),
            found: if version.is_empty() { "no clang".into() } else { format!("`{version}`") },
        };
        let major = major_version(version).ok_or_else(unfit)?;
        // Apple counts its own way, and its clang knows none of the flags this crate needs.
        if major < Self::OLDEST || version.starts_with("Apple") {
            return Err(unfit());
        }
        Ok(Self {
            clang: clang.to_owned(),
            major,
            version: version.to_owned(),
            limit: Duration::from_secs(900),
            runs: Arc::default(),
        })
    }

    /// Identifies the compiler: another version, or another build of it, gives another text.
    pub(crate) fn identity(&self) -> String {
        format!("{}|{}", file_identity(&self.clang), self.version)
    }

    /// How often it was run so far, by this value and its clones: not at all for what lies in a cache.
    pub fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Runs clang with `input` on its standard input. A run that takes longer than `limit` is ended and is an error.
    pub fn run(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        input: &[u8],
    ) -> Result<Output> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let failed = |error| Error::io("run", &self.clang)(error);
        let mut child = Command::new(&self.clang)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        thread::scope(|scope| {
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
            let out = scope.spawn(move || read_all(stdout));
            let err = scope.spawn(move || read_all(stderr));
            let begun = Instant::now();
            let mut pause = Duration::from_micros(500);
            let status = loop {
                if let Some(status) = child.try_wait().map_err(failed)? {
                    break status;
                }
                if begun.elapsed() > self.limit {
                    let _ = child.kill();
                    let _ = child.wait();
                    let reason = format!("it was stopped after {} s", self.limit.as_secs_f32());
                    return Err(failed(io::Error::new(io::ErrorKind::TimedOut, reason)));
                }
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            };
            let stdout = out.join().unwrap_or_default();
            let stderr = String::from_utf8_lossy(&err.join().unwrap_or_default()).into_owned();
            Ok(Output { status, stdout, stderr })
        })
    }
}

/// Where a program is, how long and how old.
fn file_identity(path: &Path) -> String {
    let meta = fs::metadata(path).ok();
    let modified = meta.as_ref().and_then(|meta| meta.modified().ok());
    let age = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |age| age.as_nanos());
    format!("{}|{}|{age}", path.display(), meta.map_or(0, |meta| meta.len()))
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was read before a failure is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

/// A path as it is, a bare name by `PATH`.
fn locate(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return path.is_file().then(|| path.to_owned());
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(path))
        .find(|candidate| candidate.is_file())
}

/// `Debian clang version 19.1.7 (3)` gives 19.
fn major_version(line: &str) -> Option<u32> {
    let (_, number) = line.split_once("clang version ")?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_clang_says() {
        let cases = [
            ("Debian clang version 19.1.7 (3)", Some(19)),
            ("clang version 20.1.0", Some(20)),
            ("Ubuntu clang version 14.0.0-1ubuntu1.1", Some(14)),
            ("gcc (Debian 12.2.0-14) 12.2.0", None),
            ("", None),
        ];
        for (line, major) in cases {
            assert_eq!(major_version(line), major, "{line}");
        }
    }
}
