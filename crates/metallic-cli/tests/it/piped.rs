//! `run` with a prompt from stdin, beside one, and without any.

use std::{
    fs::File,
    io::Write,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::support::{Machine, Ran, edited, limited_with, start, stories, wait};

const SOON: Duration = Duration::from_secs(10);

/// Says the last message back, so that a test sees what the model was asked.
const REFUSES: &str = "{{ raise_exception('asked: ' + messages[-1].content) }}";

fn piped(machine: &Machine, args: &[&str], text: &[u8]) -> Ran {
    let mut child = start(machine.command(args));
    // A child that refuses its input may be gone before all of it is written.
    let _ = child.stdin.take().unwrap().write_all(text);
    wait(child, SOON)
}

#[test]
fn a_prompt_is_what_was_given_then_what_was_piped() {
    let machine = Machine::without_hub();
    let model = edited(&machine.folder().join("asks.gguf"), |writer| {
        writer.insert("tokenizer.chat_template", REFUSES);
    });
    let cases: &[(&[&str], &str, &str)] = &[
        (&[], "from a pipe\n", "asked: from a pipe"),
        (&["-"], "from a pipe\r\n", "asked: from a pipe"),
        (&["Summarise:"], "a\nb\n", "asked: Summarise:\\n\\na\\nb"),
        (&["Summarise:", "-"], "a\n", "asked: Summarise:\\n\\na"),
    ];
    for (args, text, asked) in cases {
        let args = [&["run", "-m", &model][..], args].concat();
        piped(&machine, &args, text.as_bytes()).failed(1, asked, "messages");
    }
    // A file, and the two ways to say that there is nothing.
    let file = machine.folder().join("prompt.txt");
    std::fs::write(&file, "from a file").unwrap();
    for (stdin, asked) in [
        (Stdio::from(File::open(&file).unwrap()), "asked: Say:\\n\\nfrom a file"),
        (Stdio::null(), "asked: Say:"),
    ] {
        let ran = Ran::from(machine.command(&["run", "-m", &model, "Say:"]).stdin(stdin).output().unwrap());
        let ran = ran.failed(1, asked, "messages");
        assert!(ran.err.lines().next().unwrap().ends_with(asked), "{}", ran.err);
    }
    let ran = piped(&machine, &["run", "-m", &model, "Say:"], b"").failed(1, "asked: Say:", "messages");
    assert!(ran.err.contains("note: stdin is empty; the prompt stands alone"), "{}", ran.err);
}

#[test]
fn what_is_piped_must_be_text_and_fit() {
    let machine = Machine::without_hub();
    let model = stories();
    let run =
        |args: &[&str], text: &[u8]| piped(&machine, &[&["run", "-m", &model][..], args].concat(), text);
    run(&[], b"").failed(1, "stdin is empty, so there is no prompt", "prompt");
    run(&["-"], b" \n").failed(1, "stdin is empty", "prompt");
    run(&["Say:", "-"], b"").failed(1, "stdin is empty: nothing follows the prompt", "stdin");
    run(&["Say:"], b"a\xffb").failed(1, "stdin is not UTF-8 text: byte 1 is wrong", "UTF-8");
    let long = "word ".repeat(600);
    run(&["Say:"], long.as_bytes()).failed(
        1,
        "too long, with 3000 bytes from stdin: the prompt has 1807 tokens",
        "shorten the prompt",
    );
    // Without a prompt, /dev/null is an empty one.
    machine.run(&["run", "-m", &model]).failed(1, "stdin is empty", "prompt");
    let ran = machine.run(&["run", "-m", &model, "Why", "is"]);
    assert!(ran.code == Some(2) && ran.err.contains("in quotes"), "{ran:?}");
}

#[test]
fn a_pipe_without_end_is_read_to_a_bound() {
    let machine = Machine::without_hub();
    for args in [&["run", "-m", &stories()][..], &["run", "-m", &stories(), "Say:"]] {
        let zeros = File::open("/dev/zero").unwrap();
        limited_with(&machine, args, zeros, SOON).failed(1, "more than 67108864 bytes", "shorter");
    }
    for (args, bytes) in [
        (&["chat", "-m", &stories()][..], "67108864"),
        (&["tool", "tokenize", "-m", &stories(), "-"], "268435456"),
    ] {
        let zeros = File::open("/dev/zero").unwrap();
        limited_with(&machine, args, zeros, SOON).failed(1, &format!("more than {bytes} bytes"), "");
    }
}

#[test]
fn an_open_pipe_that_says_nothing_holds_nobody_up() {
    let machine = Machine::without_hub();
    let model = stories();
    let before = Instant::now();
    let mut child = start(machine.command(&["run", "-m", &model, "--raw", "-n", "3", "Once upon a time"]));
    let stdin = child.stdin.take();
    let ran = wait(child, SOON).ok();
    drop(stdin);
    assert!(ran.err.contains("nothing came in 3 s") && ran.err.contains("`-`"), "{}", ran.err);
    assert!(before.elapsed() < Duration::from_secs(8));
}

#[test]
fn on_a_terminal_a_missing_prompt_is_asked_for() {
    let machine = Machine::without_hub();
    let ran = crate::support::on_terminal(&machine, &["run", "-m", &stories()]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("there is no prompt") && ran.out.contains("metallic chat"), "{ran:?}");
}
