//! Where test data lies.

use std::path::{Path, PathBuf};

/// The data that travels with the repository.
pub fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data")
}

/// The full data set beside the repository (`METALLIC_SHARED`, else `../shared`), where it is present.
pub fn shared() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = std::env::var_os("METALLIC_SHARED").map_or_else(default, PathBuf::from);
    path.join("golden").is_dir().then_some(path)
}

/// The golden set: all of it where it is present, else the part that travels with the repository.
pub fn golden() -> PathBuf {
    shared().map_or_else(|| own().join("golden"), |shared| shared.join("golden"))
}

/// All golden sets that are here.
pub fn golden_sets() -> Vec<PathBuf> {
    let second = shared().map(|shared| shared.join("golden2")).filter(|set| set.is_dir());
    std::iter::once(golden()).chain(second).collect()
}

/// A real model fetched for the tests (`METALLIC_TEST_MODELS`), where it is present.
pub fn model(file: &str) -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-models");
    let folder = std::env::var_os("METALLIC_TEST_MODELS").map_or_else(default, PathBuf::from);
    let path = folder.join(file);
    path.is_file().then_some(path)
}

/// Says loudly that a test found no data and proved nothing.
pub fn not_run(test: &str, needed: &str) {
    eprintln!("NOT RUN: {test}: {needed} is not here");
}
