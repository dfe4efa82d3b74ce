//! One file from the hub to the disk: resumed where it stopped, verified, renamed when it is whole.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

use super::{
    HubError,
    client::{Answer, Client, RemoteFile, as_sha256},
    known::Facts,
    name::Repo,
};
use crate::{
    interrupt,
    term::{Bar, Ui},
};

/// How often in a row a transfer may break without bringing much.
const FRUITLESS_TRIES: u32 = 4;
const WORTH_A_TRY: u64 = 1 << 20;
/// Bytes a second below which a transfer counts as broken.
const SLOWEST: u64 = 1000;
/// Most bytes of a file whose size nobody tells.
const UNTOLD: u64 = 64 << 20;
/// From this size on, checking takes long enough to show it.
const SHOWN_CHECK: u64 = 300_000_000;

/// Where a file comes from.
pub(super) struct Source<'a> {
    pub(super) client: &'a Client,
    pub(super) repo: &'a Repo,
    pub(super) commit: &'a str,
    pub(super) file: &'a RemoteFile,
}

/// Where progress over several files is shown.
pub(super) struct Progress<'a> {
    pub(super) bar: &'a Bar,
    /// Bytes of the files before this one.
    pub(super) before: u64,
    pub(super) ui: Ui,
}

impl Progress<'_> {
    fn at(&self, bytes: u64) {
        self.bar.set(self.before + bytes);
    }
}

/// Downloads to `to` and gives what is known of it then. Until the file is whole and verified it is `to.part`, with the tag
/// of its contents in `to.part.tag`.
pub(super) fn fetch(source: &Source<'_>, to: &Path, progress: &Progress<'_>) -> Result<Facts, HubError> {
    let part = PartFile::new(to);
    let (mut tries, mut counted, mut resumed) = (0, part.bytes(), part.bytes() > 0);
    loop {
        let trouble = match attempt(source, &part, progress) {
            Ok(expected) => {
                progress.at(part.bytes());
                let finished = part.finish(&source.file.path, expected.as_deref(), source.file.bytes);
                match finished.map(|facts| Facts { commit: source.commit.to_owned(), ..facts }) {
                    // What was here before may have been damaged: once more, from the beginning.
                    Err(HubError::Checksum { .. }) if resumed => {
                        resumed = false;
                        progress
                            .bar
                            .say(progress.ui, "note: what was here already is damaged; starting anew");
                        continue;
                    }
                    finished => return finished,
                }
            }
            Err(Stop::Broken(trouble)) => trouble,
            Err(Stop::Error(error)) => return Err(resumable(error, &part)),
        };
        let after = part.bytes();
        // A hub that sends a byte at a time must not hold us for ever.
        tries = if after.saturating_sub(counted) >= WORTH_A_TRY { 1 } else { tries + 1 };
        counted = after;
        if tries >= FRUITLESS_TRIES {
            let (what, reason) = (source.file.path.clone(), trouble);
            return Err(HubError::Dropped { what, tries, got: after, reason });
        }
        progress.bar.say(progress.ui, &format!("note: the connection broke ({trouble}); trying again"));
        interrupt::sleep(Duration::from_millis(500) * (1 << (tries - 1)))
            .map_err(|stop| resumable(stop.into(), &part))?;
    }
}

enum Stop {
    /// Worth going on from here.
    Broken(String),
    Error(HubError),
}

impl<E: Into<HubError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// One request; on success the part file is complete. Gives the sha256 that it must have.
fn attempt(source: &Source<'_>, part: &PartFile, progress: &Progress<'_>) -> Result<Option<String>, Stop> {
    let Source { client, repo, commit, file } = source;
    let mut answer = client.open(repo, commit, &file.path, part.resumable_bytes())?;
    let whole = answer.status == 416 && Some(part.bytes()) == file.bytes;
    let continues = answer.status == 206
        && answer.range.is_some_and(|(first, _)| first == part.bytes())
        && part.tag() == identity(&answer, file);
    if part.bytes() > 0 && !continues && !whole {
        // Other contents than those we have a part of, or a server without ranges.
        part.clear()?;
        if answer.status != 200 {
            answer = client.open(repo, commit, &file.path, 0)?;
        }
    }
    let expected = file.sha256.clone().or_else(|| answer.tag.as_deref().and_then(as_sha256));
    if whole {
        return Ok(expected);
    }
    let have = part.bytes();
    let total =
        answer.range.and_then(|(_, total)| total).or(answer.length.map(|rest| have.saturating_add(rest)));
    if let (Some(total), Some(listed)) = (total, file.bytes)
        && total != listed
    {
        let problem = format!("{total} bytes where the listing has {listed}");
        return Err(client.bad_answer(&file.path, problem).into());
    }
    part.set_tag(identity(&answer, file).as_deref())?;
    progress.at(have);
    let total = total.or(file.bytes);
    let got = receive(source, answer, part, have, progress)?;
    match total {
        Some(total) if got < total => Err(Stop::Broken(format!("{got} of {total} bytes came"))),
        _ => Ok(expected),
    }
}

/// Appends the body to the part, up to the size that was told. Gives how much there is then.
fn receive(
    source: &Source<'_>,
    answer: Answer,
    part: &PartFile,
    have: u64,
    progress: &Progress<'_>,
) -> Result<u64, Stop> {
    let Source { client, file, .. } = source;
    let most = file.bytes.or(answer.length.map(|rest| have.saturating_add(rest))).unwrap_or(UNTOLD);
    let mut out = part.append()?;
    let mut chunks = answer.into_chunks();
    let (mut got, mut since, mut seen) = (have, Instant::now(), have);
    while let Some(chunk) = chunks.next()? {
        let chunk = chunk.map_err(|error| Stop::Broken(error.to_string()))?;
        if got + chunk.len() as u64 > most {
            part.clear()?;
            let problem = format!("more than the {most} bytes that were announced");
            return Err(client.bad_answer(&file.path, problem).into());
        }
        out.write_all(&chunk).map_err(HubError::disk("write", &part.path))?;
        got += chunk.len() as u64;
        progress.at(got);
        if since.elapsed() >= client.patience {
            let seconds = since.elapsed().as_secs().max(1);
            if (got - seen) / seconds < SLOWEST {
                return Err(Stop::Broken(format!("only {} bytes came in {seconds} s", got - seen)));
            }
            (since, seen) = (Instant::now(), got);
        }
    }
    Ok(got)
}

fn identity(answer: &Answer, file: &RemoteFile) -> Option<String> {
    answer.tag.clone().or_else(|| file.sha256.clone())
}

fn resumable(error: HubError, part: &PartFile) -> HubError {
    match error {
        HubError::Interrupted { .. } => HubError::Interrupted { resumable: part.bytes() > 0 },
        other => other,
    }
}

/// A file that is not whole yet.
pub(super) struct PartFile {
    /// `NAME.part`
    pub(super) path: PathBuf,
    /// `NAME.part.tag`: what the part is a part of.
    tag: PathBuf,
    whole: PathBuf,
}

impl PartFile {
    pub(super) fn new(whole: &Path) -> Self {
        let (path, tag) = (with_suffix(whole, ".part"), with_suffix(whole, ".part.tag"));
        Self { path, tag, whole: whole.to_owned() }
    }

    fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |data| data.len())
    }

    /// Without its tag a part could belong to anything.
    fn resumable_bytes(&self) -> u64 {
        if self.tag().is_some() { self.bytes() } else { 0 }
    }

    fn tag(&self) -> Option<String> {
        fs::read_to_string(&self.tag).ok().filter(|tag| !tag.is_empty())
    }

    fn set_tag(&self, tag: Option<&str>) -> Result<(), HubError> {
        fs::write(&self.tag, tag.unwrap_or_default()).map_err(HubError::disk("write", &self.tag))
    }

    pub(super) fn append(&self) -> Result<File, HubError> {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .map_err(HubError::disk("write", &self.path))
    }

    /// Forgets what has come so far.
    pub(super) fn clear(&self) -> Result<(), HubError> {
        for path in [&self.path, &self.tag] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(HubError::disk("remove", path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes a part out of the file itself, which turned out to be the beginning of what `tag` names.
    pub(super) fn take_back(&self, tag: &str) -> Result<(), HubError> {
        self.clear()?;
        fs::rename(&self.whole, &self.path).map_err(HubError::disk("write", &self.path))?;
        self.set_tag(Some(tag))
    }

    /// Verifies size and checksum, makes the bytes durable and gives the file its name.
    pub(super) fn finish(
        &self,
        what: &str,
        sha256: Option<&str>,
        bytes: Option<u64>,
    ) -> Result<Facts, HubError> {
        // An empty file has had no byte to create it.
        self.append()?;
        let mut file = File::open(&self.path).map_err(HubError::disk("read", &self.path))?;
        let sum = hash(&mut file, &self.path, &mut |_| {})?;
        if let Some(expected) = sha256.filter(|expected| *expected != sum) {
            self.clear()?;
            let (what, expected, found) = (what.to_owned(), expected.to_owned(), sum);
            return Err(HubError::Checksum { what, expected, found });
        }
        let found = self.bytes();
        if let Some(expected) = bytes.filter(|expected| *expected != found) {
            self.clear()?;
            let problem = format!("it has {found} bytes and should have {expected}");
            return Err(HubError::disk("accept", &self.path)(io::Error::other(problem)));
        }
        file.sync_all().map_err(HubError::disk("write", &self.path))?;
        fs::rename(&self.path, &self.whole).map_err(HubError::disk("write", &self.whole))?;
        sync_folder(&self.whole);
        let _ = fs::remove_file(&self.tag);
        Ok(Facts { bytes: found, sha256: sum, commit: String::new() })
    }
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Makes the new name itself durable. Where folders cannot be opened this is not needed.
fn sync_folder(file: &Path) {
    if let Some(folder) = file.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
}

/// The sha256 of files, one after the other; shows progress where that takes long.
pub(super) fn hash_all(files: &[PathBuf], ui: Ui) -> Result<Vec<String>, HubError> {
    let bytes = files.iter().map(|path| fs::metadata(path).map_or(0, |data| data.len())).sum();
    let name = files.first().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy();
    let bar = (bytes >= SHOWN_CHECK).then(|| ui.bar(&format!("checking {name}"), Some(bytes)));
    let sum = |path: &PathBuf| {
        let mut file = File::open(path).map_err(HubError::disk("read", path))?;
        hash(&mut file, path, &mut |read| bar.iter().for_each(|bar| bar.advance(read)))
    };
    files.iter().map(sum).collect()
}

/// The sha256 of a whole file.
fn hash(file: &mut File, path: &Path, tell: &mut dyn FnMut(u64)) -> Result<String, HubError> {
    let read = |error| HubError::disk("read", path)(error);
    let (mut sha, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        interrupt::check().map_err(|_| HubError::Interrupted { resumable: true })?;
        match file.read(&mut buffer).map_err(read)? {
            0 => return Ok(format!("{:x}", sha.finalize())),
            read => {
                sha.update(&buffer[..read]);
                tell(read as u64);
            }
        }
    }
}
