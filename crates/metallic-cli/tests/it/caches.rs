//! `tool plan` and `tool cache-dump` from the outside: folders made up for it, plans of a model that travels with the repository.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use metallic_testkit::data;
use serde_json::{Value, json};

use crate::support::{Machine, Ran};

const DAY: Duration = Duration::from_secs(86400);

/// A machine with a cache of every kind.
struct Caches {
    machine: Machine,
    soft: PathBuf,
    archives: PathBuf,
}

fn aged(path: &Path, days: u32) {
    File::open(path).unwrap().set_modified(SystemTime::now() - DAY * days).unwrap();
}

impl Caches {
    fn new() -> Caches {
        let machine = Machine::without_hub();
        let [soft, archives] = ["soft", "archives"].map(|name| machine.folder().join(name));
        fs::create_dir_all(soft.join("ptx")).unwrap();
        fs::create_dir_all(&archives).unwrap();
        let soft = fs::canonicalize(soft).unwrap();
        Caches { machine, soft, archives }
    }

    /// Compiled kernels of so many bytes, last used so long ago, and the note that leads to them.
    fn object(&self, digit: char, bytes: usize, days: u32) -> PathBuf {
        let hash = digit.to_string().repeat(32);
        let path = self.soft.join(format!("{hash}.so"));
        fs::write(&path, vec![1; bytes]).unwrap();
        let note = json!([{ "object": path, "warnings": [], "outline": false }, [["/x/norm.metal", "0"]]]);
        fs::write(self.soft.join(format!("{hash}.json")), note.to_string()).unwrap();
        fs::write(self.soft.join(format!("{hash}.took")), "1500").unwrap();
        aged(&path, days);
        path
    }

    fn archive(&self, name: &str, bytes: usize, days: u32) -> PathBuf {
        let path = self.archives.join(format!("{name}-0123456789abcdef.metalarchive"));
        fs::write(&path, vec![1; bytes]).unwrap();
        aged(&path, days);
        path
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.machine.command(&[&["tool", "cache-dump"][..], args].concat());
        command.env("SOFTMETAL_CACHE", &self.soft).env("METALLIC_KERNEL_CACHE", &self.archives);
        Ran::from(command.output().unwrap())
    }
}

/// The entry of a path.
fn entry(listed: &Value, path: &Path) -> Value {
    let folders = listed["folders"].as_array().unwrap().iter();
    let mut entries = folders.flat_map(|folder| folder["entries"].as_array().unwrap());
    let found = entries.find(|entry| entry["path"] == path.display().to_string());
    found.unwrap_or_else(|| panic!("{} in {listed}", path.display())).clone()
}

#[test]
fn every_kind_of_cache_is_listed_with_what_is_wrong_in_it() {
    let caches = Caches::new();
    let object = caches.object('a', 1000, 2);
    let held = caches.object('b', 10, 2);
    let lock = File::open(&held).unwrap();
    lock.lock_shared().unwrap();
    let empty = caches.archive("empty", 0, 1);
    let draft = caches.archives.join("norm-0123456789abcdef.metalarchive.77");
    fs::write(&draft, "x").unwrap();
    let foreign = caches.archives.join("holiday.jpg");
    fs::write(&foreign, "x").unwrap();
    let link = caches.archives.join("linked-0123456789abcdef.metalarchive");
    symlink("/etc/passwd", &link).unwrap();
    let [old, torn] = ["old-01.ptx", "torn-02.ptx"].map(|name| caches.soft.join("ptx").join(name));
    fs::write(&old, "metallic ptx 1\nkernel\n").unwrap();
    fs::write(&torn, "half of a").unwrap();
    let tuning = caches.machine.folder().join("cache/tuning");
    fs::create_dir_all(&tuning).unwrap();
    let [newer, broken] = ["cuda-x.json", "metal-y.json"].map(|name| tuning.join(name));
    fs::write(&newer, "{\"version\": 99}").unwrap();
    fs::write(&broken, "{").unwrap();

    let listed = caches.run(&["--json"]).ok().json();
    assert_eq!(listed["version"], 1);
    let sound = entry(&listed, &object);
    assert_eq!(
        (&sound["state"], &sound["name"], &sound["compile_s"]),
        (&json!("sound"), &json!("norm.metal"), &json!(1.5))
    );
    assert_eq!(sound["source_hashes"], json!(["a".repeat(32)]));
    assert!(sound["bytes"].as_u64().unwrap() > 1000 && sound["used_unix_s"].is_u64());
    for (path, state, why) in [
        (&held, "in use", ""),
        (&empty, "damaged", "empty"),
        (&draft, "begun", ""),
        (&foreign, "foreign", "nothing that metallic writes"),
        (&link, "foreign", "symbolic link"),
        (&old, "other version", "metallic ptx 1"),
        (&torn, "damaged", "ends before its text"),
        (&newer, "other version", "version 99"),
        (&broken, "damaged", "EOF"),
    ] {
        let found = entry(&listed, path);
        assert_eq!(found["state"], state, "{found}");
        assert!(found["reason"].as_str().unwrap_or_default().contains(why), "{found}");
    }
    let text = caches.run(&[]).ok();
    assert!(text.out.contains("norm.metal") && text.out.contains("1.50 s"), "{}", text.out);
    assert!(text.out.contains("each use sets") && text.out.contains("holiday.jpg"), "{}", text.out);
    assert!(text.err.contains("in memory"), "{}", text.err);
    let only = caches.run(&["--kind", "archive", "--json"]).ok().json();
    assert_eq!(only["folders"].as_array().unwrap().len(), 1);
}

#[test]
fn pruning_takes_what_is_old_or_too_much_and_leaves_the_rest() {
    let caches = Caches::new();
    let (old, held) = (caches.object('a', 100, 40), caches.object('b', 100, 50));
    let recent = [caches.object('c', 4000, 3), caches.object('d', 4000, 1)];
    let lock = File::open(&held).unwrap();
    lock.lock_shared().unwrap();
    let (damaged, archive) = (caches.archive("empty", 0, 1), caches.archive("norm", 500, 35));
    let outside = caches.machine.folder().join("precious");
    fs::write(&outside, "x").unwrap();
    let (link, foreign) = (caches.soft.join(format!("{}.so", "e".repeat(32))), caches.soft.join("mine.txt"));
    symlink(&outside, &link).unwrap();
    fs::write(&foreign, "x").unwrap();
    aged(&foreign, 400);
    let tuning = caches.machine.folder().join("cache/tuning/cuda-x.json");
    fs::create_dir_all(tuning.parent().unwrap()).unwrap();
    fs::write(&tuning, "{").unwrap();

    let would = caches.run(&["--prune", "--older-than", "30d", "--dry-run"]).ok();
    assert!(would.out.contains("would remove") && old.exists() && damaged.exists(), "{}", would.out);
    let pruned = caches.run(&["--prune", "--older-than", "30d", "--json"]).ok().json();
    let removed = pruned["pruned"]["removed"].as_array().unwrap();
    assert_eq!(removed.len(), 3, "{removed:?}");
    assert!(!old.exists() && !damaged.exists() && !archive.exists());
    assert!(!old.with_extension("json").exists() && !old.with_extension("took").exists());
    assert!(
        removed.iter().any(|gone| gone["why"].as_str().unwrap().contains("not used for 40 days")),
        "{removed:?}"
    );
    assert!(pruned["pruned"]["freed_bytes"].as_u64().unwrap() >= 600);

    let text = caches.run(&["--prune", "--max-size", "6k"]).ok();
    assert!(!recent[0].exists() && recent[1].exists(), "{}", text.out);
    assert!(text.out.contains("1 entry, 4."), "{}", text.out);
    assert!(held.exists() && link.is_symlink() && outside.exists() && foreign.exists() && tuning.exists());

    caches.run(&["--prune", "--kind", "tuning"]).ok();
    assert!(!tuning.exists(), "damaged, and asked for by name");
    caches.run(&["--prune", "--kind", "bundle"]).failed(1, "bundles are not pruned", "remove the folder");
    assert_eq!(caches.run(&["--older-than", "30d"]).code, Some(2));
    assert!(caches.run(&["--prune", "--older-than", "soon"]).err.contains("30d"));
}

#[test]
fn a_machine_without_caches_says_so_and_makes_none() {
    let machine = Machine::without_hub();
    let mut command = machine.command(&["tool", "cache-dump"]);
    for name in ["SOFTMETAL_CACHE", "METALLIC_KERNEL_CACHE", "METALLIC_PTX"] {
        command.env_remove(name);
    }
    let ran = Ran::from(command.output().unwrap()).ok();
    assert!(ran.out.contains("it is not there"), "{}", ran.out);
    assert_eq!(fs::read_dir(machine.folder()).unwrap().count(), 0, "nothing is made for looking");
}

fn stories() -> String {
    data::own().join("stories260K/stories260K-f32.gguf").display().to_string()
}

#[test]
fn plans_are_shown_drawn_and_refused() {
    let machine = Machine::without_hub();
    let model = stories();
    let run = |args: &[&str]| machine.run(&[&["tool", "plan", "-m", &model][..], args].concat());
    let text = run(&["--as", "m4"]).ok();
    assert!(
        text.out.contains("planned as for Apple M4") && text.out.contains("LAYER 0 (× 5: 1-4 ARE LIKE IT)")
    );
    let shown = run(&["--as", "h200", "--tokens", "64", "--layer", "2", "--json"]).ok();
    assert!(shown.err.contains("library of products"), "{}", shown.err);
    let plan = shown.json();
    assert_eq!((&plan["version"], &plan["device"]["planned_as"]), (&json!(1), &json!("NVIDIA H200")));
    assert!(plan["ops"].as_array().unwrap().iter().all(|op| op["layer"] == 2));
    let drawn = run(&["--device", "null", "--svg", "layer.svg"]).ok();
    let svg = fs::read_to_string(machine.folder().join("layer.svg")).unwrap();
    assert!(drawn.out.is_empty() && svg.starts_with("<svg") && svg.contains("fused by self_attention"));
    run(&["--as", "m4", "--layer", "9"]).failed(1, "layer 9 is not there", "`--layer`");
    run(&["--as", "m4", "--tokens", "9000"]).failed(1, "9000 tokens are needed", "`--tokens`");
    assert!(run(&["--as", "m99"]).err.contains("nothing is known of `m99`; there are M1"));
    assert_eq!(run(&["--as", "m4", "--device", "cpu"]).code, Some(2));
    run(&["--as", "m4", "--svg", "no/such/folder/x.svg"]).failed(
        1,
        "cannot write the plan into `no/such",
        "folder that is there",
    );
}

#[test]
fn the_environment_asks_any_command_for_its_plan_once() {
    let machine = Machine::without_hub();
    let model = stories();
    let run = |args: &[&str], value: &str| {
        let mut command = machine.command(&[args, &["-m", &model]].concat());
        Ran::from(command.env("METALLIC_DUMP_GRAPH_PLAN", value).output().unwrap()).ok()
    };
    let bench = ["bench", "--device", "cpu", "--no-limits", "-p", "4", "-n", "2", "-r", "1"];
    let told = run(&bench, "1");
    assert_eq!(told.err.matches("FUSION: ").count(), 1, "{}", told.err);
    assert!(!told.out.contains("FUSION"));
    run(&["run", "Once", "--raw", "-n", "2", "--device", "cpu", "-q"], "plan.json");
    let plan = fs::read_to_string(machine.folder().join("plan.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&plan).unwrap()["device"]["kind"], "cpu");
    assert!(!run(&bench, "0").err.contains("FUSION"));
}
