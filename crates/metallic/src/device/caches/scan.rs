//! What lies in cache folders.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use metallic_gpu::on_disk;

use super::{CacheFile, CacheFolder, CacheKind, FileState};
use crate::device::tuning;

#[cfg(feature = "soft")]
pub(super) type SoftHandle = on_disk::SoftEntry;
#[cfg(not(feature = "soft"))]
#[derive(Clone, Debug)]
pub(super) enum SoftHandle {}

/// Files of kernels are read whole up to here; what is larger is none.
#[cfg(feature = "cuda")]
const MOST_PTX: u64 = 64 << 20;

/// The folders of these kinds, as this user has them.
pub fn list(kinds: &[CacheKind]) -> Vec<CacheFolder> {
    kinds
        .iter()
        .flat_map(|kind| {
            folders(*kind).into_iter().map(|(path, why)| match path {
                Some(path) => list_in(*kind, &path),
                None => CacheFolder { kind: *kind, path: None, state: why, files: Vec::new() },
            })
        })
        .collect()
}

/// One folder, as of this kind.
pub fn list_in(kind: CacheKind, path: &Path) -> CacheFolder {
    let (state, files) = match files(kind, path) {
        Ok(files) => (None, files),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (Some("it is not there".to_owned()), Vec::new())
        }
        Err(error) => (Some(format!("it cannot be read: {error}")), Vec::new()),
    };
    CacheFolder { kind, path: Some(path.to_owned()), state, files }
}

type Place = (Option<PathBuf>, Option<String>);

fn folders(kind: CacheKind) -> Vec<Place> {
    let or = |path: Option<PathBuf>, why: &str| {
        let why = path.is_none().then(|| why.to_owned());
        vec![(path, why)]
    };
    match kind {
        CacheKind::Soft => soft_folder(),
        CacheKind::Ptx => or(ptx_folders().0, "this build makes no kernels for NVIDIA GPUs"),
        CacheKind::Bundle => ptx_folders().1.into_iter().map(|path| (Some(path), None)).collect(),
        CacheKind::Archive => {
            or(on_disk::archive_folder(), "METALLIC_KERNEL_CACHE is off, or there is no home folder")
        }
        CacheKind::Tuning => {
            let folder = tuning::cache_folder().map(|cache| cache.join("tuning"));
            or(folder, "METALLIC_HOME is not set, and there is no home folder")
        }
    }
}

#[cfg(feature = "soft")]
fn soft_folder() -> Vec<Place> {
    vec![(Some(on_disk::soft_folder()), None)]
}

#[cfg(not(feature = "soft"))]
fn soft_folder() -> Vec<Place> {
    vec![(None, Some("this build has no `soft` feature".to_owned()))]
}

#[cfg(feature = "cuda")]
fn ptx_folders() -> (Option<PathBuf>, Vec<PathBuf>) {
    let on_disk::PtxFolders { cache, bundles } = on_disk::ptx_folders();
    (cache, bundles)
}

#[cfg(not(feature = "cuda"))]
fn ptx_folders() -> (Option<PathBuf>, Vec<PathBuf>) {
    (None, Vec::new())
}

fn files(kind: CacheKind, folder: &Path) -> io::Result<Vec<CacheFile>> {
    if kind == CacheKind::Soft {
        return soft_files(folder);
    }
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|file| file.map(|file| file.path())).collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths.into_iter().map(|path| file(kind, path)).collect())
}

#[cfg(not(feature = "soft"))]
#[allow(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
fn soft_files(_: &Path) -> io::Result<Vec<CacheFile>> {
    Ok(Vec::new())
}

#[cfg(feature = "soft")]
fn soft_files(folder: &Path) -> io::Result<Vec<CacheFile>> {
    use on_disk::{SoftEntry, SoftKind};
    let of = |entry: SoftEntry| {
        let fault = entry.fault.clone();
        let state = match (entry.kind, fault) {
            (SoftKind::Foreign, fault) => FileState::Foreign(fault.unwrap_or_else(|| UNKNOWN.to_owned())),
            _ if entry.in_use => FileState::InUse,
            (SoftKind::Begun, _) => FileState::Begun,
            (SoftKind::Object | SoftKind::Shim | SoftKind::Note, Some(fault)) => FileState::Damaged(fault),
            (SoftKind::Object | SoftKind::Shim | SoftKind::Note, None) => FileState::Sound,
        };
        let name = match entry.kind {
            SoftKind::Object => entry.files.iter().map(|file| short(file)).collect::<Vec<_>>().join(" "),
            SoftKind::Shim => "Metal's standard library".to_owned(),
            SoftKind::Note => "a note".to_owned(),
            SoftKind::Begun | SoftKind::Foreign => file_name(&entry.path),
        };
        CacheFile {
            kind: CacheKind::Soft,
            path: entry.path.clone(),
            name,
            key: entry.key.clone(),
            sources: entry.sources.clone(),
            bytes: entry.bytes,
            made: entry.made,
            used: entry.used,
            took: entry.took,
            state,
            soft: Some(entry),
        }
    };
    Ok(on_disk::soft_entries(folder)?.into_iter().map(of).collect())
}

/// Said of files that no cache makes.
const UNKNOWN: &str = "nothing that metallic writes";

/// The last part of a path.
#[cfg(feature = "soft")]
fn short(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// A file of a folder in which each stands for itself.
fn file(kind: CacheKind, path: PathBuf) -> CacheFile {
    let name = file_name(&path);
    let data = fs::symlink_metadata(&path);
    let foreign = |why: &str| Looked { state: FileState::Foreign(why.to_owned()), ..Looked::new(&name) };
    let looked = match &data {
        Err(error) => foreign(&error.to_string()),
        Ok(data) if data.is_symlink() => foreign("a symbolic link, which is not followed"),
        Ok(data) if !data.is_file() => foreign("a folder, or something else that is no file"),
        Ok(data) => match kind {
            CacheKind::Ptx | CacheKind::Bundle => ptx(&path, &name, data),
            CacheKind::Archive => archive(&name, data),
            CacheKind::Tuning => tuned(&path, &name, data),
            CacheKind::Soft => foreign(UNKNOWN),
        },
    };
    let data = data.ok();
    CacheFile {
        kind,
        name: looked.name,
        key: looked.key,
        sources: Vec::new(),
        bytes: data.as_ref().filter(|data| data.is_file()).map_or(0, Metadata::len),
        made: data.as_ref().and_then(|data| data.created().ok()),
        used: data.as_ref().and_then(|data| data.modified().ok()),
        took: None,
        state: looked.state,
        soft: None,
        path,
    }
}

/// What a file says of itself.
struct Looked {
    name: String,
    key: String,
    state: FileState,
}

impl Looked {
    fn new(name: &str) -> Looked {
        Looked { name: name.to_owned(), key: name.to_owned(), state: FileState::Sound }
    }

    fn foreign(name: &str) -> Looked {
        Looked { state: FileState::Foreign(UNKNOWN.to_owned()), ..Looked::new(name) }
    }
}

#[cfg(not(feature = "cuda"))]
fn ptx(_: &Path, name: &str, _: &Metadata) -> Looked {
    Looked::foreign(name)
}

#[cfg(feature = "cuda")]
fn ptx(path: &Path, name: &str, data: &Metadata) -> Looked {
    use on_disk::{PtxFault, PtxKernel};
    // Parts are written aside: `NAME.ptx.PROCESS-NUMBER.part`.
    if name.rsplit_once(".ptx.").is_some_and(|(_, rest)| rest.strip_suffix(".part").is_some()) {
        return Looked { state: FileState::Begun, ..Looked::new(name) };
    }
    let Some(stem) = name.strip_suffix(".ptx") else { return Looked::foreign(name) };
    let key = stem.rsplit_once('-').map_or(stem, |(_, key)| key).to_owned();
    if data.len() > MOST_PTX {
        return Looked::foreign(name);
    }
    let read = fs::read(path).map_err(|error| PtxFault::Damaged(error.to_string()));
    let (name, state) = match read.and_then(|bytes| on_disk::ptx_kernel(&bytes)) {
        Ok(PtxKernel { constants, .. }) => {
            let function = stem.rsplit_once('-').map_or(stem, |(function, _)| function);
            let with = if constants == "-" { String::new() } else { format!(" [{constants}]") };
            (format!("{function}{with}"), FileState::Sound)
        }
        Err(PtxFault::OtherVersion(why)) => (name.to_owned(), FileState::OtherVersion(why)),
        Err(PtxFault::Damaged(why)) => (name.to_owned(), FileState::Damaged(why)),
    };
    Looked { name, key, state }
}

fn archive(name: &str, data: &Metadata) -> Looked {
    let Some(read) = on_disk::archive_name(name) else { return Looked::foreign(name) };
    let state = match (read.draft, data.len()) {
        (true, _) => FileState::Begun,
        (false, 0) => FileState::Damaged("it is empty".to_owned()),
        (false, _) => FileState::Sound,
    };
    Looked { name: read.library, key: read.key, state }
}

fn tuned(path: &Path, name: &str, data: &Metadata) -> Looked {
    // Drafts: `NAME.json.PROCESS`.
    if name.rsplit_once(".json.").is_some_and(|(_, process)| process.bytes().all(|b| b.is_ascii_digit())) {
        return Looked { state: FileState::Begun, ..Looked::new(name) };
    }
    let Some(key) = name.strip_suffix(".json") else { return Looked::foreign(name) };
    let (name, state) = match tuning::summary(path, data.len()) {
        Ok(summary) => (summary, FileState::Sound),
        Err((why, true)) => (name.to_owned(), FileState::OtherVersion(why)),
        Err((why, false)) => (name.to_owned(), FileState::Damaged(why)),
    };
    Looked { name, key: key.to_owned(), state }
}
