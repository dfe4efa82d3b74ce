//! What a Mac does not do when it is asked to: other devices, older systems, failures. On Linux, where Metal.framework
//! is `softmetal-framework`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use softmetal_framework::faults::{self, Fault};
use softmetal_framework::{
    Profile, Times, blocks, leaks, problems, set_checked, set_devices, set_macos, set_pools_required,
};

use super::*;
use crate::command::{Command, Region};

pub(super) const WAIT: Duration = Duration::from_secs(30);

/// Devices, faults and what is left are those of the process: one test at a time.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn with_devices(names: &[&str]) {
    set_devices(names.iter().map(|name| Profile::named(name).expect("a profile")).collect());
}

/// Without machine code of earlier runs.
pub(super) fn gpu() -> Metal {
    Metal { folder: None, ..open(None).expect("a GPU") }
}

/// The driver was let go: no rule was broken, and nothing is left of it. The next test finds what it would find alone.
pub(super) fn assert_clean() {
    with_devices(&["m4"]);
    set_macos((26, 2, 0));
    set_checked(false);
    set_pools_required(false);
    let (problems, leaks) = (problems(), leaks());
    assert!(problems.is_empty(), "{problems:?}");
    assert!(leaks.is_empty(), "{leaks:?}");
    assert_eq!((blocks(), faults::clear()), (0, 0), "blocks, and faults that did not happen");
}

/// Fills a buffer on the GPU and reads it.
fn fill(gpu: &Metal, value: u8) -> Result<u8, GpuError> {
    let buffer = gpu.allocate(64, Storage::Shared)?;
    let mut list = CommandList::new();
    list.push(Command::Fill { to: Region::whole(buffer, 64), value });
    let outcome = gpu.submit(&list).and_then(|mut submission| submission.wait(WAIT));
    let mut found = [0];
    gpu.read(buffer, 63, &mut found).expect("inside");
    gpu.free(buffer);
    outcome.map(|_| found[0])
}

#[test]
fn only_gpus_of_apple_silicon_are_used_and_they_say_what_they_are() {
    let _alone = alone();
    with_devices(&["intel", "m1", "m5", "m4"]);
    let found = devices();
    let facts: Vec<_> = found.iter().map(|d| (d.usable, d.default, d.limits.tensor_ops)).collect();
    let apple = |tensor_ops| (true, false, tensor_ops);
    assert_eq!(facts, [(false, true, false), apple(false), apple(true), apple(false)]);
    let error = open(None).expect_err("an Intel GPU").to_string();
    assert!(error.contains("Intel(R) UHD Graphics 630") && error.contains("Apple Silicon"), "{error}");
    for (which, name) in [("M5", "Apple M5"), ("1", "Apple M1")] {
        assert_eq!(open(Some(which)).expect("it is there").info().name, name);
    }
    assert!(open(Some("Apple")).is_err(), "two of that name");
    set_macos((26, 1, 0));
    assert!(!devices()[2].limits.tensor_ops, "macOS 26.2 brings what the kernels use");
    assert_clean();
}

#[test]
fn a_system_without_residency_sets_and_safe_mathematics_serves_too() {
    let _alone = alone();
    with_devices(&["m1"]);
    for (macos, has_sets) in [((14, 5, 0), false), ((15, 0, 0), true)] {
        set_macos(macos);
        let gpu = gpu();
        assert_eq!(gpu.memory.residency.is_some(), has_sets);
        assert!(gpu.system().contains(&format!("{}.{}", macos.0, macos.1)), "{}", gpu.system());
        assert_eq!(fill(&gpu, 9).expect("it runs"), 9);
    }
    assert_clean();
}

#[test]
fn what_fails_is_an_error_of_its_own_kind_and_the_next_submission_runs() {
    let _alone = alone();
    with_devices(&["m4"]);
    let gpu = gpu();
    fill(&gpu, 1).expect("kernels are ready");
    let expect = |fault, nth, matches: fn(&GpuError) -> bool| {
        faults::plan(fault, nth);
        let error = fill(&gpu, 2).expect_err("a failure on request");
        assert!(matches(&error), "{fault:?}: {error}");
        assert_eq!(fill(&gpu, 3).expect("the next one runs"), 3, "{fault:?}");
    };
    expect(Fault::Allocation, 1, |e| matches!(e, GpuError::OutOfMemory { .. }));
    // The buffer is there, the command buffer is not.
    expect(Fault::Allocation, 2, |e| e.to_string().contains("no command buffer"));
    expect(Fault::Timeout, 1, |e| matches!(e, GpuError::Timeout { .. }));
    expect(Fault::OutOfMemory, 1, |e| matches!(e, GpuError::OutOfMemory { .. }));
    expect(Fault::Gpu, 1, |e| e.to_string().contains("memory that is not there"));
    faults::plan(Fault::DeviceRemoved, 1);
    for _ in 0..2 {
        let error = fill(&gpu, 4).expect_err("the device is gone").to_string();
        assert!(error.contains("removed"), "{error}");
    }
    drop(gpu);
    assert_clean();
}

#[test]
fn what_cannot_be_compiled_or_made_is_said_or_done_without() {
    let _alone = alone();
    with_devices(&["m4"]);
    faults::plan(Fault::Allocation, 1);
    let error = open(None).expect_err("no queue").to_string();
    assert!(error.contains("no command queue") && error.contains("Apple M4"), "{error}");
    let gpu = gpu();
    faults::plan(Fault::Compile, 1);
    assert!(matches!(fill(&gpu, 1), Err(GpuError::Compile { .. })), "no library");
    faults::plan(Fault::Compile, 2);
    assert!(matches!(fill(&gpu, 1), Err(GpuError::Compile { .. })), "no pipeline");
    assert_eq!(fill(&gpu, 5).expect("both are there now"), 5);
    drop(gpu);
    // Without a set for their residency buffers are used all the same.
    faults::plan(Fault::Object, 1);
    let gpu = self::gpu();
    assert_eq!(fill(&gpu, 6).expect("it runs"), 6);
    drop(gpu);
    assert_clean();
}

#[test]
fn dispatches_are_named_where_captures_are_wanted() {
    let _alone = alone();
    with_devices(&["m4"]);
    let gpu = Metal { named: true, ..gpu() };
    assert_eq!(fill(&gpu, 7).expect("it runs"), 7);
    assert!(format!("{gpu:?}").contains("Apple M4"));
    drop(gpu);
    assert_clean();
}

#[test]
fn no_kernel_leaves_the_memory_that_it_is_given() {
    let _alone = alone();
    set_checked(true);
    with_devices(&["m4"]);
    let gpu = gpu();
    super::tests::dependent_dispatches(&gpu);
    drop(gpu);
    assert_clean();
}

#[test]
fn every_message_is_sent_with_a_pool_open() {
    let _alone = alone();
    with_devices(&["m4"]);
    set_pools_required(true);
    assert_eq!(devices().len(), 1);
    let gpu = gpu();
    super::tests::dependent_dispatches(&gpu);
    let imported = gpu.import(&Bytes::from(vec![5; 1001])).expect("copied");
    let mut list = CommandList::new();
    list.push(Command::Fill { to: Region::whole(imported.buffer, 1001), value: 1 });
    gpu.submit_timed(&list).expect("a clock").wait(WAIT).expect("done");
    gpu.free(imported.buffer);
    assert!(gpu.library("broken", "kernel void f( {").is_err());
    drop(gpu);
    assert_clean();
}

#[test]
fn memory_that_is_given_back_is_gone_while_the_driver_lives() {
    let _alone = alone();
    with_devices(&["m4"]);
    let gpu = gpu();
    assert_eq!(fill(&gpu, 1).expect("it runs"), 1);
    let left: Vec<_> = leaks().into_iter().filter(|leak| leak.object.contains("MTLSoftBuffer")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(gpu.memory.held(), 0);
    drop(gpu);
    assert_clean();
}

#[test]
fn times_that_cannot_be_noted_are_an_error() {
    let _alone = alone();
    with_devices(&["m4"]);
    let gpu = gpu();
    let buffer = gpu.allocate(64, Storage::Shared).expect("memory");
    let mut list = CommandList::new();
    list.push(Command::Fill { to: Region::whole(buffer, 64), value: 1 });
    let mut submission = gpu.submit_timed(&list).expect("a clock");
    submission.wait(WAIT).expect("done");
    assert_eq!(submission.times().expect("told").len(), 1);
    drop(submission);
    faults::plan(Fault::Object, 1);
    assert!(gpu.submit_timed(&list).and_then(|mut timed| timed.wait(WAIT)).is_err(), "no room for samples");
    faults::plan(Fault::Sample, 1);
    let untold = gpu.submit_timed(&list).and_then(|mut timed| timed.wait(WAIT));
    let error = untold.expect_err("a moment that was not noted").to_string();
    assert!(error.contains("told no times"), "{error}");
    drop(gpu);
    assert_clean();
}

#[test]
fn a_gpu_that_notes_no_times_says_so() {
    let _alone = alone();
    let without =
        [(Times::Nowhere, "notes no times between encoders"), (Times::NoCounter, "has no counter of time")];
    for (times, expected) in without {
        let mut profile = Profile::named("m4").expect("a profile");
        profile.times = times;
        set_devices(vec![profile]);
        let gpu = gpu();
        let error = gpu.submit_timed(&CommandList::new()).map(drop).expect_err("no clock").to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_clean();
}

#[test]
fn archives_that_cannot_be_written_are_done_without_and_the_oldest_go() {
    let _alone = alone();
    with_devices(&["m4"]);
    let folder = std::env::temp_dir().join(format!("metallic-archives-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("file");
    std::fs::write(&file, "no folder").expect("a file");
    let filled = |folder: &std::path::Path| {
        let gpu = Metal { folder: Some(folder.to_owned()), ..gpu() };
        assert_eq!(fill(&gpu, 3).expect("it runs"), 3);
        gpu
    };
    // Letting go of the driver waits for what writes archives, which leaves what it has not begun.
    let with_folder = |folder: &std::path::Path| drop(filled(folder));
    with_folder(&file);
    assert_eq!(std::fs::read_to_string(&file).expect("as it was"), "no folder");
    let old = folder.join("old");
    std::fs::create_dir_all(&old).expect("a folder");
    for index in 0..70 {
        std::fs::write(old.join(format!("x-{index:02}.metalarchive")), "old").expect("a file");
    }
    let writes = filled(&old);
    let begun = std::time::Instant::now();
    let names = || std::fs::read_dir(&old).expect("a folder").flatten().map(|entry| entry.file_name());
    while names().all(|name| name.to_string_lossy().starts_with("x-")) && begun.elapsed() < WAIT {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(writes);
    let left = std::fs::read_dir(&old).expect("a folder").count();
    assert_eq!(left, 64, "one was written, and the oldest seven are gone");
    // Nothing else asks for such an object on that system.
    set_macos((14, 5, 0));
    faults::plan(Fault::Object, 1);
    with_folder(&folder.join("none"));
    assert!(!folder.join("none").exists(), "there was no archive to write");
    set_macos((26, 2, 0));
    // A draft cannot take the place of a folder: it goes.
    let taken = folder.join("taken");
    std::fs::create_dir_all(&taken).expect("a folder");
    std::fs::read_dir(&old)
        .expect("a folder")
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with("x-"))
        .for_each(|entry| std::fs::create_dir_all(taken.join(entry.file_name())).expect("a folder"));
    with_folder(&taken);
    let names = std::fs::read_dir(&taken).expect("a folder").flatten().map(|entry| entry.file_name());
    assert_eq!(names.count(), 1, "the folder that stood there, and no draft");
    std::fs::remove_dir_all(&folder).expect("it is ours");
    assert_clean();
}
