//! Models split into files, and the choice among quantisations.

use std::{fs, path::Path};

use metallic::formats::{Gguf, GgufWriter};

use crate::{
    hub::{Fault, Hub, noise},
    support::{Machine, files, stories},
};

const PARTS: [(&str, usize); 3] = [
    ("Big-Q8_0-00001-of-00003.gguf", 5000),
    ("Big-Q8_0-00002-of-00003.gguf", 6000),
    ("Big-Q8_0-00003-of-00003.gguf", 7000),
];

fn hub_with_parts() -> Hub {
    let hub = Hub::start();
    for (name, bytes) in PARTS {
        hub.add(&format!("Q8_0/{name}"), noise(bytes));
    }
    hub
}

#[test]
fn all_parts_come_or_the_model_is_not_there() {
    let hub = hub_with_parts();
    let machine = Machine::new(&hub);
    // The first part comes, the second breaks off for good.
    let faults = [
        Fault::CutAfter(5000),
        Fault::CutAfter(2000),
        Fault::CutAfter(0),
        Fault::CutAfter(0),
        Fault::CutAfter(0),
    ];
    hub.fail_blobs(&faults);
    let ran = machine.run(&["pull", "owner/repo"]).failed(1, "Big-Q8_0-00002-of-00003.gguf broke", "goes on");
    assert!(ran.err.contains("Big-Q8_0-00001-of-00003.gguf and 2 more (18.0 kB)"), "{}", ran.err);
    let list = machine.run(&["list", "--json"]).ok().json();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
    assert_eq!((&list[0]["complete"], &list[0]["size_bytes"]), (&false.into(), &7000.into()));
    machine.run(&["inspect", "owner/repo"]).failed(1, "not on this machine", "pull");

    let blobs = hub.requests("/blob/0").len();
    let pulled = machine.run(&["pull", "owner/repo:Q8_0", "--json"]).ok().json();
    assert_eq!(hub.requests("/blob/0").len(), blobs, "the first part was here");
    assert_eq!(hub.requests("/blob/1").last().unwrap().range.as_deref(), Some("bytes=2000-"));
    let first = machine.repo().join("Q8_0").join(PARTS[0].0);
    assert_eq!((&pulled["path"], &pulled["size_bytes"]), (&first.to_str().unwrap().into(), &18_000.into()));
    for (name, bytes) in PARTS {
        assert_eq!(fs::read(machine.repo().join("Q8_0").join(name)).unwrap(), noise(bytes), "{name}");
    }
    let list = machine.run(&["list", "--json"]).ok().json();
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!(list[0]["name"], format!("owner/repo:Q8_0/{}", PARTS[0].0));
    assert_eq!((&list[0]["complete"], &list[0]["size_bytes"]), (&true.into(), &18_000.into()));
    // Any part names the whole.
    let again = machine.run(&["pull", &format!("owner/repo:{}", PARTS[1].0), "--json"]).ok().json();
    assert_eq!(again["fetched"], false);

    fs::remove_file(machine.repo().join("Q8_0").join(PARTS[2].0)).unwrap();
    machine.run(&["inspect", "owner/repo"]).failed(1, "not on this machine", "pull");
    let removed = machine.run(&["rm", "-y", "owner/repo:Q8_0", "--json"]).ok().json();
    assert_eq!(removed["freed_bytes"], 11_000);
    assert!(!machine.repo().exists());
}

#[test]
fn a_model_in_two_files_answers_as_in_one() {
    let hub = Hub::start();
    let machine = Machine::new(&hub);
    let whole = Gguf::open(Path::new(&stories())).unwrap();
    let tensors: Vec<_> = whole.tensors().cloned().collect();
    for (number, tensors) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
        let mut writer = GgufWriter::with_metadata(whole.metadata.clone());
        writer.insert("split.count", 2_u16);
        writer.insert("split.no", number as u16);
        for tensor in tensors {
            writer.add(tensor.clone()).unwrap();
        }
        let part = machine.folder().join("part.gguf");
        writer.write(&part).unwrap();
        hub.add(&format!("Stories-F32-0000{}-of-00002.gguf", number + 1), fs::read(&part).unwrap());
    }
    let answer = |model: &str| {
        let args = ["run", "-q", "-m", model, "--raw", "--temp", "0", "-n", "20", "Once upon a time"];
        machine.run(&args).ok().out
    };
    assert_eq!(answer("owner/repo"), answer(&stories()));
    assert_eq!(hub.requests("/blob").len(), 2);
}

#[test]
fn parts_that_the_hub_lacks_are_counted() {
    let hub = Hub::start();
    hub.add(PARTS[0].0, noise(100));
    let machine = Machine::new(&hub);
    let problem = "has only 1 of the 3 parts of `Big-Q8_0-00001-of-00003.gguf`";
    machine.run(&["pull", "owner/repo"]).failed(1, problem, "file list");
    machine.run(&["pull", "owner/repo:Q8_0"]).failed(1, problem, "file list");
    assert!(hub.requests("/blob").is_empty());
}

#[test]
fn the_quantisation_is_the_largest_that_the_memory_has_room_for() {
    let hub = hub_with_parts();
    hub.add("Big-Q4_K_M.gguf", noise(9000));
    hub.add("Big-Q2_K.gguf", noise(4000));
    hub.add("Big-F16.gguf", noise(30_000));
    let machine = Machine::new(&hub);
    let pull = |memory: &str| machine.run(&["pull", "owner/repo", "--memory", memory]);
    machine.run(&["pull", "owner/repo", "--memory", "many"]).code.filter(|code| *code == 2).unwrap();
    pull("4kB").failed(
        1,
        "has nothing that fits in 75 % of 4.0 kB: the smallest is Q2_K with 4.0 kB",
        "Big-Q4_K_M.gguf",
    );
    for (memory, why) in [
        ("12kB", "Q4_K_M, 9.0 kB: the largest of 3 quantisations that fits in 75 % of 12.0 kB"),
        ("1GB", "Q8_0, 18.0 kB: the largest of 3 quantisations that fits in 75 % of 1.0 GB"),
    ] {
        let ran = pull(memory).ok();
        assert!(ran.err.contains(why), "{}", ran.err);
        assert!(ran.err.contains("F16 (30.0 kB)") && ran.err.contains("owner/repo:TYPE"), "{}", ran.err);
        machine.run(&["rm", "-y", "owner/repo"]).ok();
    }
    // What is named is taken, however large; this machine's own memory is enough for all of them.
    let ran = machine.run(&["pull", "owner/repo:F16", "--memory", "1kB"]).ok();
    assert!(ran.err.contains("--memory has no effect"), "{}", ran.err);
    let ran = machine.run(&["pull", "owner/repo:F16", "--memory", "1kB"]).ok();
    assert!(ran.err.contains("--memory has no effect on a model that is here"), "{}", ran.err);
    machine.run(&["pull", &stories(), "--force"]).failed(1, "there is nothing to fetch", "--force");
    assert_eq!(files(&machine.repo()), ["Big-F16.gguf"]);
    machine.run(&["rm", "-y", "owner/repo"]).ok();
    let ran = machine.run(&["pull", "owner/repo"]).ok();
    assert!(ran.err.contains("Q8_0, 18.0 kB"), "{}", ran.err);
}
