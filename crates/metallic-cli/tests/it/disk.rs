//! The cache on disk: full, unwritable, listed and cleared.

use std::{fs, path::PathBuf, process::Command};

use crate::{
    hub::{Fault, Hub, noise},
    support::{BINARY, Machine, Ran, files},
};

const FILE: &str = "Model-Q4_K_M.gguf";

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let hub = Hub::start();
    hub.add(FILE, noise(100));
    let machine = Machine::new(&hub);
    let file = machine.folder().join("file");
    fs::write(&file, "not a folder").unwrap();
    // Root may write almost anywhere; below a file and in /proc nobody may.
    for place in [file.join("cache"), PathBuf::from("/proc/metallic")] {
        let mut command = machine.command(&["pull", "owner/repo"]);
        let ran = Ran::from(command.env("METALLIC_HOME", &place).output().unwrap());
        ran.failed(1, &format!("cannot create {}", place.display()), "METALLIC_HOME");
    }
    assert!(hub.requests("/blob").is_empty());
}

#[test]
fn a_full_disk_leaves_no_file_and_the_next_pull_goes_on() {
    let hub = Hub::start();
    hub.add(FILE, noise(1_000_000));
    let machine = Machine::new(&hub);
    // No file may grow beyond 256 kB: the write itself fails, as on a full disk.
    let script = format!("trap '' XFSZ; ulimit -f 256; exec {BINARY} pull owner/repo");
    let mut limited = Command::new("bash");
    let ran = Ran::from(machine.prepare(&mut limited).args(["-c", &script]).output().unwrap());
    ran.failed(1, "cannot write", "metallic rm");
    assert!(!machine.repo().join(FILE).exists());

    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(fs::read(machine.repo().join(FILE)).unwrap(), noise(1_000_000));
    assert_eq!(hub.requests("/blob")[1].range.as_deref(), Some("bytes=262144-"));
}

#[test]
fn the_list_shows_name_size_path_and_time_and_marks_what_is_unfinished() {
    let hub = Hub::start();
    hub.add(FILE, noise(1000));
    hub.add("sub/Other-Q8_0.gguf", noise(2000));
    let machine = Machine::new(&hub);
    assert_eq!(machine.run(&["list", "--json"]).ok().out, "[]\n");

    machine.run(&["pull", "owner/repo:Q4_K_M"]).ok();
    hub.fail_blobs(&[Fault::CutAfter(500), Fault::CutAfter(0), Fault::CutAfter(0), Fault::CutAfter(0)]);
    machine.run(&["pull", "owner/repo:Q8_0"]).failed(1, "broke", "again");

    let list = machine.run(&["list", "--json"]).ok().json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(list[0]["name"], format!("owner/repo:{FILE}"));
    assert_eq!(list[0]["size_bytes"], 1000);
    assert_eq!(list[0]["path"], machine.repo().join(FILE).to_str().unwrap());
    assert_eq!(list[0]["complete"], true);
    assert_eq!(list[0]["modified"].as_str().unwrap().len(), "2026-01-31T07:05:09Z".len());
    assert_eq!(list[1]["name"], "owner/repo:sub/Other-Q8_0.gguf");
    assert_eq!((&list[1]["complete"], &list[1]["size_bytes"]), (&false.into(), &500.into()));

    let text = machine.run(&["list"]).ok().out;
    assert!(text.contains("1.0 kB") && text.contains("unfinished"), "{text}");
}

#[test]
fn an_alias_is_listed_and_removed_by_its_name() {
    let machine = Machine::without_hub();
    let folder = machine.models().join("Qwen--Qwen2.5-0.5B-Instruct-GGUF");
    fs::create_dir_all(&folder).unwrap();
    for name in ["qwen2.5-0.5b-instruct-q4_k_m.gguf", "qwen2.5-0.5b-instruct-q8_0.gguf"] {
        fs::write(folder.join(name), "x").unwrap();
    }
    let list = machine.run(&["list", "--json"]).ok().json();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q8_0.gguf", "qwen2.5-0.5b"]);
    machine.run(&["rm", "-y", "qwen2.5-0.5b"]).ok();
    assert_eq!(files(&folder), ["qwen2.5-0.5b-instruct-q8_0.gguf"]);
}

#[test]
fn rm_asks_first_and_touches_only_the_cache() {
    let hub = Hub::start();
    hub.add(FILE, noise(1000));
    let machine = Machine::new(&hub);
    machine.run(&["pull", "owner/repo"]).ok();
    machine.run(&["rm", "owner/repo"]).failed(1, "without asking", "-y");
    assert!(machine.repo().join(FILE).exists());

    let own = machine.folder().join("own.gguf");
    fs::write(&own, "mine").unwrap();
    machine.run(&["rm", "-y", "own.gguf"]).failed(1, "not in the cache", "metallic list");
    assert!(own.exists());
    machine.run(&["rm", "-y", "owner/repo:Q8_0"]).failed(1, "not in the cache", "metallic list");

    let removed = machine.run(&["rm", "-y", "--json", "owner/repo"]).ok().json();
    assert_eq!(removed["freed_bytes"], 1000);
    assert_eq!(removed["removed"][0], machine.repo().join(FILE).to_str().unwrap());
    assert!(!machine.repo().exists());
}

#[test]
fn rm_takes_a_path_inside_the_cache_and_unfinished_downloads() {
    let hub = Hub::start();
    hub.add(FILE, noise(1000));
    let machine = Machine::new(&hub);
    machine.run(&["pull", "owner/repo"]).ok();
    machine.run(&["rm", "-y", machine.repo().join(FILE).to_str().unwrap()]).ok();
    assert_eq!(files(&machine.models()), [""; 0]);

    hub.fail_blobs(&[Fault::CutAfter(500), Fault::CutAfter(0), Fault::CutAfter(0), Fault::CutAfter(0)]);
    machine.run(&["pull", "owner/repo"]).failed(1, "broke", "again");
    assert_eq!(files(&machine.repo()), [format!("{FILE}.part"), format!("{FILE}.part.tag")]);
    machine.run(&["rm", "-y", "owner/repo:Q4_K_M"]).ok();
    assert_eq!(files(&machine.models()), [""; 0]);
}
