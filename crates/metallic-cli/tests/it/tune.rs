//! `tune`: what is measured is kept, used and told; what is wrong with a file is said.

use std::{fs, process::Command};

use metallic_testkit::missing;
use serde_json::{Value, json};

use crate::devices::kernels;
use crate::support::{Machine, Ran, stories};

fn command(machine: &Machine, args: &[&str]) -> Command {
    let mut command = machine.command(args);
    command.env("SOFTMETAL_CACHE", kernels()).env_remove("METALLIC_TUNING");
    command
}

fn run(machine: &Machine, args: &[&str]) -> Ran {
    Ran::from(command(machine, args).output().unwrap())
}

/// What `tune --list` says of the software device; `None` where it cannot be had.
fn listed(machine: &Machine) -> Option<Value> {
    let ran = run(machine, &["tune", "--list", "--device", "soft", "--json"]);
    if ran.code != Some(0) {
        missing(&ran.err);
        return None;
    }
    Some(ran.json())
}

/// A file as `tune` writes it, with these fields.
fn write(machine: &Machine, listed: &Value, fields: &Value) -> std::path::PathBuf {
    let name = listed["device_name"].as_str().unwrap();
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = machine.folder().join(format!("cache/tuning/soft-{plain}.json"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let kept = json!({
        "version": 1, "metallic": env!("CARGO_PKG_VERSION"), "kind": "soft", "name": name,
        "system": listed["system"], "model": "m", "measured": {}, "fields": fields,
    });
    fs::write(&path, kept.to_string()).unwrap();
    path
}

#[test]
fn what_is_kept_is_used_said_and_forgotten() {
    let machine = Machine::without_hub();
    let Some(before) = listed(&machine) else { return };
    assert_eq!(before["origin"], "the defaults");
    let path = write(&machine, &before, &json!({ "attention_reach": 8, "busy": 200 }));
    let after = listed(&machine).unwrap();
    let value = |listed: &Value, name: &str, what: &str| {
        let fields = listed["fields"].as_array().unwrap();
        fields.iter().find(|field| field["field"] == name).unwrap()[what].clone()
    };
    assert_eq!((value(&after, "busy", "value"), value(&after, "busy", "built_in")), (json!(200), json!(100)));
    let model = stories();
    let args = ["run", "-m", &model, "--raw", "--temp", "0", "-n", "4", "--device", "soft", "Once"];
    let tuned = run(&machine, &args).ok();
    assert!(
        tuned.err.contains("note: tuned as measured in") && tuned.err.contains("soft-Metal"),
        "{}",
        tuned.err
    );
    let plain = Ran::from(command(&machine, &args).env("METALLIC_TUNING", "off").output().unwrap()).ok();
    assert!(!plain.err.contains("tuned"), "{}", plain.err);
    assert_eq!(plain.out, tuned.out, "the same answer");
    let devices = run(&machine, &["devices"]).ok().out;
    assert!(devices.contains("tuned: busy=200, attention_reach=8"), "{devices}");
    // A value that there is not.
    write(&machine, &before, &json!({ "busy": 3 }));
    let wrong = "`busy` is 3; it may be 25, 50, 100, 200 or 400";
    run(&machine, &args).failed(1, wrong, "`metallic tune --reset` removes it");
    assert!(run(&machine, &["devices"]).ok().out.contains(wrong));
    let asked = command(&machine, &args).env("METALLIC_TUNING", &path).output().unwrap();
    Ran::from(asked).failed(1, wrong, "has made on this device");
    for removed in ["removed", "there is no"] {
        let ran = run(&machine, &["tune", "--reset", "--device", "soft"]).ok();
        assert!(ran.err.contains(removed), "{}", ran.err);
    }
    assert_eq!(listed(&machine).unwrap(), before);
    assert!(run(&machine, &["devices"]).ok().out.contains("tuning: the defaults"));
}

#[test]
fn a_model_is_tuned_and_what_is_fastest_is_kept() {
    let machine = Machine::without_hub();
    if listed(&machine).is_none() {
        return;
    }
    let model = stories();
    let args =
        ["tune", "-m", &model, "--device", "soft", "-p", "12", "-n", "2", "-r", "1", "--quick", "--json"];
    let found = run(&machine, &args).ok().json();
    let fields = found["fields"].as_array().unwrap();
    assert!(fields.iter().any(|field| field["trials"][0]["ratios"].is_array()), "{found}");
    for field in fields {
        // Nothing has cells there.
        if field["field"].as_str().unwrap().starts_with("cell_") {
            assert_eq!(
                (&field["to"], &field["trials"][0]["changes"]),
                (&field["from"], &json!(false)),
                "{field}"
            );
        }
        assert_eq!(found["before"][field["field"].as_str().unwrap()], field["from"]);
    }
    // Whether anything is faster depends on the machine.
    let changed = found["before"] != found["after"];
    assert_eq!(found["kept_in"].is_string(), changed, "{found}");
    let in_use = listed(&machine).unwrap();
    for field in in_use["fields"].as_array().unwrap() {
        assert_eq!(field["value"], found["after"][field["field"].as_str().unwrap()], "{field}");
    }
}

#[test]
fn devices_without_plans_and_options_that_contradict_are_refused() {
    let machine = Machine::without_hub();
    for device in ["cpu", "reference", "null"] {
        let reason = format!("there is nothing to tune on `{device}`");
        run(&machine, &["tune", "-m", &stories(), "--device", device]).failed(1, &reason, "metallic devices");
        run(&machine, &["tune", "--list", "--device", device]).failed(1, &reason, "metallic devices");
    }
    let ran = run(&machine, &["tune", "--reset", "--quick"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}
