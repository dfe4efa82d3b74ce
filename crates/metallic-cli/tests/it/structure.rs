//! Answers that have a format.

use std::fs;

use serde_json::Value;

use crate::support::{Machine, stories};

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}"#;

#[test]
fn run_and_chat_hold_answers_to_formats() {
    let machine = Machine::without_hub();
    fs::write(machine.folder().join("person.json"), SCHEMA).unwrap();
    fs::write(machine.folder().join("ab.lark"), "start: \"a\" \"b\"~3 \"!\"\n").unwrap();
    let model = stories();
    let ask = |format: &[&str]| {
        let args = ["run", "-q", "-m", &model, "--device", "cpu", "-n", "60", "Once upon a time"];
        machine.run(&[&args[..], format].concat()).ok().out
    };
    for seed in ["1", "2", "3", "4"] {
        let text = ask(&["--json-schema", "person.json", "--seed", seed]);
        let person: Value = serde_json::from_str(&text).unwrap();
        // However it is written: -0.0 is an integer too.
        let is_whole = person["age"].as_f64().is_some_and(|age| age.fract() == 0.0);
        assert!(person["name"].is_string() && is_whole, "{text}");
    }
    assert!(serde_json::from_str::<Value>(&ask(&["--json-object"])).unwrap().is_object());
    let number = ask(&["--regex", "[0-9]{3}-[0-9]{2}"]);
    assert!(number.len() == 7 && number.as_bytes()[3] == b'-', "{number}");
    assert_eq!(ask(&["--grammar", "ab.lark"]), "abbb!\n");
    assert!(["red\n", "green\n"].contains(&ask(&["--choice", "red", "--choice", "green"]).as_str()));

    let mut command = machine.command(&["chat", "-q", "-m", &model, "--device", "cpu", "--choice", "yes"]);
    let mut child =
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"Is it?\nReally?\n").unwrap();
    let told = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(told.matches("yes").count(), 2, "{told}");
}

#[test]
fn formats_that_cannot_be_enforced_are_refused_before_anything_is_loaded() {
    let machine = Machine::without_hub();
    for (name, text) in [
        ("not.json", r#"{"properties": {"a": {"not": {}}}}"#),
        ("type.json", r#"{"type": "text"}"#),
        ("broken.json", "{"),
        ("bad.lark", "start: %json {\"uniqueItems\": true}\n"),
    ] {
        fs::write(machine.folder().join(name), text).unwrap();
    }
    let refused = |format: &[&str], reason: &str, hint: &str| {
        machine
            .run(&[&["run", "-m", "no-such-model.gguf", "x"][..], format].concat())
            .failed(1, reason, hint);
    };
    let page = "structured-output.md";
    refused(&["--json-schema", "not.json"], "`not` at `/properties/a/not`", page);
    refused(&["--json-schema", "type.json"], "`/type` of the schema is \"text\"", page);
    refused(&["--json-schema", "broken.json"], "JSON schema cannot be used", page);
    refused(&["--grammar", "bad.lark"], "`uniqueItems` at `/uniqueItems`", page);
    refused(&["--json-schema", "none.json"], "cannot read `none.json`", "path");
    refused(&["--choice", ""], "none of them empty", page);
    let both = machine.run(&["run", "--json-object", "--regex", "a", "x"]);
    assert!(both.code == Some(2) && both.err.contains("cannot be used with"), "{both:?}");
    let model = stories();
    machine.run(&["run", "-m", &model, "--regex", "(", "x"]).failed(
        1,
        "regular expression cannot be used",
        page,
    );
}

#[test]
fn a_benchmark_of_a_format_answers_in_it_and_freely_in_turn() {
    let machine = Machine::without_hub();
    fs::write(machine.folder().join("person.json"), SCHEMA).unwrap();
    let model = stories();
    let args = ["bench", "-m", &model, "--device", "cpu", "--json-schema", "person.json", "-r", "2"];
    let rows = machine.run(&[&args[..], &["-n", "40,60", "-s", "3", "--json"]].concat()).ok().json();
    let rows = rows.as_array().unwrap();
    assert_eq!((&rows[0]["test"], &rows[1]["test"], rows.len()), (&"tg40".into(), &"tg60".into(), 2));
    for row in rows {
        let (free, held) = (row["free"]["median"].as_f64().unwrap(), row["held"]["median"].as_f64().unwrap());
        assert!((row["share"].as_f64().unwrap() - held / free).abs() < 1e-9 && held > 0.0, "{row}");
        assert_eq!((row["held"]["samples"].as_array().unwrap().len(), &row["sequences"]), (2, &3.into()));
        let most = 3 * row["n"].as_u64().unwrap();
        assert!((6..=most).contains(&row["tokens"].as_u64().unwrap()), "{row}");
    }
    let table = machine.run(&[&args[..], &["-n", "40"]].concat()).ok().out;
    assert!(table.contains("SHARE") && table.contains("tg40"), "{table}");
    machine.run(&[&args[..], &["--ops"]].concat()).failed(
        1,
        "`--ops` has no meaning",
        "leave out the format",
    );
    machine.run(&["bench", "-m", &model, "--choice", "a"]).failed(1, "too short", "longer answers");
}
