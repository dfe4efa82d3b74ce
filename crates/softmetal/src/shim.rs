//! The headers and C++ files that are compiled together with every kernel, embedded in this crate.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use sha2::{Digest, Sha256};

use crate::{
    cache::Lease,
    error::{Error, Result},
};

macro_rules! files {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../shim/", $name)))),*] };
}

/// Name below the shim folder, and text.
const FILES: &[(&str, &str)] = files![
    "metal_stdlib",
    "metal_logging",
    "msl_abi.h",
    "msl_apple.h",
    "msl_entry.h",
    "msl_atomic.h",
    "msl_base.h",
    "msl_bfloat.h",
    "msl_integer.h",
    "msl_math.h",
    "msl_matrix.h",
    "msl_prim.h",
    "msl_simd.h",
    "msl_simd_ptx.h",
    "msl_simdgroup_matrix.h",
    "msl_swizzles.h",
    "msl_sync.h",
    "msl_texture.h",
    "msl_vec.h",
    "rt/bf16.cpp",
    "rt/glue.cpp",
    "rt/hooks.cpp",
];

/// Parts of the standard library that sources include one by one: each is the whole.
const PARTS: &[&str] = &[
    "metal_array",
    "metal_assert",
    "metal_atomic",
    "metal_common",
    "metal_compute",
    "metal_config",
    "metal_float",
    "metal_geometric",
    "metal_integer",
    "metal_limits",
    "metal_math",
    "metal_matrix",
    "metal_numeric",
    "metal_pack",
    "metal_packed",
    "metal_quadgroup",
    "metal_relational",
    "metal_simdgroup",
    "metal_simdgroup_matrix",
    "metal_type_traits",
    "metal_texture",
    "metal_types",
    "metal_uniform",
    "metal_utility",
    "metal_vector",
    "metal_vec",
    "simd/simd.h",
];

/// Identifies the embedded files.
pub(crate) fn fingerprint() -> String {
    let mut hash = Sha256::new();
    for (name, text) in FILES {
        hash.update(name);
        hash.update([0]);
        hash.update(text);
        hash.update([0]);
    }
    for part in PARTS {
        hash.update(part);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
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
    Err(Error::Io { action: "keep", path: last, source: io::ErrorKind::NotFound.into() })
}

fn write(cache: &Path, folder: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| Error::Io { action: "write", path, source }
    };
    // Written aside and moved into place whole: another process may be doing the same.
    let aside = cache.join(format!("shim-{}-{}", std::process::id(), thread_number()));
    let parts = PARTS.iter().map(|name| (*name, "#include <metal_stdlib>\n"));
    for (name, text) in FILES.iter().copied().chain(parts).chain([("complete", "")]) {
        let path = aside.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        fs::write(&path, text).map_err(failed(&path))?;
    }
    if let Err(error) = fs::rename(&aside, folder) {
        let _ = fs::remove_dir_all(&aside);
        if !folder.join("complete").is_file() {
            return Err(failed(folder)(error));
        }
    }
    Ok(())
}

/// A number no other thread of this process has.
pub(crate) fn thread_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
