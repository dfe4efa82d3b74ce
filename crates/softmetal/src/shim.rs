//! The headers and C++ files that are compiled together with every kernel, embedded in this crate.

use std::{
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    cache::{Key, Lease},
    error::{Error, Result},
};

macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../shim/", $name)))),*] };
}

/// Name below the shim folder, and text.
const FILES: &[(&str, &str)] = files! {
    "metal_stdlib" "metal_logging" "metal_tensor" "metal_cooperative_tensor"
    "MetalPerformancePrimitives/MetalPerformancePrimitives.h" "msl_abi.h" "msl_apple.h" "msl_entry.h" "msl_atomic.h" "msl_base.h"
    "msl_bfloat.h" "msl_integer.h" "msl_math.h" "msl_matmul2d.h" "msl_matrix.h" "msl_prim.h" "msl_simd.h" "msl_simd_ptx.h"
    "msl_simdgroup_matrix.h" "msl_swizzles.h" "msl_sync.h" "msl_tensor.h" "msl_texture.h" "msl_vec.h" "rt/bf16.cpp"
    "rt/glue.cpp" "rt/hooks.cpp"
};

/// Parts of the standard library that sources include one by one: each is the whole.
const PARTS: &str = "\
    metal_array metal_assert metal_atomic metal_common metal_compute metal_config metal_float \
    metal_geometric metal_integer metal_limits metal_math metal_matrix metal_numeric metal_pack \
    metal_packed metal_quadgroup metal_relational metal_simdgroup metal_simdgroup_matrix \
    metal_type_traits metal_texture metal_types metal_uniform metal_utility metal_vector metal_vec \
    simd/simd.h";

/// Identifies the embedded files.
pub(crate) fn fingerprint() -> String {
    let mut key = Key::new();
    for (name, text) in FILES {
        key.add(name).add(text);
    }
    key.add(PARTS).hex()
}

/// The folder of these files in a cache, which stays while this lives.
#[derive(Debug, Clone)]
pub(crate) struct Shim {
    pub(crate) folder: PathBuf,
    _lease: Arc<Lease>,
}

/// Writes the files below `cache` unless they are there.
pub(crate) fn install(cache: &Path) -> Result<Shim> {
    let folder = cache.join(format!("shim-{}", fingerprint()));
    let last = folder.join("complete");
    // Another process may make room in the cache just then.
    for _ in 0..3 {
        if let Some(lease) = Lease::of(&last) {
            return Ok(Shim { folder, _lease: Arc::new(lease) });
        }
        write(cache, &folder)?;
    }
    Err(Error::io("keep", &last)(io::ErrorKind::NotFound.into()))
}

fn write(cache: &Path, folder: &Path) -> Result<()> {
    // Another process may be doing the same.
    let aside = aside(cache, "shim")?;
    let parts = PARTS.split_whitespace().map(|name| (name, "#include <metal_stdlib>\n"));
    for (name, text) in FILES.iter().copied().chain(parts).chain([("complete", "")]) {
        let path = aside.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io("write", parent))?;
        }
        fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    if let Err(error) = fs::rename(&aside, folder) {
        let _ = fs::remove_dir_all(&aside);
        if !folder.join("complete").is_file() {
            return Err(Error::io("write", folder)(error));
        }
    }
    Ok(())
}

/// A new folder below `folder`, to make something in that is moved into place whole. It is nobody else's: processes that share
/// a cache may have the same number, each in a container of its own.
pub(crate) fn aside(folder: &Path, kind: &str) -> Result<PathBuf> {
    let random = || RandomState::new().build_hasher().finish();
    new_folder(folder, kind, std::iter::repeat_with(random).take(16))
}

/// A folder of the first name that nobody has.
fn new_folder(folder: &Path, kind: &str, names: impl Iterator<Item = u64>) -> Result<PathBuf> {
    for name in names {
        let path = folder.join(format!("{kind}-{name:016x}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path.clone()).map_err(Error::io("create", &path)),
        }
    }
    Err(Error::io("create a folder in", folder)(io::ErrorKind::AlreadyExists.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_aside_is_made_where_nobody_else_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = |names: &[u64]| new_folder(folder.path(), "build", names.iter().copied());
        let (one, other) = (made(&[7]).expect("new"), made(&[7, 7, 8]).expect("the third name is new"));
        assert!(one.is_dir() && other.is_dir() && one != other, "{one:?} {other:?}");
        let error = made(&[7, 8]).expect_err("both are taken").to_string();
        assert!(error.contains(&folder.path().display().to_string()), "{error}");
        let many: std::collections::HashSet<PathBuf> =
            (0..64).map(|_| aside(folder.path(), "note").expect("new")).collect();
        assert_eq!(many.len(), 64);
        let missing = folder.path().join("missing");
        let error = aside(&missing, "note").expect_err("no folder to make it in").to_string();
        assert!(error.contains("missing"), "{error}");
    }
}
