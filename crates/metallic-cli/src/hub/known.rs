//! What is known of the files in a folder of the cache: how large they are and what they hash to, noted when they came, so that
//! damage shows without the network.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::HubError;

const FILE: &str = ".known.json";

/// What a file was when it was whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) bytes: u64,
    /// In lower case.
    pub(super) sha256: String,
    /// The version of the repository that has it so. Files of one model are of one version.
    #[serde(default)]
    pub(super) commit: String,
}

/// The facts of one folder, by path below it, with `/` between.
#[derive(Debug)]
pub(super) struct Known {
    path: PathBuf,
    files: BTreeMap<String, Facts>,
}

impl Known {
    /// What is known of a folder. A list that cannot be read knows nothing; `pull` then asks the hub.
    pub(super) fn of(folder: &Path) -> Self {
        let path = folder.join(FILE);
        let files = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self { path, files: files.unwrap_or_default() }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Facts> {
        self.files.get(path)
    }

    /// Paths below a folder of this one.
    pub(super) fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a str> {
        self.files
            .keys()
            .map(String::as_str)
            .filter(move |path| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Notes facts, under the folder's lock.
    pub(super) fn note(&mut self, facts: impl IntoIterator<Item = (String, Facts)>) -> Result<(), HubError> {
        self.files.extend(facts);
        self.write()
    }

    /// Forgets a file, or all below a folder.
    pub(super) fn forget(&mut self, path: &str) -> Result<(), HubError> {
        let below = format!("{path}/");
        self.files.retain(|known, _| known != path && !known.starts_with(&below));
        self.write()
    }

    /// Forgets files that are not there.
    pub(super) fn prune(&mut self) -> Result<(), HubError> {
        let folder = self.path.with_file_name("");
        self.files.retain(|known, _| folder.join(known).exists());
        self.write()
    }

    fn write(&self) -> Result<(), HubError> {
        if self.files.is_empty() {
            let _ = fs::remove_file(&self.path);
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(&self.files)
            .map_err(|error| HubError::disk("write", &self.path)(error.into()))?;
        let new = self.path.with_extension("json.new");
        fs::write(&new, text).map_err(HubError::disk("write", &new))?;
        fs::rename(&new, &self.path).map_err(HubError::disk("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_kept_forgotten_and_gone_with_the_last_file() {
        let folder = tempfile::tempdir().unwrap();
        let facts = Facts { bytes: 7, sha256: "ab".to_owned(), commit: "c".to_owned() };
        let files = ["a.gguf", "safetensors/b", "safetensors/c"];
        Known::of(folder.path()).note(files.map(|file| (file.to_owned(), facts.clone()))).unwrap();
        let mut known = Known::of(folder.path());
        assert_eq!(known.get("a.gguf"), Some(&facts));
        assert_eq!(known.below("safetensors").collect::<Vec<_>>(), files[1..]);
        known.forget("safetensors").unwrap();
        assert_eq!(Known::of(folder.path()).below("safetensors").count(), 0);
        fs::write(folder.path().join("a.gguf"), "").unwrap();
        known.prune().unwrap();
        assert_eq!(Known::of(folder.path()).get("a.gguf"), Some(&facts));
        fs::remove_file(folder.path().join("a.gguf")).unwrap();
        known.prune().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::write(folder.path().join(FILE), "{ damaged").unwrap();
        assert_eq!(Known::of(folder.path()).get("a.gguf"), None);
    }
}
