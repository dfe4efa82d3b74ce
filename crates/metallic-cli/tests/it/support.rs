//! Running the binary, and looking at what it left.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use metallic::formats::{Gguf, GgufWriter};
use tempfile::TempDir;

use crate::hub::Hub;

/// A machine without models: its own home, its own cache, one hub.
pub(crate) struct Machine {
    folder: TempDir,
    endpoint: String,
}

impl Machine {
    pub(crate) fn new(hub: &Hub) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), endpoint: hub.url() }
    }

    /// Nothing listens where the hub should be.
    pub(crate) fn without_hub() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), endpoint: "http://127.0.0.1:1".to_owned() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.folder().join("cache/models")
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.models().join("owner--repo")
    }

    /// Sets the environment for the binary, or for a shell that starts it.
    pub(crate) fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        for name in
            ["HF_TOKEN", "HF_HOME", "HF_TOKEN_PATH", "XDG_CACHE_HOME", "SSL_CERT_FILE", "RUST_BACKTRACE"]
        {
            command.env_remove(name);
        }
        command
            .env("HOME", self.folder())
            .env("METALLIC_HOME", self.folder().join("cache"))
            .env("METALLIC_RUNTIME_DIR", self.folder().join("run"))
            .env("HF_ENDPOINT", &self.endpoint)
            .current_dir(self.folder())
            .stdin(Stdio::null())
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        self.prepare(&mut command).args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }
}

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_metallic");

/// What a run printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Failed with this code, one `error:` line that holds `reason`, one `hint:` line that holds `hint`.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, reason: &str, hint: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        let lines = |label: &str| self.err.lines().filter(|line| line.starts_with(label)).collect::<Vec<_>>();
        let (errors, hints) = (lines("error: "), lines("hint: "));
        assert_eq!(errors.len(), 1, "{self:?}");
        assert!(errors[0].contains(reason), "wanted `{reason}` in {self:?}");
        assert!(hints.len() == 1 && hints[0].contains(hint), "wanted `{hint}` in {self:?}");
        // A cause that is told by its error must not be told again by the chain.
        let parts: Vec<&str> = errors[0].split(": ").collect();
        assert!(parts.windows(2).all(|pair| pair[0] != pair[1]), "{self:?}");
        assert!(!self.err.contains("panicked") && !self.err.contains("bug in metallic"), "{self:?}");
        self
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

/// Every file below a folder, relative, sorted; locks and the lists of what is known left out.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, root, found);
            } else if path.extension().is_none_or(|ext| ext != "lock") && !path.ends_with(".known.json") {
                found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    walk(folder, folder, &mut found);
    found.sort();
    found
}

/// Runs the binary with 4 GiB of address space and so much time.
pub(crate) fn limited(machine: &Machine, args: &[&str], limit: Duration) -> Ran {
    limited_with(machine, args, Stdio::null(), limit)
}

pub(crate) fn limited_with(
    machine: &Machine,
    args: &[&str],
    stdin: impl Into<Stdio>,
    limit: Duration,
) -> Ran {
    let mut command = Command::new("sh");
    machine.prepare(&mut command).args(["-c", "ulimit -v 4194304; exec \"$@\"", "sh", BINARY]).args(args);
    // Short, so that a hub that says nothing is given up soon.
    command.stdin(stdin).env("HF_HUB_DOWNLOAD_TIMEOUT", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command.spawn().unwrap(), limit)
}

/// Sends SIGINT, as Ctrl-C does.
pub(crate) fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Waits for a child that should end by itself, soon.
pub(crate) fn wait(mut child: Child, limit: Duration) -> Ran {
    let end = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            panic!("still running after {limit:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ran::from(child.wait_with_output().unwrap())
}

/// Starts the binary and waits until the file has at least this many bytes.
pub(crate) fn start_until(mut command: Command, file: &Path, bytes: u64) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while fs::metadata(file).map_or(0, |data| data.len()) < bytes {
        assert!(child.try_wait().unwrap().is_none(), "ended before {} was there", file.display());
        assert!(Instant::now() < end, "{} did not come", file.display());
        thread::sleep(Duration::from_millis(10));
    }
    child
}

/// The smallest real model: a Llama with a SentencePiece vocabulary of 512 and a context of 512.
pub(crate) fn stories() -> String {
    let path = metallic_testkit::data::own().join("stories260K/stories260K-f32.gguf");
    path.to_str().unwrap().to_owned()
}

/// The stories model with other metadata.
pub(crate) fn edited(path: &Path, edit: impl FnOnce(&mut GgufWriter)) -> String {
    let file = Gguf::open(Path::new(&stories())).unwrap();
    let mut writer = GgufWriter::with_metadata(file.metadata.clone());
    edit(&mut writer);
    for tensor in file.tensors() {
        writer.add(tensor.clone()).unwrap();
    }
    writer.write(path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A stories model that does not come to an end soon.
pub(crate) fn endless(machine: &Machine) -> String {
    edited(&machine.folder().join("endless.gguf"), |writer| {
        writer.insert("llama.context_length", 1_000_000_u32);
    })
}

/// Starts the binary with a piped stdin and stdout.
pub(crate) fn start(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the binary on a terminal of its own, whose output is both streams.
pub(crate) fn on_terminal(machine: &Machine, args: &[&str]) -> Ran {
    let quote = |arg: &&str| format!("'{}'", arg.replace('\'', "'\\''"));
    let line = [BINARY].iter().chain(args).map(quote).collect::<Vec<_>>().join(" ");
    let mut command = Command::new("script");
    machine.prepare(&mut command);
    // BSD's script takes the command as it is; that of Linux wants it as an option.
    if cfg!(target_os = "linux") {
        command.args(["-qec", &line, "/dev/null"]);
    } else {
        command.args(["-q", "/dev/null", BINARY]).args(args);
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait(child, Duration::from_secs(20))
}

/// A list of ids as the command line takes it.
pub(crate) fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
