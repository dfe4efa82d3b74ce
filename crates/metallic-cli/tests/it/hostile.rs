//! A hub that means harm: bounded in memory, time and disk, and kept off the terminal.

use std::{
    fs,
    time::{Duration, Instant},
};

use crate::{
    hub::{Fault, Hub, noise},
    support::{Machine, files, limited},
};

const FILE: &str = "Model-Q4_K_M.gguf";
const LIMIT: Duration = Duration::from_secs(30);

fn hub_with_model() -> Hub {
    let hub = Hub::start();
    hub.add(FILE, noise(100_000));
    hub
}

#[test]
fn more_bytes_than_were_listed_never_reach_the_disk() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    hub.fail_blobs(&[Fault::Endless]);
    let ran = limited(&machine, &["pull", "owner/repo"], LIMIT);
    ran.failed(1, "more than the 100000 bytes that were announced", "HF_ENDPOINT");
    assert_eq!(files(&machine.models()), [""; 0]);
    // Other lengths than the listed one are not even begun.
    for length in [99_999, 100_001, usize::MAX] {
        hub.fail_blobs(&[Fault::Length(length)]);
        let ran = limited(&machine, &["pull", "owner/repo"], LIMIT);
        ran.failed(1, "bytes where the listing has 100000", "HF_ENDPOINT");
        assert!(!machine.repo().join(FILE).exists());
    }
    // The rest of a file that claims to be as long as a number can be.
    hub.fail_blobs(&[Fault::CutAfter(50_000), Fault::Length(usize::MAX)]);
    limited(&machine, &["pull", "owner/repo"], LIMIT).ok();
    assert_eq!(fs::read(machine.repo().join(FILE)).unwrap(), noise(100_000));
}

#[test]
fn a_hub_that_drips_is_given_up_and_says_why() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    let before = Instant::now();
    hub.fail_blobs(&[Fault::StallAfter(10), Fault::Drip, Fault::StallAfter(10), Fault::Drip]);
    let ran = limited(&machine, &["pull", "owner/repo"], LIMIT);
    let ran = ran.failed(1, "bytes came in 1 s", "goes on where it stopped");
    assert!(ran.err.contains("the connection broke (timeout"), "{}", ran.err);
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
}

#[test]
fn a_file_list_without_end_is_given_up() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    hub.fail_api(&[Fault::Endless]);
    let ran = limited(&machine, &["pull", "owner/repo"], LIMIT);
    ran.failed(1, "it has more than 16777216 bytes", "HF_ENDPOINT");
    hub.fail_api(&[Fault::Drip]);
    let ran = limited(&machine, &["pull", "owner/repo"], LIMIT);
    ran.failed(1, "it has not ended after 4 s", "HF_ENDPOINT");
    hub.fail_api(&[Fault::Loop]);
    limited(&machine, &["pull", "owner/repo"], LIMIT).failed(1, "redirects", "HF_ENDPOINT");
    let mut command = machine.command(&["pull", "owner/repo"]);
    let ran = command.env("HF_HUB_DOWNLOAD_TIMEOUT", "soon").output().unwrap();
    crate::support::Ran::from(ran).failed(1, "HF_HUB_DOWNLOAD_TIMEOUT is `soon`", "correct or unset");
}

#[test]
fn names_on_the_hub_neither_steer_the_terminal_nor_leave_the_cache() {
    let hub = hub_with_model();
    let evil = [
        "\x1b]0;owned\x07-Q8_0.gguf",
        "\u{202e}fugg.0_8Q.gguf",
        "../../up-Q8_0.gguf",
        "a\nb-Q8_0.gguf",
        "a//b-Q8_0.gguf",
    ];
    for name in evil.into_iter().chain([".hidden-Q8_0.gguf"]) {
        hub.add(name, noise(200));
    }
    hub.add(&format!("{}-Q8_0.gguf", "long".repeat(100)), noise(200));
    let machine = Machine::new(&hub);
    let ran = limited(&machine, &["pull", "owner/repo:Q8_0"], LIMIT);
    let ran = ran.failed(1, "no GGUF file of type Q8_0", FILE);
    assert!(ran.err.contains("note: 6 files of owner/repo are left out"), "{}", ran.err);
    let ran = limited(&machine, &["pull", "owner/repo"], LIMIT).ok();
    assert!(!ran.err.contains(['\x1b', '\x07', '\u{202e}']), "{}", ran.err);
    assert_eq!(files(machine.folder()), [format!("cache/models/owner--repo/{FILE}")]);

    // What somebody put into the cache by hand is listed, and spelled out.
    fs::write(machine.repo().join("x\x1b[2J\u{202e}y.gguf"), "x").unwrap();
    for args in [&["list"][..], &["list", "--json"], &["rm", "owner/repo:no.gguf"]] {
        let ran = machine.run(args);
        assert!(!(ran.out + &ran.err).contains(['\x1b', '\u{202e}']));
    }
    assert!(machine.run(&["list"]).ok().out.contains("x\\u{1b}[2J\\u{202e}y.gguf"));
}
