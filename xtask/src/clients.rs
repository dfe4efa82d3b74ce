//! `cargo xtask clients`: the packages that programs in the field use, against the server. They are Python's and come from its registry,
//! in the versions that `requirements.txt` beside the suites pins.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::models::{self, SMOLLM2};
use crate::process::{command, root, run as run_command, works};
use crate::programs::{METALLIC, build};

/// How long the server may take to load its model, and to end when it is told to.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the server says before its address.
const LISTENING: &str = "listening on http://";
/// What clients call the model, and another name, which like those of services is a part of the full one.
const MODEL: &str = "smollm2-135m";
const ALIAS: &str = "smollm2";
/// Nothing but the suites asks this server.
const KEY: &str = "key-of-the-client-suites";
/// Small enough that tests come to them: tokens of a conversation, bytes of a body, requests at once.
const LIMITS: [&str; 6] = ["--ctx", "4096", "--max-body", "1048576", "--max-requests", "24"];

/// Builds the program, starts it as a server, and runs the suites against it; options go to pytest.
pub(crate) fn run(args: &[String]) -> Result<()> {
    SMOLLM2.fetch(&models::python()?, 1800)?;
    install()?;
    suites(args)
}

/// The suites against a server of their own, with what was installed and fetched before.
pub(crate) fn suites(args: &[String]) -> Result<()> {
    let python = installed().context("the client packages are not installed")?;
    let server = Running::start(&build(&METALLIC)?)?;
    let tested = run_command(
        command(python)
            .current_dir(folder())
            .args(["-m", "pytest", "--quiet"])
            .args(args)
            .env("METALLIC_URL", format!("http://{}", server.address))
            .envs([("METALLIC_KEY", KEY), ("METALLIC_MODEL", MODEL), ("METALLIC_ALIAS", ALIAS)])
            // Nothing is written beside the sources, and nothing is told to anybody.
            .envs([("PYTHONDONTWRITEBYTECODE", "1"), ("LANGSMITH_TRACING", "false")]),
    );
    let ended = server.stop();
    tested.and(ended)
}

/// Where the suites are.
fn folder() -> PathBuf {
    root().join("crates").join("metallic-server").join("tests").join("clients")
}

fn venv() -> PathBuf {
    root().join("target").join("peers").join("clients")
}

/// The requirements that the packages were installed by, kept beside them.
fn stamp() -> PathBuf {
    venv().join("requirements.txt")
}

/// Whether there is what the suites need.
pub(crate) fn can_run() -> bool {
    installed().is_some() && SMOLLM2.path().is_file()
}

/// The Python that has the packages, in the versions that are wanted now.
fn installed() -> Option<PathBuf> {
    let wanted = fs::read(folder().join("requirements.txt")).ok()?;
    let same = fs::read(stamp()).ok()? == wanted;
    models::venv_python(&venv()).filter(|_| same)
}

/// Installs the packages into an environment of their own, unless they are there.
pub(crate) fn install() -> Result<()> {
    if installed().is_some() {
        return Ok(());
    }
    models::make_venv_with_pip(models::python()?, &venv())?;
    let python = models::venv_python(&venv()).context("the new virtual environment has no working pip")?;
    let wanted = folder().join("requirements.txt");
    let install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "2", "-r"];
    run_command(command(&python).args(install).arg(&wanted).stdin(Stdio::null()))?;
    fs::copy(&wanted, stamp()).context("cannot keep the list of packages")?;
    Ok(())
}

/// A server in a process of its own, which ends with the value.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(program: &Path) -> Result<Self> {
        ensure!(SMOLLM2.path().is_file(), "there is no model `{}`", SMOLLM2.path().display());
        let mut serve = command(program);
        serve.args(["serve", "--port", "0", "--api-key", KEY]).args(LIMITS);
        serve.arg("--model").arg(format!("{MODEL}={}", SMOLLM2.path().display()));
        serve.arg("--alias").arg(format!("{ALIAS}={MODEL}"));
        serve
            .env_remove("METALLIC_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = serve.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let said = child.stderr.take();
        let mut server = Self { child, address: String::new() };
        server.address = address(said.context("the server has no standard error")?)?;
        let start = Instant::now();
        while !is_ready(&server.address) {
            if let Some(status) = server.child.try_wait()? {
                bail!("the server ended before it was ready ({status})");
            }
            ensure!(start.elapsed() < PATIENCE, "the server is not ready after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Asks it to end, and sees that it does so in order.
    fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server ended while it was asked ({status})");
        }
        if cfg!(unix) && works("kill", &["-TERM", &self.child.id().to_string()]) {
            let status = self.end()?;
            ensure!(status.success(), "the server did not end well ({status})");
        }
        Ok(())
    }

    fn end(&mut self) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(start.elapsed() < PATIENCE, "the server goes on {PATIENCE:?} after it was told to end");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Neither matters where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address that the server tells on its standard error, which goes to this terminal from then on.
fn address(said: impl Read + Send + 'static) -> Result<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            eprintln!("server: {line}");
            if let Some(address) = address_in(&line) {
                // Nobody waits for a second one.
                let _ = sender.send(address.to_owned());
            }
        }
    });
    let told = receiver.recv_timeout(PATIENCE);
    told.map_err(|_| anyhow::anyhow!("the server did not say where it listens"))
}

fn address_in(line: &str) -> Option<&str> {
    line.split_once(LISTENING)?.1.split_whitespace().next()
}

/// Whether requests should be sent there.
fn is_ready(address: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_by_what_it_says() {
        let said = "model smollm2 on CPU\nlistening on http://127.0.0.1:4031 (with a key, at most 24 requests)\nmore\n";
        assert_eq!(address(said.as_bytes()).expect("an address"), "127.0.0.1:4031");
        assert_eq!(address_in("stopped"), None);
        address("model\n".as_bytes()).unwrap_err();
    }

    #[test]
    fn every_package_is_pinned() {
        let requirements = fs::read_to_string(folder().join("requirements.txt")).expect("requirements");
        let lines = requirements.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let (name, version) =
                line.split_once("==").unwrap_or_else(|| panic!("`{line}` names no version"));
            assert!(!name.is_empty() && version.starts_with(|c: char| c.is_ascii_digit()), "{line}");
        }
    }
}
