//! Compiled kernels on disk.
//!
//! Two steps: what the caller gave (source, flags, compiler) leads to a note that names the included files with their
//! hashes and the compiled object; the object itself is filed under the hash of the rewritten text. A note whose files
//! have changed is as good as none. Everything is written aside and renamed, so that processes do not disturb each other.
//! The folder is kept within a limit, by removing what was used least recently.

mod entries;
mod prune;

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::Instant,
};

pub use entries::{Entry, EntryKind};
pub(crate) use prune::Lease;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    diagnostic::Diagnostic,
    error::{Error, Result},
    runtime::user,
    shim::aside,
};

/// A folder of compiled kernels.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    limit: u64,
}

/// What decides a compilation, hashed.
#[derive(Debug, Clone)]
pub(crate) struct Key(Sha256);

impl Key {
    pub(crate) fn new() -> Self {
        Self(Sha256::new())
    }

    pub(crate) fn add(&mut self, part: &str) -> &mut Self {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// For what is known of a source before code is made of it.
    pub(crate) fn outline(&self) -> Self {
        let mut key = self.clone();
        key.add("outline");
        key
    }

    /// The hash of one text.
    pub(crate) fn of(text: &str) -> String {
        Self::new().add(text).hex()
    }

    pub(crate) fn hex(&self) -> String {
        hex(self.0.clone())
    }
}

/// A compiled object, and what the rewriter had to say.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Built {
    pub(crate) object: PathBuf,
    pub(crate) warnings: Vec<Diagnostic>,
    /// The object has the tables of its kernels and no code.
    #[serde(default)]
    pub(crate) outline: bool,
}

/// The ending of the file beside an object that says how many milliseconds making it took.
const TOOK: &str = "took";

/// What was built, and each file that the text says it is from, with the hash of what it held.
type Note<B = Built> = (B, Vec<(String, String)>);

impl Cache {
    /// Bytes that a cache may take unless it is told otherwise: some ten thousand kernels.
    pub const LIMIT: u64 = 1 << 30;

    /// A cache in a folder of the caller's choice.
    pub fn at(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        // The compiler runs in the same folder as we do, but notes outlive that.
        let folder = fs::canonicalize(&folder).map_err(Error::io("find", &folder))?;
        Ok(Self { folder, limit: Self::LIMIT })
    }

    /// Sets the bytes it may take. What was used least recently goes first; what is in use stays, whatever the limit.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// `SOFTMETAL_CACHE`, or `softmetal` in the user's cache folder. Where the environment names neither, a folder of the
    /// temporary ones that belongs to this user alone: code is loaded from it, so one that somebody else has made is refused.
    pub fn of_user() -> Result<Self> {
        match Self::named_folder() {
            Some(folder) => Self::at(folder),
            None => Self::private(&Self::temporary_folder()),
        }
    }

    /// The folder of [`Cache::of_user`], which need not be there.
    pub fn folder_of_user() -> PathBuf {
        Self::named_folder().unwrap_or_else(Self::temporary_folder)
    }

    fn named_folder() -> Option<PathBuf> {
        let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        named("SOFTMETAL_CACHE")
            .or_else(|| named("XDG_CACHE_HOME").map(|folder| folder.join("softmetal")))
            .or_else(|| {
                let library = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
                named("HOME").map(|home| home.join(library).join("softmetal"))
            })
    }

    fn temporary_folder() -> PathBuf {
        env::temp_dir().join(format!("softmetal-{}", user::id()))
    }

    /// A cache in a folder of a place where everybody may make folders.
    fn private(folder: &Path) -> Result<Self> {
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create", folder)(error));
            }
            _ => {}
        }
        // The folder itself, not what a link in its place leads to.
        let found = fs::symlink_metadata(folder).map_err(Error::io("look at", folder))?;
        let fault = if !found.is_dir() {
            Some("it is no folder".to_owned())
        } else if found.uid() != user::id() {
            Some(format!("it belongs to user {}, not to user {}", found.uid(), user::id()))
        } else if found.mode() & 0o022 != 0 {
            Some(format!("others may write to it (mode {:o})", found.mode() & 0o777))
        } else {
            None
        };
        match fault {
            Some(reason) => Err(Error::UnsafeCache { folder: folder.to_owned(), reason }),
            None => Self::at(folder),
        }
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn find(&self, key: &Key) -> Option<Built> {
        let text = fs::read(self.note(key)).ok()?;
        let (built, dependencies): Note = serde_json::from_slice(&text).ok()?;
        let fresh = dependencies.iter().all(|(file, hash)| hash_of_file(file) == *hash);
        // A note leads to objects beside it and nowhere else.
        let ours = built.object.parent() == Some(&self.folder);
        (fresh && ours && built.object.is_file()).then_some(built)
    }

    /// The object for a rewritten text; `make` builds it in a folder of its own if it is not there.
    pub(crate) fn store(
        &self,
        text: &str,
        key: &Key,
        make: impl FnOnce(&Path) -> Result<PathBuf>,
    ) -> Result<PathBuf> {
        let mut name = key.clone();
        let name = name.add(text).hex();
        let object = self.folder.join(format!("{name}.so"));
        if object.is_file() {
            return Ok(object);
        }
        // Whoever wants the same meanwhile waits for it. Where files cannot be locked, both make it.
        let turn = self.folder.join(format!("build-{name}.lock"));
        let held = fs::File::create(&turn).and_then(|file| file.lock().map(|()| file));
        if object.is_file() {
            let _ = fs::remove_file(&turn);
            return Ok(object);
        }
        let aside = aside(&self.folder, "build")?;
        let begun = Instant::now();
        let made = make(&aside)
            .and_then(|made| fs::rename(&made, &object).map_err(Error::io("move into the cache", &made)));
        let _ = fs::remove_dir_all(&aside);
        let _ = fs::remove_file(&turn);
        drop(held);
        made?;
        // For people; an object without it is as good.
        let _ = fs::write(object.with_extension(TOOK), begun.elapsed().as_millis().to_string());
        self.prune(&object);
        Ok(object)
    }

    /// Writes the note that lets the next call skip everything. A cache that cannot be written is no error. Files come with
    /// the hashes of what was compiled, which they may hold no longer.
    pub(crate) fn remember(&self, key: &Key, built: &Built, dependencies: Vec<(String, String)>) {
        let note: Note<&Built> = (built, dependencies);
        let Ok(aside) = aside(&self.folder, "note") else { return };
        let file = aside.join("note");
        let written =
            serde_json::to_vec(&note).map_err(io::Error::from).and_then(|text| fs::write(&file, text));
        let _ = written.and_then(|()| fs::rename(&file, self.note(key)));
        let _ = fs::remove_dir_all(&aside);
    }

    fn note(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.json", key.hex()))
    }
}

/// What a file holds; nothing where it cannot be read. Texts that were put together say by `#line` what they are from, which
/// need not be a file at all.
pub(crate) fn hash_of_file(path: &str) -> String {
    fs::read(path).map_or_else(|_| String::new(), |bytes| hex(Sha256::new_with_prefix(bytes)))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}
