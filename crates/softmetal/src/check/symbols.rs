//! From addresses in a kernel library to places in the `.metal` file.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::Site;
use crate::diagnostic::Location;

/// The debug information of one library.
pub(crate) struct Symbols {
    loader: Option<addr2line::Loader>,
    /// The source as the compiler was given it.
    source: String,
    files: HashMap<PathBuf, Option<Vec<String>>>,
}

impl Symbols {
    /// Without debug information every place is the file as a whole.
    pub(crate) fn new(library: &Path, source: &str) -> Self {
        Self {
            loader: addr2line::Loader::new(library).ok(),
            source: source.to_owned(),
            files: HashMap::new(),
        }
    }

    /// The place of the instruction that ends at `offset`, and its line's text if the file can be read. Functions of the shim
    /// are inlined into the kernel: the innermost place outside the shim counts.
    pub(crate) fn locate(&mut self, offset: usize) -> (Location, Option<String>) {
        let Some((at, path)) = self.frames(offset).into_iter().next() else {
            return (Location { file: self.source.clone(), line: 0, column: 0 }, None);
        };
        let line = self.line(path, at.line);
        (at, line)
    }

    /// Where the function of that place was called, if the compiler has put it into its caller, and so on.
    pub(crate) fn callers(&self, offset: usize) -> Vec<Location> {
        self.frames(offset).into_iter().skip(1).map(|(at, _)| at).collect()
    }

    /// The place of the instruction that ends at `offset`, and those it was put into, from the inside out; none of the shim.
    fn frames(&self, offset: usize) -> Vec<(Location, PathBuf)> {
        let mut found = Vec::new();
        if let Some(loader) = &self.loader
            && let Ok(mut frames) = loader.find_frames(offset.saturating_sub(1) as u64)
        {
            while let Ok(Some(frame)) = frames.next() {
                let Some(at) = frame.location else { continue };
                let Some(file) = at.file.filter(|f| !is_shim(f)) else { continue };
                let (line, column) = (at.line.unwrap_or(0), at.column.unwrap_or(0));
                found.push((Location { file: self.shown(file), line, column }, PathBuf::from(file)));
            }
        }
        found
    }

    /// A place whose file and line are known, as a report shows it.
    pub(crate) fn place(&mut self, site: &Site) -> (Location, Option<String>) {
        let Site { file, line, column } = site;
        let text = self.line(PathBuf::from(file), *line);
        (Location { file: self.shown(file), line: *line, column: *column }, text)
    }

    /// Debug information holds whole paths; reports name the source as the caller did.
    fn shown(&self, file: &str) -> String {
        if Path::new(file).ends_with(&self.source) { self.source.clone() } else { file.to_owned() }
    }

    fn line(&mut self, path: PathBuf, line: u32) -> Option<String> {
        let lines = self.files.entry(path).or_insert_with_key(|p| {
            let text = std::fs::read_to_string(p).ok()?;
            Some(text.lines().map(str::to_owned).collect())
        });
        lines.as_ref()?.get(line.checked_sub(1)? as usize).cloned()
    }
}

/// The headers this crate supplies, by the names they have in any folder.
fn is_shim(file: &str) -> bool {
    let path = Path::new(file);
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or(file);
    match path.extension().and_then(|e| e.to_str()) {
        Some("h") => name.starts_with("msl_"),
        None => name.starts_with("metal_") || name.starts_with('<'),
        Some(_) => false,
    }
}
