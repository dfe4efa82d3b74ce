//! `metallic doctor`: planted faults are found, named, and told with what to do.

use std::fs;

use serde_json::Value;

use crate::{
    hub::{Hub, noise},
    support::{Machine, Ran, stories},
};

/// Findings of a status, as `what: found`.
fn of_status(report: &Value, status: &str) -> Vec<String> {
    let all = report["findings"].as_array().unwrap().iter();
    let of = all.filter(|finding| finding["status"] == status);
    of.map(|finding| format!("{}: {}", finding["what"].as_str().unwrap(), finding["found"].as_str().unwrap()))
        .collect()
}

fn failed(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    ran.json()
}

#[test]
fn a_machine_that_is_well_has_no_failures_and_every_area_is_looked_at() {
    let machine = Machine::without_hub();
    let model = stories();
    let report = machine.run(&["doctor", "--quick", "--json", "-m", &model]).ok().json();
    assert_eq!((&report["version"], &report["summary"]["failures"]), (&1.into(), &0.into()), "{report}");
    let mut areas: Vec<&str> =
        report["findings"].as_array().unwrap().iter().map(|f| f["area"].as_str().unwrap()).collect();
    areas.dedup();
    assert_eq!(areas, ["system", "environment", "devices", "storage", "models", "self-tests"]);
    let good = of_status(&report, "ok");
    assert!(good.iter().any(|line| line.starts_with("cpu: 10 known answers")), "{good:?}");
    assert!(good.iter().any(|line| line.contains("stories") && line.contains("llama")), "{good:?}");
}

#[test]
fn a_model_whose_bytes_have_changed_is_found_by_its_checksum_and_one_that_is_cut_by_its_size() {
    let hub = Hub::start();
    let file = fs::read(stories()).unwrap();
    hub.add("Model-Q8_0.gguf", file.clone());
    let machine = Machine::new(&hub);
    machine.run(&["pull", "owner/repo"]).ok();
    let look = |args: &[&str]| machine.run(&[&["doctor", "--json", "--only", "models"], args].concat());
    let whole = look(&[]).ok().json();
    assert!(of_status(&whole, "ok")[0].contains("checksums are right"), "{whole}");

    let path = machine.repo().join("Model-Q8_0.gguf");
    let mut wrong = file.clone();
    *wrong.last_mut().unwrap() ^= 1;
    fs::write(&path, &wrong).unwrap();
    let quick = look(&["--quick"]).ok().json();
    assert!(of_status(&quick, "ok")[0].contains("not looked at"), "{quick}");
    let report = failed(&look(&[]));
    let found = &of_status(&report, "failure")[0];
    assert!(found.contains("Model-Q8_0.gguf") && found.contains("sha256"), "{found}");
    assert_eq!(report["findings"][0]["advice"], "`metallic pull owner/repo:Model-Q8_0.gguf` repairs it");

    fs::write(&path, &file[..file.len() / 2]).unwrap();
    let found = &of_status(&failed(&look(&["--quick"])), "failure")[0];
    assert!(found.contains("another size"), "{found}");
}

#[test]
fn a_file_that_is_no_model_is_a_failure_with_its_reason() {
    let machine = Machine::without_hub();
    let path = machine.folder().join("broken.gguf");
    fs::write(&path, noise(1000)).unwrap();
    let ran = machine.run(&["doctor", "--only", "models", "-m", path.to_str().unwrap()]);
    let ran = ran.failed(1, "1 of 1 findings are failures", "what to do");
    assert!(ran.out.contains("FAIL") && ran.out.contains("broken.gguf"), "{}", ran.out);
}

#[test]
fn what_slows_the_processor_down_shows_in_the_environment_and_in_its_speed() {
    let machine = Machine::without_hub();
    let mut command = machine.command(&["doctor", "--json", "--only", "environment,devices,speed"]);
    let ran = Ran::from(command.env("METALLIC_CPU_ISA", "portable").output().unwrap()).ok();
    let report = ran.json();
    let warnings = of_status(&report, "warning");
    assert_eq!((warnings.len(), warnings[0].as_str()), (2, "METALLIC_CPU_ISA: portable"), "{report}");
    assert!(warnings[1].starts_with("cpu: ") && warnings[1].contains("45 % are expected"), "{warnings:?}");
    assert!(
        of_status(&report, "ok").iter().any(|line| line.starts_with("cpu: ") && line.contains("portable"))
    );
}

#[test]
fn a_report_is_written_and_one_that_cannot_be_is_refused_at_once() {
    let machine = Machine::without_hub();
    let path = machine.folder().join("report.txt");
    let at = path.to_str().unwrap();
    let ran = machine.run(&["doctor", "--only", "system,storage", "--report", at]).ok();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("operating system") && ran.err.contains("report.txt"), "{text}");
    assert!(!text.contains(&std::env::var("HOME").unwrap_or("/nobody".to_owned())), "{text}");
    let nowhere = machine.folder().join("no").join("report.txt");
    machine.run(&["doctor", "--report", nowhere.to_str().unwrap()]).failed(1, "report.txt", "folder");
}
