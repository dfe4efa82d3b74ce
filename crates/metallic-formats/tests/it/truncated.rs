//! Files that become shorter while they are in use.
#![cfg(any(target_os = "linux", target_os = "macos"))]

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use metallic_core::DType;
use metallic_formats::{Access, FormatError, Gguf, GgufWriter, SafeTensors, Tensor};

const MIB: usize = 1 << 20;

fn write(path: &Path) {
    let mut writer = GgufWriter::new();
    writer.insert("general.architecture", "llama");
    for name in ["a", "b"] {
        let data = vec![7; MIB];
        writer
            .add(Tensor { name: name.into(), dtype: DType::F32, shape: vec![MIB / 4], data: data.into() })
            .unwrap();
    }
    writer.write(path).unwrap();
}

fn cut(path: &Path, len: usize) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len as u64).unwrap();
}

/// Names the file to the process that is to die of it.
const VICTIM: &str = "METALLIC_TRUNCATED_FILE";

#[test]
fn a_mapped_file_that_is_cut_short_is_an_error_and_not_the_end() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let path = folder.path().join(format!("{round}.gguf"));
        write(&path);
        let (cut_one, whole) = (Gguf::open(&path).unwrap(), folder.path().join("whole.gguf"));
        write(&whole);
        let whole = Gguf::open(&whole).unwrap();
        let [a, b] = ["a", "b"].map(|name| cut_one.require(name).unwrap().data.clone());
        assert!(a.iter().all(|byte| *byte == 7) && a.check().is_ok());
        cut(&path, MIB / 2);
        assert!(a[..MIB / 4].iter().all(|byte| *byte == 7), "what is left is left alone");
        assert!(a.check().is_ok(), "nothing that is gone was read");
        // From several threads at once, as weights are read.
        std::thread::scope(|scope| {
            for part in b.chunks(MIB / 4) {
                scope.spawn(|| assert!(part.iter().all(|byte| *byte == 0), "zeros in place of what is gone"));
            }
        });
        let error = a.check().unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("cut short"), "{error}");
        assert_eq!(a.check(), b.check());
        b.release(0..MIB);
        assert!(b.iter().all(|byte| *byte == 0));
        let other = &whole.require("b").unwrap().data;
        assert!(other.iter().all(|byte| *byte == 7) && other.check().is_ok(), "another file");
    }
}

#[test]
fn a_file_that_is_cut_short_before_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    write(&path);
    let gguf = Gguf::open_with(&path, Access::Read).unwrap();
    let [a, b] = ["a", "b"].map(|name| gguf.require(name).unwrap().data.clone());
    let mut buffer = Vec::new();
    assert!(a.read(4..8, &mut buffer).unwrap() == [7; 4] && a.mapping().is_none());
    assert!(a.iter().all(|byte| *byte == 7));
    cut(&path, MIB / 2);
    assert!(a.len() == MIB && a.iter().all(|byte| *byte == 7) && a.check().is_ok(), "it was read before");
    assert!(b.read(0..8, &mut buffer).unwrap_err().to_string().contains("cut short"));
    assert!(b.check().is_ok() && b.len() == MIB);
    assert!(b.to_vec().is_empty(), "nothing in place of what is gone");
    let error = b.check().unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()) && error.contains("cut short"), "{error}");
    assert!(matches!(Gguf::open_with(&path, Access::Read), Err(FormatError::Truncated { .. })));
}

#[test]
fn files_that_are_read_have_the_same_tensors_as_mapped_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let mut writer = GgufWriter::new();
    // A header longer than what is read at first.
    writer.insert("general.architecture", "llama").insert("long", "x".repeat(20 * MIB));
    let data: Vec<u8> = (0..4000).map(|i| (i / 3) as u8).collect();
    writer
        .add(Tensor { name: "a".into(), dtype: DType::F16, shape: vec![4, 500], data: data.clone().into() })
        .unwrap();
    writer.write(&path).unwrap();
    let safe = folder.path().join("model.safetensors");
    let header = br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2, 3, 4, 5]].concat();
    std::fs::write(&safe, bytes).unwrap();
    for access in [Access::Map, Access::Read] {
        let gguf = Gguf::open_with(&path, access).unwrap();
        assert_eq!(&gguf.require("a").unwrap().data[..], data);
        assert_eq!(&gguf.require("a").unwrap().data.slice(10..20).unwrap()[..], &data[10..20]);
        let safe = SafeTensors::open_with(folder.path(), access).unwrap();
        assert_eq!(&safe.require("b").unwrap().data[..], [4, 5]);
        assert_eq!(safe.require("a").unwrap().data.read(1..3, &mut Vec::new()).unwrap(), [2, 3]);
    }
}

#[test]
fn other_signals_of_the_kind_are_left_to_whoever_handled_them_before() {
    if let Some(path) = std::env::var_os(VICTIM) {
        let path = Path::new(&path);
        write(path);
        let ours = Gguf::open(path).unwrap();
        cut(path, 10);
        assert!(ours.require("b").unwrap().data.iter().all(|byte| *byte == 0));
        // The standard library's own handler, which looks for stacks that ran out, lets the first one pass.
        for _ in 0..2 {
            Command::new("kill").args(["-BUS", &std::process::id().to_string()]).status().unwrap();
        }
        // A signal may take a moment to come.
        std::thread::sleep(std::time::Duration::from_secs(2));
        println!("alive");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "truncated::other_signals_of_the_kind_are_left_to_whoever_handled_them_before";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", test, "--nocapture"]).env(VICTIM, folder.path().join("a.gguf"));
    let output = child.output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("alive"), "{output:?}");
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}
