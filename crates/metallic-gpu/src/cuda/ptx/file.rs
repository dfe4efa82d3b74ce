//! A translated kernel as a file: lines of what is known of it, an empty one, the text.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Takes;

/// What names a file of this kind and this way to write it.
pub(super) const MARK: &str = "metallic ptx 3";
/// What a kernel says that may begin early.
const WAITS: &str = "griddepcontrol.wait";
/// What hashes of this kind (FNV-1a) begin with.
pub(super) const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds parts to a hash that is the same on every machine.
pub(super) fn hash(begun: u64, parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(begun, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A kernel as PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Translation {
    /// Its name in the text.
    pub(in super::super) entry: CString,
    pub(in super::super) takes: Takes,
    /// Its function constants, for whoever looks into the file.
    pub(super) constants: String,
    pub(in super::super) text: CString,
}

impl Translation {
    /// Whether it may be launched before what came before is done.
    pub(in super::super) fn begins_early(&self) -> bool {
        self.text.to_string_lossy().contains(WAITS)
    }

    /// Of all that is written but itself.
    fn checksum(&self) -> String {
        let (entry, text) = (self.entry.to_string_lossy(), self.text.to_string_lossy());
        let parts = [&entry, &*self.takes_text(), &self.constants, &text];
        format!("{:016x}", hash(EMPTY, &parts))
    }

    fn takes_text(&self) -> String {
        format!("{} {}", self.takes.params, self.takes.addresses)
    }

    pub(super) fn written(&self) -> String {
        let (entry, text) = (self.entry.to_string_lossy(), self.text.to_string_lossy());
        let (takes, constants, checksum) = (self.takes_text(), &self.constants, self.checksum());
        format!("{MARK}\n{entry}\n{takes}\n{constants}\n{} {checksum}\n\n{text}", text.len())
    }

    /// What was written, or what is wrong with it.
    pub(super) fn read(written: &[u8]) -> Result<Translation, String> {
        let written = str::from_utf8(written).map_err(|error| format!("it is no text: {error}"))?;
        let (head, text) = written.split_once("\n\n").ok_or("it ends before its text")?;
        let mut lines = head.lines();
        if lines.next() != Some(MARK) {
            return Err(format!("it does not begin with `{MARK}`"));
        }
        let mut line = |what: &str| lines.next().ok_or_else(|| format!("its head lacks {what}"));
        let entry = line("the name of the kernel")?;
        let takes = line("what the kernel takes")?.split_once(' ');
        let numbers = takes.and_then(|(params, addresses)| {
            Some(Takes { params: params.parse().ok()?, addresses: addresses.parse().ok()? })
        });
        let takes = numbers.ok_or("what the kernel takes is not two numbers")?;
        let constants = line("its constants")?.to_owned();
        let sealed = line("length and checksum")?.split_once(' ');
        let (len, checksum) = sealed.ok_or("its head lacks length and checksum")?;
        if len != text.len().to_string() {
            return Err(format!("{} bytes of text where {len} were written", text.len()));
        }
        let string = |text: &str| CString::new(text).map_err(|_| "a zero byte in its text".to_owned());
        let read = Translation { entry: string(entry)?, takes, constants, text: string(text)? };
        let found = read.checksum();
        if found != checksum {
            return Err(format!("its checksum is {found} where {checksum} was written"));
        }
        Ok(read)
    }
}

/// Writes a file that is there whole or not at all, also after a loss of power.
pub(super) fn keep(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    // Two threads may write the same, and so may two processes.
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    fs::create_dir_all(folder)?;
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let part = folder.join(format!("{name}.{}-{number}.part", std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, folder.join(name))
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}
