//! Kernels on disk, for people who look at them.

use std::path::PathBuf;

use super::file::{MARK, Translation};
use super::{BESIDE, VARIABLE};

/// Where kernels for NVIDIA GPUs may lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PtxFolders {
    /// Where new ones are kept; `None` in builds that make none.
    pub cache: Option<PathBuf>,
    /// Bundles that somebody made: what the variable names, and what lies beside the program.
    pub bundles: Vec<PathBuf>,
}

/// Where kernels are looked for; nothing is made for it.
pub fn ptx_folders() -> PtxFolders {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    let beside = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.join(BESIDE)));
    #[cfg(feature = "soft")]
    let cache = Some(softmetal::Cache::folder_of_user().join("ptx"));
    #[cfg(not(feature = "soft"))]
    let cache = None;
    PtxFolders { cache, bundles: named.into_iter().chain(beside).collect() }
}

/// What a file says of its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxKernel {
    /// Its name in the PTX.
    pub entry: String,
    /// Its function constants by number: `0=1,3=10`.
    pub constants: String,
}

/// Why a file is no kernel of this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PtxFault {
    /// Another version has written it.
    OtherVersion(String),
    /// It has come to harm, or is none.
    Damaged(String),
}

/// Reads a file of a kernel.
pub fn ptx_kernel(bytes: &[u8]) -> Result<PtxKernel, PtxFault> {
    match Translation::read(bytes) {
        Ok(read) => {
            Ok(PtxKernel { entry: read.entry.to_string_lossy().into_owned(), constants: read.constants })
        }
        Err(reason) => {
            let first: Vec<u8> = bytes.iter().copied().take(64).take_while(|byte| *byte != b'\n').collect();
            let first = String::from_utf8_lossy(&first).into_owned();
            // The mark is a name and a number.
            let kind = MARK.trim_end_matches(|c: char| c.is_ascii_digit());
            let of_other = first.starts_with(kind) && first != MARK;
            Err(if of_other {
                PtxFault::OtherVersion(format!("it begins with `{first}`, this version writes `{MARK}`"))
            } else {
                PtxFault::Damaged(reason)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_versions_are_told_from_damaged_ones() {
        let other = ptx_kernel(b"metallic ptx 2\nf\n0 1\n-\n0 0\n\n");
        assert!(matches!(&other, Err(PtxFault::OtherVersion(why)) if why.contains("ptx 2")), "{other:?}");
        assert!(matches!(ptx_kernel(MARK.as_bytes()), Err(PtxFault::Damaged(_))));
        assert!(matches!(ptx_kernel(b""), Err(PtxFault::Damaged(_))));
    }
}
