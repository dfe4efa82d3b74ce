//! `tool ptx` and `tool ops`: what a machine with an NVIDIA GPU needs, and how it is checked, on machines without one.

use metallic_testkit::missing;

use crate::devices::kernels;
use crate::support::{Machine, Ran};

fn run(machine: &Machine, args: &[&str]) -> Ran {
    Ran::from(machine.command(args).env("SOFTMETAL_CACHE", kernels()).output().unwrap())
}

/// The number before this word.
fn number_before(text: &str, word: &str) -> usize {
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|found| *found == word).unwrap_or_else(|| panic!("no `{word}`: {text}"));
    words[at - 1].parse().unwrap_or_else(|_| panic!("no number before `{word}`: {text}"))
}

#[test]
fn every_case_of_an_operation_has_a_line_and_what_is_wrong_fails() {
    let machine = Machine::without_hub();
    let ops = ["tool", "ops", "--only", "rms_norm", "--device"];
    let ran = run(&machine, &[&ops[..], &["cpu", "--exact"]].concat()).ok();
    let (cases, summary) = ran.out.trim_end().rsplit_once('\n').unwrap();
    let count = cases.lines().count();
    assert!(
        count > 20 && cases.lines().all(|line| line.starts_with("ok ") && line.contains("norm")),
        "{cases}"
    );
    assert_eq!(summary, format!("{count} cases: {count} passed, 0 failed"));
    // It computes nothing.
    let ran = run(&machine, &[&ops[..], &["null", "--failed"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.out.lines().next().is_some_and(|line| line.starts_with("FAILED ")), "{}", ran.out);
    assert!(ran.err.contains("cases failed on null"), "{}", ran.err);
    let ran = run(&machine, &["tool", "ops", "--device", "cpu", "--only", "no such thing"]);
    assert!(ran.code == Some(1) && ran.err.contains("`no such thing`"), "{}", ran.err);
}

#[test]
fn kernels_of_known_shapes_are_counted_and_each_stands_once() {
    let machine = Machine::without_hub();
    let count = |more: &[&str]| {
        let args = ["tool", "ptx", "--dry-run", "-o", "out"];
        number_before(&run(&machine, &[&args[..], more].concat()).ok().err, "kernels,")
    };
    let q8 = count(&["--known", "--types", "q8_0"]);
    let both = count(&["--known", "--types", "q4_0,Q8_0"]);
    assert!(q8 > 40 && both > q8 + 5 && both < 2 * q8, "{q8} {both}");
    // What has no matrix units takes other kernels.
    assert_ne!(count(&["--known", "--types", "q8_0", "--capability", "75"]), q8);
    assert!(!machine.folder().join("out").exists());
    for (args, part) in [
        (&["--known", "--types", "q9_z"][..], "q9_z"),
        (&["--types", "q8_0"], "--known"),
        (&["--known", "--capability", "60"], "60"),
        (&["--ops=no such thing"], "`no such thing`"),
    ] {
        let ran = run(&machine, &[&["tool", "ptx", "-o", "out"], args].concat());
        assert!(ran.code != Some(0) && ran.err.contains(part), "{args:?}: {}", ran.err);
    }
}

#[test]
fn kernels_are_made_once_and_found_after_that() {
    let machine = Machine::without_hub();
    let args = ["tool", "ptx", "--ops=softmax 1", "--capability", "90", "-o", "out"];
    let ran = run(&machine, &args);
    if ran.err.contains("clang") && ran.code != Some(0) {
        return missing(&ran.err);
    }
    let first = ran.ok().err;
    let files = std::fs::read_dir(machine.folder().join("out")).unwrap().count();
    assert!(files > 3 && number_before(&first, "made") == files, "{first}");
    let second = run(&machine, &args).ok().err;
    assert_eq!((number_before(&second, "made"), number_before(&second, "were")), (0, files), "{second}");
}
