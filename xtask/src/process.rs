//! Running other programs.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable for what it runs; the constant serves a binary that was started by hand.
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map(Path::to_path_buf).unwrap_or(here)
}

/// A command that runs at the root of the workspace.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The cargo that runs this chore.
pub(crate) fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs `command` with its output on this terminal; a failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    eprintln!("+ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// What `command` prints to its standard output; its errors go to this terminal.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = describe(command);
    let out = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{line}`"))?;
    if !out.status.success() {
        bail!("`{line}` failed ({})", out.status);
    }
    String::from_utf8(out.stdout).with_context(|| format!("`{line}` printed something that is not UTF-8"))
}

/// Whether `program args…` exists and succeeds.
pub(crate) fn works(program: impl AsRef<OsStr>, args: &[&str]) -> bool {
    command(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Installs Debian packages, as root or through a `sudo` that asks nothing.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    if !works("apt-get", &["--version"]) {
        bail!("{names} would be needed, and there is no apt-get to install it");
    }
    let sudo: &[&str] = if command("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n") {
        &[]
    } else if works("sudo", &["-n", "true"]) {
        &["sudo", "-n"]
    } else {
        bail!("{names} would be needed; install it as root: apt-get install {names}");
    };
    eprintln!("installing by apt: {names}");
    let apt = |args: &[&str]| {
        let line: Vec<&str> = sudo.iter().copied().chain(["apt-get"]).chain(args.iter().copied()).collect();
        run(command(line[0])
            .args(&line[1..])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::null()))
    };
    apt(&["update", "-qq"])?;
    // Nothing that is installed may have to leave for it.
    apt(&[&["install", "-y", "-qq", "--no-install-recommends", "--no-remove"], packages].concat())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs a program for so long at most; the status is `None` where it was ended or died of a signal.
pub(crate) fn limited(command: &mut Command, limit: Duration) -> Result<(Option<i32>, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let reader = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was said until then counts.
            let _ = stream.map(|mut stream| stream.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = reader(child.stdout.take().map(|out| Box::new(out) as Box<dyn Read + Send>));
    let err = reader(child.stderr.take().map(|err| Box::new(err) as Box<dyn Read + Send>));
    let begun = Instant::now();
    let (status, late) = loop {
        if let Some(status) = child.try_wait()? {
            break (status.code(), "");
        }
        if begun.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            break (None, "\nended: it took too long");
        }
        thread::sleep(Duration::from_millis(10));
    };
    let joined = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ok((status, format!("{}{}{late}", joined(out), joined(err))))
}

/// Does something with each, as many at once as the machine has processors; the results in their order.
pub(crate) fn in_parallel<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Result<Vec<R>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((index, item)) =
                    items.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
                {
                    let result = each(item);
                    done.lock().map(|mut done| done.push((index, result))).ok();
                }
            });
        }
    });
    let Ok(mut done) = done.into_inner() else { bail!("a worker has panicked") };
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_too_long_is_ended_and_its_words_are_kept() {
        let mut slow = Command::new("sh");
        let (status, said) =
            limited(slow.args(["-c", "echo begun; exec sleep 20"]), Duration::from_millis(200))
                .expect("a shell");
        assert_eq!(status, None);
        assert!(said.contains("begun") && said.contains("took too long"), "{said}");
        assert_eq!(in_parallel(&[1, 2, 3], |n| n * 2).expect("no panic"), [2, 4, 6]);
    }
}
