//! Writes down what the tests launch, for `cargo xtask replay`: a GPU that has no Metal runs the same launches as PTX.

use std::fmt::Write as _;
use std::fs::{OpenOptions, write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Access, Data, FILL, Launch};

/// The folder to write to; nothing is written without it.
const FOLDER: &str = "METALLIC_RECORD_LAUNCHES";
/// Bytes of a launch at most: a recording has to travel.
const MOST: usize = 3 << 20;

/// Appends a launch with what its arguments held before and after it; `which` of them have one right result.
pub(super) fn record(launch: &Launch, args: &[Data], after: &[Vec<u8>], which: &[usize]) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let kernel = &launch.kernel;
    let constants: Vec<(usize, u32)> = kernel.constants.values().collect();
    let mut hasher = DefaultHasher::new();
    (kernel.family.name, &constants).hash(&mut hasher);
    let id = format!("{}-{:016x}", kernel.family.name, hasher.finish());
    let process = std::process::id();
    let name = format!("{process}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let kept = after.iter().map(Vec::len).sum::<usize>() <= MOST;

    let mut line = format!("{{\"id\":\"{id}\",\"family\":\"{}\"", kernel.family.name);
    let pairs: Vec<String> = constants.iter().map(|(index, value)| format!("\"{index}\":{value}")).collect();
    let args_of: Vec<String> = kernel
        .args
        .iter()
        .zip(after)
        .enumerate()
        .map(|(index, (arg, bytes))| {
            let result = arg.access != Access::Read && which.contains(&index);
            format!("[{},{},{result},\"{}\"]", bytes.len(), arg.align, arg.name)
        })
        .collect();
    let _ = writeln!(
        line,
        ",\"function\":\"{}\",\"constants\":{{{}}},\"params\":{:?},\"groups\":{:?},\"threads\":{:?},\"memory\":{},\"data\":{},\"args\":[{}]}}",
        kernel.function,
        pairs.join(","),
        launch.params.as_bytes(),
        launch.groups,
        launch.threads,
        launch.threadgroup_bytes,
        if kept { format!("\"{name}.bin\"") } else { "null".to_owned() },
        args_of.join(","),
    );
    let mut data = Vec::new();
    for (before, after) in args.iter().zip(after) {
        match before {
            Data::Bytes(bytes) => data.extend_from_slice(bytes),
            Data::Room(_) | Data::Unused => data.resize(data.len() + after.len(), FILL),
        }
        data.extend_from_slice(after);
    }
    let list = folder.join(format!("{process}.jsonl"));
    let written = write(folder.join(format!("{}.metal", kernel.family.name)), kernel.family.source())
        .and_then(|()| if kept { write(folder.join(format!("{name}.bin")), &data) } else { Ok(()) })
        .and_then(|()| OpenOptions::new().create(true).append(true).open(list))
        .and_then(|mut file| file.write_all(line.as_bytes()));
    // INVARIANT: tests alone come here.
    written.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
}
