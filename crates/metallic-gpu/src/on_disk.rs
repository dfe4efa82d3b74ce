//! Where kernels are kept between runs, and what their files say: for people who look at them. Nothing here makes a folder.

use std::path::PathBuf;

use crate::driver::archive;

#[cfg(feature = "soft")]
pub use softmetal::cache::{Entry as SoftEntry, EntryKind as SoftKind};

/// The folder of kernels compiled for Metal; `None` where `METALLIC_KERNEL_CACHE` is `off`, or there is no home folder.
pub fn archive_folder() -> Option<PathBuf> {
    archive::folder(|name| std::env::var_os(name))
}

/// What the name of an archive of Metal's says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveName {
    /// The family of kernels.
    pub library: String,
    /// The hash of source, device, system and options.
    pub key: String,
    /// It was being written.
    pub draft: bool,
}

/// Reads the name of an archive; `None` where it is none.
pub fn archive_name(file: &str) -> Option<ArchiveName> {
    let (stem, ending) = file.split_once('.')?;
    let rest = ending.strip_prefix(archive::ENDING)?;
    let draft = match rest.strip_prefix('.') {
        Some(process) => process.bytes().all(|byte| byte.is_ascii_digit()) && !process.is_empty(),
        None => false,
    };
    if !draft && !rest.is_empty() {
        return None;
    }
    let (library, key) = stem.rsplit_once('-')?;
    let is_key = key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_key.then(|| ArchiveName { library: library.to_owned(), key: key.to_owned(), draft })
}

/// The folder of kernels that softmetal has compiled, which need not be there.
#[cfg(feature = "soft")]
pub fn soft_folder() -> PathBuf {
    softmetal::Cache::folder_of_user()
}

/// What lies in such a folder, the PTX apart.
#[cfg(feature = "soft")]
pub fn soft_entries(folder: &std::path::Path) -> std::io::Result<Vec<SoftEntry>> {
    softmetal::Cache::entries(folder, &["ptx"])
}

#[cfg(feature = "cuda")]
pub use crate::cuda::{PtxFault, PtxFolders, PtxKernel, ptx_folders, ptx_kernel};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_archives_are_read_as_they_are_written() {
        let path = archive::file(std::path::Path::new("/c"), "cell_rows", "s", "d", "v");
        let name = path.file_name().unwrap().to_str().unwrap();
        let read = archive_name(name).unwrap();
        assert_eq!((read.library.as_str(), read.draft), ("cell_rows", false));
        let draft = archive::draft(&path, 7);
        assert!(archive_name(draft.file_name().unwrap().to_str().unwrap()).unwrap().draft);
        for other in [
            "norm.metalarchive",
            "norm-12.metalarchive",
            "a-0123456789abcdef.txt",
            "x",
            "a-0123456789abcdef.metalarchive.b",
        ] {
            assert_eq!(archive_name(other), None, "{other}");
        }
    }
}
