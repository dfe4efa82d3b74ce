//! Compiled kernels and measured numbers on disk: what there is, and what can go. Links are not followed, and what is none of ours is
//! told and left alone.

mod prune;
mod scan;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use metallic_core::Backend;
use metallic_gpu::GpuBackend;
pub use metallic_gpu::{CachedKey, ReadyKey};
pub use prune::{Kept, PruneOptions, Pruned, Removed};
pub use scan::{list, list_in};

/// What a device holds ready in the memory of this process, and what it has cost: compiled sources, kernels with their constants, products of MPS
/// and graphs of MPSGraph. Empty where a device compiles nothing.
pub fn in_memory(backend: &dyn Backend) -> Vec<ReadyKey> {
    let gpu = backend.as_any().and_then(|any| any.downcast_ref::<GpuBackend>());
    gpu.map_or_else(Vec::new, GpuBackend::ready_keys)
}

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CacheKind {
    /// Kernels for the software device, compiled by clang.
    Soft,
    /// Kernels for NVIDIA GPUs, as PTX, that this machine made.
    Ptx,
    /// The same, made by somebody for machines without a compiler. Never pruned.
    Bundle,
    /// Kernels compiled for Metal.
    Archive,
    /// Numbers that `metallic tune` measured. Pruned only where they are asked for by name.
    Tuning,
}

impl CacheKind {
    /// All of them.
    pub const ALL: [CacheKind; 5] =
        [CacheKind::Soft, CacheKind::Ptx, CacheKind::Bundle, CacheKind::Archive, CacheKind::Tuning];

    /// Its name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            CacheKind::Soft => "soft",
            CacheKind::Ptx => "ptx",
            CacheKind::Bundle => "bundle",
            CacheKind::Archive => "archive",
            CacheKind::Tuning => "tuning",
        }
    }

    /// What its times are, for people.
    pub fn times(self) -> &'static str {
        match self {
            CacheKind::Soft => {
                "last use is the time of the file, which each use sets; what compiling took is written beside it"
            }
            CacheKind::Ptx | CacheKind::Bundle | CacheKind::Archive => {
                "the time of the file is when it was made; uses and what compiling took are not written down"
            }
            CacheKind::Tuning => "the time of the file is when it was measured; uses are not written down",
        }
    }

    /// Whether pruning takes it where no kind is named.
    pub fn is_pruned_by_default(self) -> bool {
        match self {
            CacheKind::Soft | CacheKind::Ptx | CacheKind::Archive => true,
            CacheKind::Bundle | CacheKind::Tuning => false,
        }
    }
}

/// A folder of one kind.
#[derive(Clone, Debug)]
pub struct CacheFolder {
    /// What is kept there.
    pub kind: CacheKind,
    /// Where it is; `None` where there is none, and `state` says why.
    pub path: Option<PathBuf>,
    /// Why nothing is listed: it is not there, or cannot be read.
    pub state: Option<String>,
    /// What lies there.
    pub files: Vec<CacheFile>,
}

/// Something in a cache folder.
#[derive(Clone, Debug)]
pub struct CacheFile {
    /// The kind of the folder.
    pub kind: CacheKind,
    /// Where it lies.
    pub path: PathBuf,
    /// What it is made of, for people: kernels, sources, devices.
    pub name: String,
    /// What it is filed under.
    pub key: String,
    /// The hashes of sources that lead to it, where they are written down.
    pub sources: Vec<String>,
    /// Bytes.
    pub bytes: u64,
    /// When it was made, where the file system tells.
    pub made: Option<SystemTime>,
    /// When it was last used, as far as it is known; see [`CacheKind::times`].
    pub used: Option<SystemTime>,
    /// What making it took, where that is written down.
    pub took: Option<Duration>,
    /// How it is.
    pub state: FileState,
    /// What removes it, where that is more than a file.
    #[cfg_attr(not(feature = "soft"), allow(dead_code, reason = "nothing is made that needs it"))]
    soft: Option<scan::SoftHandle>,
}

/// How a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// As it should be.
    Sound,
    /// A process has it open: it is not removed.
    InUse,
    /// A process has begun it, or left it behind.
    Begun,
    /// It has come to harm, and is made again when it is needed.
    Damaged(String),
    /// Another version has written it.
    OtherVersion(String),
    /// None of ours: it is left alone.
    Foreign(String),
}

impl FileState {
    /// A word for tables.
    pub fn name(&self) -> &'static str {
        match self {
            FileState::Sound => "sound",
            FileState::InUse => "in use",
            FileState::Begun => "begun",
            FileState::Damaged(_) => "damaged",
            FileState::OtherVersion(_) => "other version",
            FileState::Foreign(_) => "foreign",
        }
    }

    /// Why, where there is more to say.
    pub fn reason(&self) -> Option<&str> {
        match self {
            FileState::Damaged(why) | FileState::OtherVersion(why) | FileState::Foreign(why) => Some(why),
            FileState::Sound | FileState::InUse | FileState::Begun => None,
        }
    }
}
