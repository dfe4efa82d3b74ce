//! Models in the cache that are not what they were when they came.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

use crate::{
    hub::{Fault, Hub, noise},
    support::{Machine, Ran, files, stories},
};

const FILE: &str = "Model-Q4_K_M.gguf";
const SIZE: usize = 1_000_000;

fn pulled() -> (Hub, Machine) {
    let hub = Hub::start();
    hub.add(FILE, noise(SIZE));
    let machine = Machine::new(&hub);
    let pulled = machine.run(&["pull", "owner/repo", "--json"]).ok().json();
    assert_eq!((&pulled["verified"], &pulled["repaired"]), (&true.into(), &false.into()));
    (hub, machine)
}

fn cut(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn offline(machine: &Machine, args: &[&str]) -> Ran {
    Ran::from(machine.command(args).env("HF_ENDPOINT", "http://127.0.0.1:1").output().unwrap())
}

#[test]
fn a_file_that_lost_its_end_is_named_and_its_rest_is_fetched() {
    let (hub, machine) = pulled();
    let path = machine.repo().join(FILE);
    cut(&path, 400_000);
    for args in [&["run", "-m", "owner/repo", "x"][..], &["inspect", "owner/repo"]] {
        let reason = "is damaged: it has 400000 bytes and should have 1000000";
        offline(&machine, args).failed(1, reason, "`metallic pull owner/repo` repairs it");
    }
    assert!(machine.run(&["list"]).ok().out.contains("(damaged: pull again to repair)"));
    assert_eq!(machine.run(&["list", "--json"]).ok().json()[0]["damaged"], true);
    let repaired = machine.run(&["pull", "owner/repo", "--json"]).ok();
    assert!(repaired.err.contains("it has 400000 bytes"), "{}", repaired.err);
    let repaired = repaired.json();
    assert_eq!((&repaired["repaired"], &repaired["fetched"]), (&true.into(), &true.into()));
    assert_eq!(fs::read(&path).unwrap(), noise(SIZE));
    assert_eq!(files(&machine.repo()), [FILE]);
    let ranges: Vec<_> = hub.requests("/blob").into_iter().map(|request| request.range).collect();
    assert_eq!(ranges, [None, Some("bytes=400000-".to_owned())]);
}

#[test]
fn other_damage_shows_in_the_checksum_and_the_file_is_fetched_again() {
    let (hub, machine) = pulled();
    let path = machine.repo().join(FILE);
    flip(&path, 12_345);
    let reason = "cannot reach 127.0.0.1";
    offline(&machine, &["pull", "owner/repo"]).failed(1, reason, "network");
    assert!(path.exists(), "nothing is thrown away before there is something better");
    let ran = machine.run(&["pull", "owner/repo"]).ok();
    assert!(ran.err.contains("is damaged: expected sha256"), "{}", ran.err);
    assert_eq!(fs::read(&path).unwrap(), noise(SIZE));

    // Damaged and cut: what is there cannot be continued.
    flip(&path, 5);
    cut(&path, 500_000);
    let ran = machine.run(&["pull", "owner/repo"]).ok();
    assert!(ran.err.contains("what was here already is damaged; starting anew"), "{}", ran.err);
    assert_eq!(fs::read(&path).unwrap(), noise(SIZE));

    // Too long, and gone while its list is there.
    fs::write(&path, noise(SIZE + 1)).unwrap();
    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(fs::read(&path).unwrap(), noise(SIZE));
    let blobs = hub.requests("/blob").len();
    let forced = machine.run(&["pull", "owner/repo", "--force", "--json"]).ok().json();
    assert_eq!((&forced["fetched"], hub.requests("/blob").len()), (&true.into(), blobs + 1));
}

#[test]
fn a_whole_model_is_checked_without_the_network_and_an_unknown_one_with_it() {
    let (_hub, machine) = pulled();
    let ran = offline(&machine, &["pull", "owner/repo"]).ok();
    assert!(ran.err.contains("already here; its checksum is right"), "{}", ran.err);
    let known = machine.repo().join(".known.json");
    fs::remove_file(&known).unwrap();
    let ran = offline(&machine, &["pull", "owner/repo"]).ok();
    assert!(ran.err.contains("they are not checked") && ran.err.contains("cannot reach"), "{}", ran.err);
    assert!(!known.exists());
    machine.run(&["pull", "owner/repo"]).ok();
    assert!(known.exists());

    // Damage that was there before anything was known of the file.
    fs::write(&known, "damaged, too").unwrap();
    flip(&machine.repo().join(FILE), 99);
    let ran = machine.run(&["pull", "owner/repo"]).ok();
    assert!(ran.err.contains("expected sha256"), "{}", ran.err);
    machine.run(&["rm", "-y", "owner/repo"]).ok();
    assert!(!machine.repo().exists(), "the list goes with the last file");
}

#[test]
fn every_file_of_a_folder_is_checked() {
    let hub = Hub::start();
    hub.add_small("config.json", "{\"a\": 1}");
    hub.add("model.safetensors", noise(5000));
    let machine = Machine::new(&hub);
    machine.run(&["pull", "owner/repo"]).ok();
    let folder = machine.repo().join("safetensors");
    // The hub has no checksum of small files: the one noted at the download finds it.
    fs::write(folder.join("config.json"), "{\"a\": 2}").unwrap();
    cut(&folder.join("model.safetensors"), 100);
    machine.run(&["run", "-m", "owner/repo", "x"]).failed(1, "model.safetensors` is damaged", "pull");
    machine.run(&["pull", "owner/repo"]).ok();
    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(fs::read_to_string(folder.join("config.json")).unwrap(), "{\"a\": 1}");
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), noise(5000));
    fs::remove_file(folder.join("config.json")).unwrap();
    machine.run(&["run", "-m", "owner/repo", "x"]).failed(
        1,
        "config.json` is damaged: it is missing",
        "pull",
    );
    let repaired = machine.run(&["pull", "owner/repo", "--json"]).ok().json();
    assert_eq!(repaired["repaired"], true);
    assert_eq!(files(&folder), [".commit", "config.json", "model.safetensors"]);
}

#[test]
fn a_model_that_was_changed_on_the_hub_is_not_mixed_with_the_new_one() {
    let hub = Hub::start();
    let (first, second) = ("M-F16-00001-of-00002.gguf", "M-F16-00002-of-00002.gguf");
    hub.add(first, noise(3000));
    hub.add(second, noise(4000));
    let machine = Machine::new(&hub);
    machine.run(&["pull", "owner/repo"]).ok();
    hub.replace(first, noise(3500));
    hub.replace(second, noise(4500));
    hub.set_commit("abc");
    // Nothing is fetched while what is here is whole.
    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(fs::read(machine.repo().join(first)).unwrap(), noise(3000));
    cut(&machine.repo().join(second), 10);
    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(fs::read(machine.repo().join(first)).unwrap(), noise(3500));
    assert_eq!(fs::read(machine.repo().join(second)).unwrap(), noise(4500));

    // Another version, whose first part comes and whose second does not.
    hub.replace(first, noise(3100));
    hub.replace(second, noise(4100));
    hub.set_commit("def");
    hub.fail_blobs(&[Fault::CutAfter(3100), Fault::Status(404)]);
    machine.run(&["pull", "owner/repo", "--force"]).failed(1, "404", "spelling");
    let mixed = "its files are of different versions";
    machine.run(&["run", "-m", "owner/repo", "x"]).failed(1, mixed, "`metallic pull owner/repo`");
    let ran = machine.run(&["pull", "owner/repo"]).ok();
    assert!(ran.err.contains(mixed), "{}", ran.err);
    assert_eq!(fs::read(machine.repo().join(first)).unwrap(), noise(3100));
    assert_eq!(fs::read(machine.repo().join(second)).unwrap(), noise(4100));
    let again = machine.run(&["pull", "owner/repo", "--json"]).ok().json();
    assert_eq!((&again["verified"], &again["repaired"]), (&true.into(), &false.into()));
}

#[test]
fn a_damaged_model_of_the_cache_is_sent_to_pull_and_one_of_the_user_is_not() {
    let hub = Hub::start();
    let whole = fs::read(stories()).unwrap();
    // The hub itself has it incomplete: size and checksum are right, what is in it is not.
    hub.add(FILE, whole[..whole.len() / 2].to_vec());
    let machine = Machine::new(&hub);
    machine.run(&["pull", "owner/repo"]).ok();
    let commands = [
        &["run", "-m", "owner/repo", "x"][..],
        &["inspect", "owner/repo"],
        &["bench", "-m", "owner/repo"],
        &["tool", "tokenize", "-m", "owner/repo", "x"],
    ];
    for command in commands {
        machine.run(command).failed(1, FILE, "`metallic pull owner/repo` checks the file");
    }
    // The same size, and not a model at all.
    let path = machine.repo().join(FILE);
    fs::write(&path, noise(whole.len() / 2)).unwrap();
    machine.run(commands[0]).failed(1, "not a GGUF file", "`metallic pull owner/repo` checks the file");
    let ran =
        machine.run(&["run", "-m", path.to_str().unwrap(), "x"]).failed(1, "not a GGUF file", "GGUF file");
    assert!(!ran.err.contains("metallic pull"), "{}", ran.err);
}
