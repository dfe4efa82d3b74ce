//! Where compiled kernels are kept between runs, and under which name. A name holds everything that the machine code
//! depends on: another source, device or system finds nothing and compiles.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Changes when the driver compiles with other options.
const OPTIONS: &str = "metal3.1 safe precise 1";
pub(crate) const ENDING: &str = "metalarchive";
/// Files kept: the families of two devices or systems, and then some.
const KEPT: usize = 64;

/// The folder: what `METALLIC_KERNEL_CACHE` says, where `off` means none, else the user's caches.
pub(crate) fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    match variable("METALLIC_KERNEL_CACHE").filter(|v| !v.is_empty()) {
        Some(off) if off == "off" => None,
        Some(folder) => Some(PathBuf::from(folder)),
        None => {
            let home = variable("HOME").filter(|v| !v.is_empty())?;
            Some(Path::new(&home).join("Library/Caches/metallic/kernels"))
        }
    }
}

pub(crate) fn file(folder: &Path, library: &str, source: &str, device: &str, system: &str) -> PathBuf {
    let plain: String =
        library.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')).collect();
    let hash = fnv([source, device, system, OPTIONS]);
    folder.join(format!("{plain}-{hash:016x}.{ENDING}"))
}

/// Where a new archive is written before it takes its name, so that a reader never sees half of one.
pub(crate) fn draft(file: &Path, process: u32) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{process}"));
    PathBuf::from(name)
}

/// Archives and left-over drafts that are too many, the oldest first, given all files of the folder.
pub(crate) fn surplus(mut files: Vec<(PathBuf, SystemTime)>) -> Vec<PathBuf> {
    let ours = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.split('.').nth(1) == Some(ENDING))
    };
    files.retain(|(path, _)| ours(path));
    files.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    let extra = files.len().saturating_sub(KEPT);
    files.into_iter().take(extra).map(|(path, _)| path).collect()
}

/// FNV-1a over the parts, told apart. A collision costs a compilation: Metal looks functions up by their own contents.
fn fnv<const N: usize>(parts: [&str; N]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xFF]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_folder_is_the_users_unless_told_otherwise() {
        let with = |set: &'static [(&str, &str)]| {
            folder(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
        };
        assert_eq!(with(&[("HOME", "/h")]), Some(PathBuf::from("/h/Library/Caches/metallic/kernels")));
        assert_eq!(with(&[("HOME", "/h"), ("METALLIC_KERNEL_CACHE", "/c")]), Some(PathBuf::from("/c")));
        assert_eq!(with(&[("HOME", "/h"), ("METALLIC_KERNEL_CACHE", "off")]), None);
        assert_eq!(with(&[("METALLIC_KERNEL_CACHE", "")]), None);
    }

    #[test]
    fn every_part_of_the_name_counts() {
        let of = |library, source, device, system| file(Path::new("/c"), library, source, device, system);
        let first = of("norm", "kernel", "Apple M2", "14.5 (23F79)");
        assert_eq!(first, of("norm", "kernel", "Apple M2", "14.5 (23F79)"));
        let others = [
            of("mat", "kernel", "Apple M2", "14.5 (23F79)"),
            of("norm", "kernel ", "Apple M2", "14.5 (23F79)"),
            of("norm", "kernel", "Apple M2 Max", "14.5 (23F79)"),
            of("norm", "kernel", "Apple M2", "14.6 (23G80)"),
            of("norm", "kernelA", "pple M2", "14.5 (23F79)"),
        ];
        assert!(others.iter().all(|other| *other != first));
        assert!(of("../x/y", "s", "d", "v").starts_with("/c"), "a name stays in its folder");
        assert_eq!(of("../x/y", "s", "d", "v").parent(), Some(Path::new("/c")));
        assert_eq!(draft(&first, 7).parent(), first.parent());
        assert_ne!(draft(&first, 7), draft(&first, 8));
    }

    #[test]
    fn the_oldest_archives_go_and_files_of_others_stay() {
        let at = |i: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(i);
        let mut files: Vec<_> =
            (0..70).map(|i| (PathBuf::from(format!("/c/a-{i}.metalarchive")), at(100 + i))).collect();
        files.push((PathBuf::from("/c/notes.txt"), at(0)));
        files.push((PathBuf::from("/c/a-1.metalarchive.99"), at(1)));
        files.reverse();
        let gone = surplus(files);
        assert_eq!(gone.len(), 7);
        assert_eq!(gone[0], Path::new("/c/a-1.metalarchive.99"));
        assert_eq!(gone[1], Path::new("/c/a-0.metalarchive"));
        assert!(surplus(vec![(PathBuf::from("/c/a-1.metalarchive"), at(1))]).is_empty());
    }
}
