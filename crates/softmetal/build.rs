//! Gives the sources that decide what is compiled a fingerprint: results of an older rewriter must not be found in the cache.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut hash = DefaultHasher::new();
    for part in ["src/rewrite", "src/lexer.rs", "src/compiler"] {
        println!("cargo::rerun-if-changed={part}");
        add(&root.join(part), &mut hash)?;
    }
    println!("cargo::rustc-env=SOFTMETAL_REWRITER={:016x}", hash.finish());
    Ok(())
}

/// Adds a file, or all files of a folder in the order of their names.
fn add(path: &Path, hash: &mut DefaultHasher) -> io::Result<()> {
    if path.is_file() {
        fs::read(path)?.hash(hash);
        return Ok(());
    }
    let mut entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    entries.iter().try_for_each(|entry| add(entry, hash))
}
