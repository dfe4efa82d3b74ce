//! Gives the sources that decide what is compiled fingerprints: results of an older rewriter must not be found in the cache. They are
//! the same on every machine, whatever compiled this crate: names of PTX files have them in it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let rewriter = ["src/rewrite", "src/lexer.rs", "src/compiler"];
    for (name, parts) in [("SOFTMETAL_REWRITER", &rewriter[..]), ("SOFTMETAL_PTX", &["src/ptx.rs"])] {
        let mut hash = EMPTY;
        for part in parts {
            println!("cargo::rerun-if-changed={part}");
            add(&root.join(part), &mut hash)?;
        }
        println!("cargo::rustc-env={name}={hash:016x}");
    }
    Ok(())
}

/// The hash of nothing, by FNV-1a: it is written down, which the one of Rust's library is not.
const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds a file, or all sources of a folder in the order of their names.
fn add(path: &Path, hash: &mut u64) -> io::Result<()> {
    if path.is_file() {
        let bytes = fs::read(path)?;
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in length.iter().chain(&bytes) {
            *hash = (*hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        return Ok(());
    }
    let mut entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // What an editor leaves beside them is no part of it.
    entries.retain(|entry| entry.is_dir() || entry.extension().is_some_and(|kind| kind == "rs"));
    entries.sort();
    entries.iter().try_for_each(|entry| add(entry, hash))
}
