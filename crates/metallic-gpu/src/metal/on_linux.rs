//! What a Mac does not do when it is asked to: other devices, older systems, failures. On Linux, where Metal.framework
//! is `softmetal-framework`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use softmetal_framework::faults::{self, Fault};
use softmetal_framework::{Profile, blocks, leaks, problems, set_devices, set_macos};

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
    with_devices(&["intel", "m1", "m5"]);
    let found = devices();
    let facts: Vec<_> = found.iter().map(|d| (d.usable, d.default, d.limits.tensor_ops)).collect();
    assert_eq!(facts, [(false, true, false), (true, false, false), (true, false, true)]);
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
    drop(gpu);
    assert_clean();
}
