//! Ctrl-C.

use std::{fs, time::Duration};

use crate::{
    hub::{Fault, Hub, noise},
    support::{Machine, files, interrupt, start_until, wait},
};

const FILE: &str = "Model-Q4_K_M.gguf";

#[test]
fn ctrl_c_in_a_download_ends_at_once_and_keeps_the_part_for_the_next_time() {
    let hub = Hub::start();
    hub.add(FILE, noise(1_000_000));
    hub.fail_blobs(&[Fault::StallAfter(400_000)]);
    let machine = Machine::new(&hub);
    let part = machine.repo().join(format!("{FILE}.part"));
    let child = start_until(machine.command(&["pull", "owner/repo"]), &part, 400_000);
    interrupt(&child);
    let ran = wait(child, Duration::from_secs(3));
    ran.failed(130, "interrupted", "goes on where it stopped");
    assert!(!machine.repo().join(FILE).exists());
    assert_eq!(fs::read(&part).unwrap(), noise(1_000_000)[..400_000]);

    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(hub.requests("/blob")[1].range.as_deref(), Some("bytes=400000-"));
    assert_eq!(fs::read(machine.repo().join(FILE)).unwrap(), noise(1_000_000));
    assert_eq!(files(&machine.repo()), [FILE]);
}

#[test]
fn ctrl_c_while_waiting_for_another_process_ends_at_once() {
    let hub = Hub::start();
    hub.add(FILE, noise(1_000_000));
    hub.fail_blobs(&[Fault::StallAfter(1000)]);
    let machine = Machine::new(&hub);
    let part = machine.repo().join(format!("{FILE}.part"));
    let first = start_until(machine.command(&["pull", "owner/repo"]), &part, 1000);
    let second = start_until(machine.command(&["pull", "owner/repo"]), &part, 1000);
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&second);
    let ran = wait(second, Duration::from_secs(3));
    assert!(ran.err.contains("another metallic is busy"), "{ran:?}");
    assert_eq!(ran.code, Some(130));
    interrupt(&first);
    assert_eq!(wait(first, Duration::from_secs(3)).code, Some(130));
}
