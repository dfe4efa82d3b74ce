//! Fetching from the hub.

use std::{fs, process::Stdio};

use crate::{
    hub::{COMMIT, Fault, Hub, noise, sha256},
    support::{Machine, Ran, files},
};

const FILE: &str = "Model-Q4_K_M.gguf";
const SIZE: usize = 1_000_000;

fn hub_with_model() -> Hub {
    let hub = Hub::start();
    hub.add_small("README.md", "# a model");
    hub.add(FILE, noise(SIZE));
    hub.add("Model-Q8_0.gguf", noise(2000));
    hub
}

#[test]
fn a_model_is_fetched_by_quantisation_once_and_then_found_without_the_network() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    let ran = machine.run(&["pull", "owner/repo:q4_k_m"]).ok();
    let path = machine.repo().join(FILE);
    assert_eq!(ran.out.trim(), path.to_str().unwrap());
    assert_eq!(fs::read(&path).unwrap(), noise(SIZE));
    assert_eq!(files(&machine.models()), [format!("owner--repo/{FILE}")]);

    let before = hub.requests("/").len();
    for name in ["owner/repo:Q4_K_M", "owner/repo", "owner/repo:Model-Q4_K_M.gguf"] {
        let again = machine.run(&["pull", name, "--json"]).ok().json();
        assert_eq!(again["fetched"], false);
        assert_eq!(again["path"], path.to_str().unwrap());
        assert_eq!(again["size_bytes"], SIZE);
    }
    assert_eq!(hub.requests("/").len(), before);
}

#[test]
fn a_bare_repository_gives_its_usual_quantisation_at_one_commit() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    let pulled = machine.run(&["pull", "owner/repo", "--json"]).ok().json();
    assert_eq!(pulled["fetched"], true);
    assert!(pulled["path"].as_str().unwrap().ends_with(FILE));
    assert_eq!(hub.requests(&format!("/owner/repo/resolve/{COMMIT}/")).len(), 1);
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    let mut command = machine.command(&["pull", "owner/repo"]);
    Ran::from(command.env("HF_TOKEN", "hf_secret").output().unwrap()).ok();
    for request in hub.requests("/api").into_iter().chain(hub.requests("/owner")) {
        assert_eq!(request.token.as_deref(), Some("Bearer hf_secret"), "{request:?}");
    }
    let blobs = hub.requests("/blob");
    assert_eq!(blobs.len(), 1);
    assert_eq!(blobs[0].token, None);
}

#[test]
fn a_saved_token_is_used_and_never_shown() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    let saved = machine.folder().join(".cache/huggingface");
    fs::create_dir_all(&saved).unwrap();
    fs::write(saved.join("token"), "hf_saved\n").unwrap();
    hub.fail_api(&[Fault::Status(403)]);
    let ran = machine.run(&["pull", "owner/repo"]).failed(1, "403", "terms");
    assert_eq!(hub.requests("/api")[0].token.as_deref(), Some("Bearer hf_saved"));
    assert!(!ran.err.contains("hf_saved"));

    fs::write(saved.join("token"), "hf two words").unwrap();
    let ran = machine.run(&["pull", "owner/repo"]).failed(1, "HF_TOKEN", "environment variable");
    assert!(!ran.err.contains("two words"));
}

#[test]
fn a_broken_transfer_goes_on_where_it_stopped() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    hub.fail_blobs(&[Fault::CutAfter(300_000), Fault::CutAfter(200_000)]);
    let ran = machine.run(&["pull", "owner/repo"]).ok();
    assert!(ran.err.contains("the connection broke"), "{}", ran.err);
    assert_eq!(fs::read(machine.repo().join(FILE)).unwrap(), noise(SIZE));
    let ranges: Vec<_> = hub.requests("/blob").into_iter().map(|request| request.range).collect();
    assert_eq!(ranges, [None, Some("bytes=300000-".to_owned()), Some("bytes=500000-".to_owned())]);
}

#[test]
fn a_transfer_that_never_brings_a_byte_is_given_up() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    hub.fail_blobs(&[Fault::CutAfter(0); 8]);
    machine.run(&["pull", "owner/repo"]).failed(1, "broke 4 times", "goes on where it stopped");
    assert!(!machine.repo().join(FILE).exists());
}

#[test]
fn a_server_without_ranges_starts_the_file_anew() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    hub.fail_blobs(&[Fault::CutAfter(300_000), Fault::NoRanges]);
    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(fs::read(machine.repo().join(FILE)).unwrap(), noise(SIZE));
}

#[test]
fn a_part_of_other_contents_is_not_continued() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    let part = machine.repo().join(format!("{FILE}.part"));
    for tag in [Some(sha256(b"an older version")), None] {
        fs::create_dir_all(machine.repo()).unwrap();
        fs::write(&part, vec![7; 1000]).unwrap();
        if let Some(tag) = tag {
            fs::write(machine.repo().join(format!("{FILE}.part.tag")), tag).unwrap();
        }
        machine.run(&["pull", "owner/repo"]).ok();
        assert_eq!(fs::read(machine.repo().join(FILE)).unwrap(), noise(SIZE));
        machine.run(&["rm", "-y", "owner/repo"]).ok();
    }
}

#[test]
fn a_part_that_is_whole_already_is_verified_and_kept() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    fs::create_dir_all(machine.repo()).unwrap();
    fs::write(machine.repo().join(format!("{FILE}.part")), noise(SIZE)).unwrap();
    fs::write(machine.repo().join(format!("{FILE}.part.tag")), sha256(&noise(SIZE))).unwrap();
    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(files(&machine.repo()), [FILE]);
    assert_eq!(hub.requests("/blob").len(), 1);
}

#[test]
fn a_wrong_checksum_deletes_the_file_and_shows_both_sums() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    let claimed = sha256(b"something else");
    hub.claim_sha256(FILE, &claimed);
    let ran = machine.run(&["pull", "owner/repo"]).failed(1, "checksum", "deleted");
    assert!(ran.err.contains(&format!("expected sha256 {claimed}, found {}", sha256(&noise(SIZE)))));
    assert_eq!(files(&machine.repo()), [""; 0]);

    hub.replace(FILE, noise(SIZE));
    machine.run(&["pull", "owner/repo"]).ok();
}

#[test]
fn a_refusal_is_explained() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    for (status, hint) in [(401, "HF_TOKEN"), (403, "gated"), (404, "spelling"), (429, "wait")] {
        hub.fail_api(&[Fault::Status(status)]);
        let reason = format!("answered {status} for the file list of owner/repo");
        machine.run(&["pull", "owner/repo"]).failed(1, &reason, hint);
    }
    machine.run(&["pull", "owner/nothing"]).failed(1, "404", "spelling");
    hub.fail_blobs(&[Fault::Status(403)]);
    machine.run(&["pull", "owner/repo"]).failed(1, "403 for Model-Q4_K_M.gguf", "gated");
}

#[test]
fn a_server_error_is_tried_again_but_not_for_ever() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    hub.fail_api(&[Fault::Status(500), Fault::Status(503)]);
    hub.fail_blobs(&[Fault::Status(502)]);
    machine.run(&["pull", "owner/repo"]).ok();
    machine.run(&["rm", "-y", "owner/repo"]).ok();

    hub.fail_api(&[Fault::Status(500); 4]);
    machine.run(&["pull", "owner/repo"]).failed(1, "answered 500", "try again later");
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    hub.fail_api(&[Fault::Garbage]);
    machine.run(&["pull", "owner/repo"]).failed(1, "makes no sense", "HF_ENDPOINT");
    hub.fail_api(&[Fault::Loop]);
    machine.run(&["pull", "owner/repo"]).failed(1, "redirects", "HF_ENDPOINT");
}

#[test]
fn a_listing_cannot_write_outside_the_cache() {
    let hub = Hub::start();
    hub.add("../../../evil-Q4_K_M.gguf", noise(100));
    hub.add("/tmp/evil-Q4_0.gguf", noise(100));
    let machine = Machine::new(&hub);
    machine.run(&["pull", "owner/repo"]).failed(1, "neither a GGUF file nor", "file list");
    assert_eq!(files(machine.folder()), [""; 0]);
}

#[test]
fn what_a_repository_lacks_is_named_with_what_it_has() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    machine.run(&["pull", "owner/repo:Q6_K"]).failed(1, "no GGUF file of type Q6_K", "Model-Q8_0.gguf");
    machine.run(&["pull", "owner/repo:x.gguf"]).failed(1, "no file `x.gguf`", FILE);
}

#[test]
fn a_folder_of_safetensors_appears_only_when_it_is_whole() {
    let hub = Hub::start();
    hub.add_small("config.json", "{}");
    hub.add_small("model.safetensors.index.json", "{}");
    hub.add_small("tokenizer.json", "{}");
    hub.add_small("training_args.txt", "no");
    hub.add("model-00001-of-00002.safetensors", noise(5000));
    hub.add("model-00002-of-00002.safetensors", noise(6000));
    let machine = Machine::new(&hub);
    // The first shard comes, the second never does.
    let serve_first = [Fault::CutAfter(2500), Fault::CutAfter(2500)];
    hub.fail_blobs(&[&serve_first[..], &[Fault::CutAfter(0); 4]].concat());
    machine.run(&["pull", "owner/repo"]).failed(1, "model-00002-of-00002", "goes on");
    let whole = machine.repo().join("safetensors");
    assert!(!whole.exists());
    let list = machine.run(&["list", "--json"]).ok().json();
    assert_eq!(list[0]["complete"], false);

    let blobs = hub.requests("/blob/4").len();
    machine.run(&["pull", "owner/repo"]).ok();
    assert_eq!(hub.requests("/blob/4").len(), blobs, "the first shard was here");
    let expected = [
        ".commit",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(files(&whole), expected);
    assert_eq!(fs::read(whole.join("model-00002-of-00002.safetensors")).unwrap(), noise(6000));
    let again = machine.run(&["pull", "owner/repo:safetensors", "--json"]).ok().json();
    assert_eq!(again["fetched"], false);
}

#[test]
fn two_processes_fetch_a_model_once() {
    let hub = hub_with_model();
    let machine = Machine::new(&hub);
    let start = || {
        let mut command = machine.command(&["pull", "owner/repo"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    hub.fail_blobs(&[Fault::CutAfter(300_000)]);
    let both = [start(), start()];
    for child in both {
        Ran::from(child.wait_with_output().unwrap()).ok();
    }
    assert_eq!(fs::read(machine.repo().join(FILE)).unwrap(), noise(SIZE));
    assert_eq!(hub.requests("/blob").len(), 2, "one download, resumed once");
}
