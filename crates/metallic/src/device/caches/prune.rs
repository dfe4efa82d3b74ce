//! Making room.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::{CacheFile, CacheFolder, CacheKind, FileState};

/// What goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// What was not used for longer than this.
    pub older_than: Option<Duration>,
    /// What was used least recently, until all that is sound takes no more than so many bytes.
    pub max_size: Option<u64>,
    /// Say what would go, and remove nothing.
    pub dry_run: bool,
}

/// What a file was removed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Where it lay.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// Why.
    pub why: String,
}

/// What was to go and did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it lies.
    pub path: PathBuf,
    /// Why it stayed.
    pub why: String,
}

/// What pruning did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// What is gone.
    pub removed: Vec<Removed>,
    /// What was to go, and stayed.
    pub kept: Vec<Kept>,
}

impl Pruned {
    /// Bytes that became free.
    pub fn freed(&self) -> u64 {
        self.removed.iter().map(|removed| removed.bytes).sum()
    }
}

/// What a process has begun goes after this long, as softmetal has it.
const LEFTOVER: Duration = Duration::from_secs(24 * 3600);

impl PruneOptions {
    /// Removes what the options name of these folders, damaged files, and what was begun a day ago and never finished. Bundles, what is in
    /// use and what is none of ours stay.
    pub fn prune(&self, folders: &[CacheFolder], now: SystemTime) -> Pruned {
        let mut pruned = Pruned::default();
        let files = folders.iter().filter(|folder| folder.kind != CacheKind::Bundle);
        let mut sound: Vec<&CacheFile> = Vec::new();
        for file in files.flat_map(|folder| &folder.files) {
            match self.verdict(file, now) {
                Verdict::Goes(why) => {
                    if !self.take(file, why, &mut pruned) && file.state == FileState::Sound {
                        sound.push(file);
                    }
                }
                Verdict::Stays => sound.push(file),
                Verdict::NotOurs => {}
            }
        }
        let Some(most) = self.max_size else { return pruned };
        let mut total: u64 = sound.iter().map(|file| file.bytes).sum();
        // What is used counts, and stays.
        sound.retain(|file| file.state != FileState::InUse);
        sound.sort_by_key(|file| file.used);
        for file in sound {
            if total <= most {
                break;
            }
            if self.take(file, format!("all take more than {most} bytes"), &mut pruned) {
                total = total.saturating_sub(file.bytes);
            }
        }
        pruned
    }

    fn verdict(&self, file: &CacheFile, now: SystemTime) -> Verdict {
        let age = file.used.and_then(|used| now.duration_since(used).ok()).unwrap_or_default();
        let old = self.older_than.filter(|most| age > *most).map(|_| format!("not used for {}", days(age)));
        match &file.state {
            FileState::InUse => Verdict::Stays,
            FileState::Begun if age > LEFTOVER => Verdict::Goes(format!("left behind {} ago", days(age))),
            FileState::Foreign(_) | FileState::Begun => Verdict::NotOurs,
            FileState::Damaged(why) => Verdict::Goes(format!("damaged: {why}")),
            FileState::Sound | FileState::OtherVersion(_) => old.map_or(Verdict::Stays, Verdict::Goes),
        }
    }

    /// Removes a file, unless nothing is to be removed. Whether it is gone, or would be.
    fn take(&self, file: &CacheFile, why: String, pruned: &mut Pruned) -> bool {
        let removed = if self.dry_run { Ok(()) } else { file.remove() };
        match removed {
            Ok(()) => pruned.removed.push(Removed { path: file.path.clone(), bytes: file.bytes, why }),
            Err(error) => {
                pruned.kept.push(Kept { path: file.path.clone(), why: error.to_string() });
                return false;
            }
        }
        true
    }
}

enum Verdict {
    Goes(String),
    Stays,
    /// It is neither counted nor removed.
    NotOurs,
}

fn days(age: Duration) -> String {
    let hours = age.as_secs() / 3600;
    if hours < 48 { format!("{hours} hours") } else { format!("{} days", hours / 24) }
}

impl CacheFile {
    /// Removes it; an error where somebody uses it, or it is none of ours, or no longer what was looked at.
    fn remove(&self) -> io::Result<()> {
        #[cfg(feature = "soft")]
        if let Some(entry) = &self.soft {
            return entry.remove();
        }
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        let data = fs::symlink_metadata(&self.path)?;
        if !data.is_file() {
            return Err(refused("it is no longer a file"));
        }
        let lock = fs::File::open(&self.path)?;
        if lock.try_lock().is_err() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "a process uses it"));
        }
        fs::remove_file(&self.path)
    }
}
