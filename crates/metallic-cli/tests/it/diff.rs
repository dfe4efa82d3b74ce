//! `diff`: exit codes, the report, and runs that are saved.

use std::fs;

use crate::support::{Machine, stories};

#[test]
fn ways_that_agree_give_0_and_those_that_differ_1() {
    let machine = Machine::without_hub();
    let model = stories();
    let clean = machine.run(&["diff", "-m", &model, "cpu", "reference", "--tokens", "1,5,9"]).ok();
    let first = clean.out.lines().next().unwrap();
    assert!(first == "within rounding" || first == "equal to the bit", "{}", clean.out);
    let all = machine.run(&["diff", "-m", &model, "cpu", "reference", "--tokens", "1,5,9", "--all"]).ok();
    assert!(
        all.out.lines().count() > clean.out.lines().count() && all.out.contains("qkv/rope"),
        "{}",
        all.out
    );

    let json = ["diff", "-m", &model, "cpu", "null", "--tokens", "1,5,9", "-s", "0", "--json"];
    let ran = machine.run(&json);
    assert_eq!((ran.code, &*ran.err), (Some(1), ""), "{ran:?}");
    let report = ran.json();
    assert_eq!(report["verdict"], "differs");
    assert_eq!((&report["of"]["op"], &report["of"]["side"]), (&"embed".into(), &"null".into()), "{report}");
    assert!(report["ops"].as_array().unwrap().len() > 20, "{report}");
}

#[test]
fn what_is_wrong_gives_2_and_is_named() {
    let machine = Machine::without_hub();
    let model = stories();
    for (args, reason, hint) in [
        (&["cpu", "cpu", "--tokens", "1,99999"][..], "99999", "tool tokenize"),
        (&["cpu", "cpu", "-s", "100000"], "100000 steps", "--steps"),
        (&["cpu", "--against", "none"], "diff.json", "--save"),
    ] {
        machine.run(&[&["diff", "-m", &model], args].concat()).failed(2, reason, hint);
    }
    machine.run(&["diff", "-m", "./none.gguf", "cpu", "cpu"]).failed(2, "none.gguf", "");
    for (args, named) in [
        (&["cpu,fast", "cpu"][..], "`fast`"),
        (&["cpu"], "<B>"),
        (&["tpu", "cpu"], "`tpu`"),
        (&["cpu", "cpu", "--save", "x"], "--save"),
        (&["cpu", "soft,exact"], "`exact`"),
    ] {
        let ran = machine.run(&[&["diff", "-m", &model], args].concat());
        assert!(ran.code == Some(2) && ran.err.contains(named), "{args:?}: {ran:?}");
    }
}

#[test]
fn a_run_is_saved_with_its_size_told_and_compared_with() {
    let machine = Machine::without_hub();
    let model = stories();
    let save = ["diff", "-m", &model, "--save", "run", "cpu,exact", "--prompt", "Once upon"];
    let saved = machine.run(&save).ok();
    assert!(saved.err.contains("saving about ") && saved.err.contains("kB"), "{saved:?}");
    machine.run(&save).failed(2, "not empty", "another folder");
    let against = ["diff", "-m", &model, "--against", "run", "reference"];
    let ran = machine.run(&against).ok();
    assert!(ran.out.starts_with("within rounding") && ran.out.contains("saved on"), "{}", ran.out);
    machine.run(&[&against[..], &["--tokens", "1,2"]].concat()).failed(2, "[1, 2]", "--prompt");

    let values = machine.folder().join("run/values.bin");
    let mut bytes = fs::read(&values).unwrap();
    bytes[100] ^= 0x10;
    fs::write(&values, bytes).unwrap();
    machine.run(&against).failed(2, "damaged", "--save");
}

#[test]
fn steps_are_looked_over_while_a_model_answers() {
    let machine = Machine::without_hub();
    let model = stories();
    let run = ["run", "-m", &model, "--raw", "--temp", "0", "-n", "12", "--device", "cpu", "Once upon"];
    let plain = machine.run(&run).ok();
    let verified = machine.run(&[&run[..], &["--verify", "2"]].concat()).ok();
    assert_eq!(verified.out, plain.out);
    assert!(verified.err.contains("verified 6 operations, 0 were wrong"), "{}", verified.err);
    let ran = machine.run(&[&run[..], &["--verify", "0"]].concat());
    assert!(ran.code == Some(2) && ran.err.contains("--verify"), "{ran:?}");
}
