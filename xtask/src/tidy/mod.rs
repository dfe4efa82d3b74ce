//! `cargo xtask tidy`: the house rules that no compiler knows.

mod rules;
mod source;

use std::fmt;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::process::{command, output, root};

/// A file of the repository: its path from the root with `/`, and its contents where they are text.
pub(crate) struct File {
    path: String,
    text: Option<String>,
}

/// A rule that a line breaks. Line 0 is the file as a whole.
#[derive(Debug, PartialEq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line.max(1), self.rule, self.what)
    }
}

pub(crate) fn run() -> Result<()> {
    let files = repository()?;
    let findings = rules::check(&files);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files keep the rules", files.len());
            Ok(())
        }
        count => bail!("{count} findings in {} files", files.len()),
    }
}

/// Everything that git knows or would add.
fn repository() -> Result<Vec<File>> {
    let list = output(command("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))
        .context("tidy reads the list of files from git")?;
    let mut paths: Vec<&str> = list.split('\0').filter(|path| !path.is_empty()).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        match fs::read(root().join(path)) {
            Ok(bytes) => files.push(File { path: path.to_string(), text: String::from_utf8(bytes).ok() }),
            // Deleted in the working tree, not yet in the index.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        }
    }
    Ok(files)
}
