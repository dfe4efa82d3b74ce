//! What lies in a cache folder, for people who look at it or make room. Links are not followed, and what is none of ours is left alone.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{Cache, Note, TOOK, prune::LEFTOVER};

/// What a file, or a folder, of the cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Compiled kernels, with the notes that lead to them.
    Object,
    /// The stand-in for Metal's standard library.
    Shim,
    /// A note that leads nowhere.
    Note,
    /// What a process has begun, and may still be at.
    Begun,
    /// Nothing that a cache makes.
    Foreign,
}

/// One thing in a cache folder.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where it lies.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
    /// The hash of the rewritten text and of all that decides a compilation; its name for what is none of ours.
    pub key: String,
    /// The hashes of the sources and flags that lead to it.
    pub sources: Vec<String>,
    /// The files its text says it is from.
    pub files: Vec<String>,
    /// Bytes, of its notes too.
    pub bytes: u64,
    /// When it was last changed: using an object says so too.
    pub used: Option<SystemTime>,
    /// When it was made, where the file system tells.
    pub made: Option<SystemTime>,
    /// What making it took, where that was written down.
    pub took: Option<Duration>,
    /// A process has it open.
    pub in_use: bool,
    /// What is wrong with it.
    pub fault: Option<String>,
    /// The file that its users hold.
    held: Option<PathBuf>,
    notes: Vec<PathBuf>,
}

impl Entry {
    fn new(path: PathBuf, kind: EntryKind) -> Self {
        let data = fs::symlink_metadata(&path).ok();
        let key = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        Self {
            kind,
            key,
            sources: Vec::new(),
            files: Vec::new(),
            bytes: bytes_of(&path),
            used: data.as_ref().and_then(|data| data.modified().ok()),
            made: data.as_ref().and_then(|data| data.created().ok()),
            took: None,
            in_use: false,
            fault: None,
            held: None,
            notes: Vec::new(),
            path,
        }
    }

    fn held_by(mut self, held: PathBuf) -> Self {
        self.in_use = is_locked(&held);
        self.used = fs::symlink_metadata(&held).and_then(|data| data.modified()).ok().or(self.used);
        self.held = Some(held);
        self
    }

    /// Removes it, and the notes that lead to it. An error where somebody uses it, or it is none of the cache's.
    pub fn remove(&self) -> io::Result<()> {
        let busy = |why: &str| Err(io::Error::new(io::ErrorKind::ResourceBusy, why.to_owned()));
        match self.kind {
            EntryKind::Foreign => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is none of the cache's"));
            }
            EntryKind::Begun if !is_old(self.used) => return busy("a process may still be at it"),
            EntryKind::Object | EntryKind::Shim | EntryKind::Note | EntryKind::Begun => {}
        }
        // What lies there now may be another thing than what was looked at.
        let data = fs::symlink_metadata(&self.path)?;
        if data.is_symlink() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link"));
        }
        let lock = self.held.as_ref().map(File::open).transpose()?;
        if lock.as_ref().is_some_and(|file| file.try_lock().is_err()) {
            return busy("a process uses it");
        }
        if data.is_dir() { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) }?;
        // A note that leads nowhere is as good as none.
        let _ = self.took.map(|_| fs::remove_file(self.path.with_extension(TOOK)));
        self.notes.iter().for_each(|note| drop(fs::remove_file(note)));
        Ok(())
    }
}

fn is_old(used: Option<SystemTime>) -> bool {
    used.is_some_and(|used| used.elapsed().is_ok_and(|age| age > LEFTOVER))
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)))
}

/// Bytes of a file, or of all files of a folder; links count for nothing.
fn bytes_of(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(data) if data.is_dir() => {
            fs::read_dir(path).into_iter().flatten().flatten().map(|file| bytes_of(&file.path())).sum()
        }
        Ok(data) if data.is_file() => data.len(),
        Ok(_) | Err(_) => 0,
    }
}

/// What making an object took, where it was written down.
fn took(object: &Path) -> Option<Duration> {
    let path = object.with_extension(TOOK);
    let plain = fs::symlink_metadata(&path).is_ok_and(|data| data.is_file() && data.len() < 32);
    let text = plain.then(|| fs::read_to_string(&path).ok()).flatten()?;
    text.trim().parse().ok().map(Duration::from_millis)
}

/// What a cache calls what it makes.
fn is_hash(stem: &str) -> bool {
    stem.len() == 32 && stem.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Cache {
    /// Everything in a folder of compiled kernels, by name; `kept_apart` are names that others have there. The folder need not be one.
    pub fn entries(folder: &Path, kept_apart: &[&str]) -> io::Result<Vec<Entry>> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(folder)?.map(|file| file.map(|file| file.path())).collect::<io::Result<_>>()?;
        paths.sort();
        let (mut entries, mut notes) = (Vec::new(), Vec::new());
        for path in paths {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if kept_apart.contains(&name.as_str()) {
                continue;
            }
            let data = fs::symlink_metadata(&path)?;
            let (stem, ending) = name.rsplit_once('.').unwrap_or((&name, ""));
            let begun = ["build-", "note-", "shim-"].iter().any(|kind| name.starts_with(kind));
            entries.push(if data.is_symlink() {
                let mut link = Entry::new(path, EntryKind::Foreign);
                link.fault = Some("a symbolic link, which is not followed".to_owned());
                link
            } else if ending == "so" && is_hash(stem) && data.is_file() {
                let mut object = Entry::new(path.clone(), EntryKind::Object).held_by(path);
                object.fault = (data.len() == 0).then(|| "it is empty".to_owned());
                object.took = took(&object.path);
                object
            } else if ending == "json" && is_hash(stem) && data.is_file() {
                notes.push(path);
                continue;
            } else if ending == TOOK && is_hash(stem) && data.is_file() {
                continue;
            } else if name.starts_with("shim-") && path.join("complete").is_file() {
                let held = path.join("complete");
                Entry::new(path, EntryKind::Shim).held_by(held)
            } else if begun {
                let lock = data.is_file().then(|| path.clone());
                let begun = Entry::new(path, EntryKind::Begun);
                match lock {
                    Some(lock) => begun.held_by(lock),
                    None => begun,
                }
            } else {
                Entry::new(path, EntryKind::Foreign)
            });
        }
        for note in notes {
            match lead(&mut entries, &note) {
                Ok(()) => {}
                Err(fault) => {
                    let mut alone = Entry::new(note, EntryKind::Note);
                    alone.fault = Some(fault);
                    entries.push(alone);
                }
            }
        }
        Ok(entries)
    }
}

/// Adds a note to the object it leads to, or says why it leads to none.
fn lead(entries: &mut [Entry], note: &Path) -> Result<(), String> {
    let text = fs::read(note).map_err(|error| error.to_string())?;
    let (built, files): Note =
        serde_json::from_slice(&text).map_err(|error| format!("it is no note of a cache: {error}"))?;
    let object =
        entries.iter_mut().find(|entry| entry.kind == EntryKind::Object && entry.path == built.object);
    let Some(object) = object else {
        return Err(format!("it leads to `{}`, which is not there", built.object.display()));
    };
    object.sources.extend(note.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    for (file, _) in files {
        if !object.files.contains(&file) {
            object.files.push(file);
        }
    }
    object.bytes += text.len() as u64;
    object.notes.push(note.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("softmetal-entries-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::canonicalize(folder).unwrap()
    }

    fn object(folder: &Path, digit: &str) -> PathBuf {
        let path = folder.join(format!("{}.so", digit.repeat(32)));
        fs::write(&path, [1; 100]).unwrap();
        path
    }

    fn of<'a>(entries: &'a [Entry], path: &Path) -> &'a Entry {
        entries.iter().find(|entry| entry.path == path).unwrap_or_else(|| panic!("{entries:?}"))
    }

    #[test]
    fn what_is_ours_is_told_from_what_is_not_and_what_is_held_stays() {
        let folder = folder("kinds");
        let (free, held) = (object(&folder, "a"), object(&folder, "b"));
        let note = folder.join(format!("{}.json", "c".repeat(32)));
        let text = serde_json::json!([
            { "object": &free, "warnings": [], "outline": false },
            [["norm.metal", "h"]]
        ]);
        fs::write(&note, text.to_string()).unwrap();
        let took = free.with_extension("took");
        fs::write(&took, "7").unwrap();
        let torn = folder.join(format!("{}.json", "d".repeat(32)));
        fs::write(&torn, "[{").unwrap();
        fs::write(folder.join("notes.txt"), "mine").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.join(format!("{}.so", "e".repeat(32)))).unwrap();
        fs::create_dir(folder.join("build-1")).unwrap();
        fs::create_dir(folder.join("ptx")).unwrap();
        let lock = File::open(&held).unwrap();
        lock.lock_shared().unwrap();
        let entries = Cache::entries(&folder, &["ptx"]).unwrap();
        let kinds = |kind: EntryKind| entries.iter().filter(|entry| entry.kind == kind).count();
        assert_eq!(
            [EntryKind::Object, EntryKind::Foreign, EntryKind::Note, EntryKind::Begun].map(kinds),
            [2, 2, 1, 1]
        );
        let found = of(&entries, &free);
        assert_eq!(
            (found.files.clone(), found.took),
            (vec!["norm.metal".to_owned()], Some(Duration::from_millis(7)))
        );
        assert!(found.bytes > 100 && !found.in_use && of(&entries, &held).in_use);
        assert!(of(&entries, &torn).fault.as_ref().unwrap().contains("no note"));
        found.remove().unwrap();
        assert!(!free.exists() && !note.exists() && !took.exists(), "the note goes with its object");
        assert!(of(&entries, &held).remove().unwrap_err().to_string().contains("uses it") && held.exists());
        for entry in
            entries.iter().filter(|entry| matches!(entry.kind, EntryKind::Foreign | EntryKind::Begun))
        {
            assert!(entry.remove().is_err() && fs::symlink_metadata(&entry.path).is_ok(), "{entry:?}");
        }
        drop(lock);
        of(&entries, &held).remove().unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_link_that_took_the_place_of_an_object_is_not_followed() {
        let folder = folder("swapped");
        let (path, precious) = (object(&folder, "a"), folder.join("precious"));
        fs::write(&precious, "x").unwrap();
        let entries = Cache::entries(&folder, &[]).unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        assert!(of(&entries, &path).remove().unwrap_err().to_string().contains("symbolic link"));
        assert!(precious.exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
