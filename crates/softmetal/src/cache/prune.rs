//! What was used least recently makes room for what is new.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{Cache, Note, TOOK};

/// What a process that ended too early left behind goes after this long.
pub(super) const LEFTOVER: Duration = Duration::from_secs(24 * 3600);

/// Keeps a file of the cache from being removed, by any process, while it lives.
#[derive(Debug)]
pub(crate) struct Lease(#[allow(dead_code)] File);

impl Lease {
    /// A file that is about to be used; nothing if it is not there, or no longer.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        // Both are for the cache's order alone: a file system that has neither is no hindrance.
        let _ = file.set_modified(SystemTime::now());
        let _ = file.lock_shared();
        let (here, there) = (file.metadata().ok()?, fs::metadata(path).ok()?);
        ((here.dev(), here.ino()) == (there.dev(), there.ino())).then_some(Self(file))
    }
}

/// Something the cache can do without.
struct Entry {
    path: PathBuf,
    /// The file that says when it was last used, and that users of it hold.
    held: PathBuf,
    used: SystemTime,
    size: u64,
}

impl Entry {
    fn of(path: PathBuf, held: PathBuf) -> Option<Self> {
        let used = fs::metadata(&held).ok()?.modified().ok()?;
        let size = size_of(&path);
        Some(Self { path, held, used, size })
    }

    /// Removes it unless somebody uses it.
    fn remove(&self) -> bool {
        let Ok(file) = File::open(&self.held) else { return false };
        let gone = file.try_lock().is_ok() && remove(&self.path);
        if gone {
            // What is written beside it says nothing any longer; most have it.
            let _ = fs::remove_file(self.path.with_extension(TOOK));
        }
        gone
    }
}

fn size_of(path: &Path) -> u64 {
    match fs::read_dir(path) {
        Ok(files) => files.flatten().map(|file| size_of(&file.path())).sum(),
        Err(_) => fs::metadata(path).map_or(0, |data| data.len()),
    }
}

fn remove(path: &Path) -> bool {
    if path.is_dir() { fs::remove_dir_all(path).is_ok() } else { fs::remove_file(path).is_ok() }
}

impl Cache {
    /// Removes what was used least recently until the rest is within the limit; never `new`, nor what any process has in use.
    /// A cache that cannot be cleared is no error.
    pub(super) fn prune(&self, new: &Path) {
        let (mut entries, mut notes, mut total) = (Vec::new(), Vec::new(), 0);
        for path in fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|file| file.path()) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let kind = path.extension().and_then(|kind| kind.to_str());
            let entry = if kind == Some("so") {
                Entry::of(path.clone(), path)
            } else if kind == Some("json") {
                total += size_of(&path);
                notes.push(path);
                None
            } else if kind == Some(TOOK) {
                if !path.with_extension("so").is_file() {
                    remove(&path);
                }
                None
            } else if name.starts_with("shim-") && path.join("complete").is_file() {
                Entry::of(path.clone(), path.join("complete"))
            } else {
                if ["build-", "note-", "shim-"].iter().any(|kind| name.starts_with(kind)) {
                    remove_leftover(&path);
                }
                None
            };
            total += entry.as_ref().map_or(0, |entry| entry.size);
            entries.extend(entry);
        }
        if total <= self.limit {
            return;
        }
        entries.sort_by_key(|entry| entry.used);
        for entry in entries.iter().filter(|entry| entry.path != new) {
            if total <= self.limit {
                break;
            }
            if entry.remove() {
                total = total.saturating_sub(entry.size);
            }
        }
        for note in notes {
            let object = fs::read(&note).ok().and_then(|text| serde_json::from_slice::<Note>(&text).ok());
            if !object.is_some_and(|(built, _)| built.object.is_file()) {
                remove(&note);
            }
        }
    }
}

fn remove_leftover(path: &Path) {
    let changed = fs::metadata(path).and_then(|data| data.modified());
    if changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > LEFTOVER)) {
        remove(path);
    }
}
