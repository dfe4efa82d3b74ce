//! `run` and `chat` with the smallest real model.

use std::{
    fs,
    io::{Read, Write},
    process::{Child, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{Machine, Ran, edited, endless, interrupt, start, stories, wait};

const SOON: Duration = Duration::from_secs(5);

/// The text and ids that llama.cpp gives, from the beginning-of-text token on.
fn expected() -> (String, Vec<u32>) {
    let folder = metallic_testkit::data::own().join("stories260K");
    let text = fs::read_to_string(folder.join("expected.txt")).unwrap();
    let greedy: Value = serde_json::from_slice(&fs::read(folder.join("greedy.json")).unwrap()).unwrap();
    (text, serde_json::from_value(greedy["greedy_ids"].clone()).unwrap())
}

#[test]
fn a_greedy_answer_is_the_known_one_as_text_and_as_json() {
    let machine = Machine::without_hub();
    let (text, ids) = expected();
    let model = stories();
    let args = ["run", "-m", &model, "--raw", "--temp", "0", "-n", "40", "-t", "2", "--device", "cpu"];
    let ran = machine.run(&[&args[..], &["Once upon a time"]].concat()).ok();
    assert!(text.contains(&format!("Once upon a time{}", ran.out.trim_end_matches('\n'))), "{}", ran.out);
    assert!(ran.err.contains("5 prompt tokens") && ran.err.contains("40 generated"), "{}", ran.err);

    let read = machine.run(&[&args[..], &["--no-mmap", "Once upon a time"]].concat()).ok();
    assert_eq!(read.out, ran.out);

    let ran = machine.run(&[&args[..], &["--json", "Once upon a time"]].concat()).ok();
    let answer = ran.json();
    // The prompt is the first four of those ids.
    assert_eq!(answer["tokens"], json!(ids[4..44]));
    assert!(text.contains(answer["text"].as_str().unwrap()));
    assert_eq!(answer["finish_reason"], "length");
    for key in
        ["load_s", "ttft_s", "prompt_tokens", "prefill_tps", "generated_tokens", "decode_tps", "dispatches"]
    {
        assert!(answer["stats"][key].as_f64().is_some_and(|value| value > 0.0), "{key}: {}", ran.out);
    }
    assert_eq!((&answer["stats"]["device"], &answer["stats"]["prompt_tokens"]), (&json!("cpu"), &json!(5)));
    assert_eq!(ran.err, "");
}

#[test]
fn a_prompt_comes_from_stdin_and_a_stop_text_ends_the_answer() {
    let machine = Machine::without_hub();
    let model = stories();
    let args = ["run", "-m", &model, "-q", "--raw", "--temp", "0", "--stop", "Lily", "-"];
    let mut child = start(machine.command(&args));
    child.stdin.take().unwrap().write_all(b"Once upon a time\n").unwrap();
    let ran = wait(child, SOON).ok();
    assert_eq!((ran.out.as_str(), ran.err.as_str()), (", there was a little girl named \n", ""));
}

#[test]
fn the_same_seed_gives_the_same_answer_and_another_seed_another() {
    let machine = Machine::without_hub();
    let model = stories();
    let run = |seed: &str| {
        let args =
            ["run", "-m", &model, "--raw", "-n", "60", "--temp", "1.5", "--top-k", "0", "--top-p", "1"];
        machine.run(&[&args[..], &["--min-p", "0", "--seed", seed, "One day"]].concat()).ok().out
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn without_a_template_the_prompt_is_plain_text_and_a_system_prompt_is_refused() {
    let machine = Machine::without_hub();
    let model = stories();
    let ran = machine.run(&["run", "-m", &model, "--temp", "0", "-n", "3", "Once upon a time"]).ok();
    assert!(ran.err.contains("no chat template"), "{}", ran.err);
    let args = ["run", "-m", &model, "--system", "Be brief.", "Hello"];
    machine.run(&args).failed(1, "no chat template", "--system");
    machine
        .run(&["run", "-m", &model, "--raw", "--system", "x", "Hello"])
        .code
        .filter(|code| *code == 2)
        .unwrap();
}

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

#[test]
fn a_conversation_goes_through_the_template_and_is_saved() {
    let machine = Machine::without_hub();
    let model = edited(&machine.folder().join("chat.gguf"), |writer| {
        writer.insert("tokenizer.chat_template", TEMPLATE);
    });
    let saved = machine.folder().join("talk.json");
    let mut child = start(
        machine.command(&["chat", "-m", &model, "--temp", "0", "-n", "8", "--system", "Tell.", "--stats"]),
    );
    let script = format!(
        "Tell me of a big red ball and of a little girl.\n/nope\n/system\nAnd then?\n/save {}\n/exit\nnever\n",
        saved.display()
    );
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let ran = wait(child, SOON).ok();
    for part in ["`/nope`", "Tell.", "(saved to", " cached)"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    let talk: Vec<Value> = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    let roles: Vec<&str> = talk.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    for message in talk.iter().filter(|message| message["role"] == "assistant") {
        assert!(ran.out.contains(message["content"].as_str().unwrap()), "{}", ran.out);
    }

    assert_eq!(ran.err.matches(" generated").count(), 2, "{}", ran.err);

    // What was saved is what `tool template` reads.
    let args = ["tool", "template", "-m", &model, "--messages", saved.to_str().unwrap()];
    let text = machine.run(&args).ok().out;
    assert!(text.starts_with("system: Tell.\nuser: Tell me") && text.ends_with("\nassistant:"), "{text}");
    let text = machine.run(&[&args[..], &["--no-generation-prompt"]].concat()).ok().out;
    assert!(!text.ends_with("assistant:"), "{text}");
}

/// Waits until the binary has printed something.
fn first_output(child: &mut Child) {
    let mut byte = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
}

#[test]
fn ctrl_c_ends_a_run_and_keeps_what_there_is() {
    let machine = Machine::without_hub();
    let model = endless(&machine);
    let args = ["run", "-m", &model, "--logit-bias", "2=-inf", "Once upon a time", "-"];
    let begin = |args: &[&str]| {
        let mut child = start(machine.command(args));
        child.stdin.take().unwrap().write_all(b"there was\n").unwrap();
        child
    };
    let mut child = begin(&args);
    first_output(&mut child);
    interrupt(&child);
    let ran = wait(child, SOON);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.out.ends_with('\n') && ran.out.len() > 1, "{ran:?}");
    assert!(ran.err.contains("interrupted") && ran.err.contains(" generated"), "{ran:?}");
    assert!(!ran.err.contains("error:"), "{ran:?}");

    // Nothing is printed before the end, so that there is only time to go by: before it answers, Ctrl-C just ends it.
    let ran = later(|delay| {
        let child = begin(&[&args[..], &["--json"]].concat());
        std::thread::sleep(delay);
        interrupt(&child);
        Some(wait(child, SOON)).filter(|ran| !ran.out.is_empty())
    });
    assert_eq!((ran.code, ran.err.contains("error:")), (Some(130), false), "{ran:?}");
    let answer = ran.json();
    assert_eq!(answer["finish_reason"], "interrupted");
    assert!(answer["stats"]["generated_tokens"].as_u64().unwrap() > 0, "{answer}");
    assert_eq!(answer["tokens"].as_array().unwrap().len() as u64, answer["stats"]["generated_tokens"]);
}

/// Tries again with more time, for machines that are busy.
fn later<T>(attempt: impl Fn(Duration) -> Option<T>) -> T {
    let found = [700, 3000, 12_000].into_iter().find_map(|delay| attempt(Duration::from_millis(delay)));
    found.expect("not even after twelve seconds")
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let machine = Machine::without_hub();
    let model = endless(&machine);
    let ran = later(|delay| {
        // A full pipe that nobody reads: the answer waits there, and the first Ctrl-C with it.
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&vec![b'x'; 1 << 16]).unwrap();
        let args = ["run", "-m", &model, "--logit-bias", "2=-inf", "Once upon a time"];
        let mut command = machine.command(&args);
        let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(delay);
        interrupt(&child);
        std::thread::sleep(Duration::from_millis(300));
        // Before it answers, the first one ends it.
        let waits = child.try_wait().unwrap().is_none();
        if waits {
            interrupt(&child);
        }
        let ran = wait(child, SOON);
        drop(reader);
        waits.then_some(ran)
    });
    ran.failed(130, "interrupted", "again");
}

#[test]
fn ctrl_c_ends_a_benchmark_and_a_perplexity_at_once() {
    let machine = Machine::without_hub();
    let model = stories();
    let text = machine.folder().join("text.txt");
    fs::write(&text, "Once upon a time there was a dog. ".repeat(20_000)).unwrap();
    let file = text.to_str().unwrap();
    for args in [
        &["bench", "-m", &model, "-n", "400", "-r", "1000000"][..],
        &["tool", "perplexity", "-m", &model, "--device", "reference", "--file", file],
    ] {
        let child = start(machine.command(args));
        std::thread::sleep(Duration::from_millis(500));
        interrupt(&child);
        let ran = wait(child, SOON).failed(130, "interrupted", "again");
        assert_eq!(ran.out, "", "{args:?}");
    }
}

#[test]
fn ctrl_c_in_a_conversation_ends_the_answer_and_keeps_its_beginning() {
    let machine = Machine::without_hub();
    let model = endless(&machine);
    let saved = machine.folder().join("talk.json");
    let mut child = start(machine.command(&["chat", "-m", &model, "--logit-bias", "2=-inf"]));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Once upon a time\n").unwrap();
    first_output(&mut child);
    interrupt(&child);
    writeln!(stdin, "/save {}", saved.display()).unwrap();
    drop(stdin);
    let ran: Ran = wait(child, SOON).ok();
    let talk: Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    let answer = talk[1]["content"].as_str().unwrap();
    // The first byte was read above; a line is ended where the answer did not.
    let rest = answer.get(1..).unwrap_or_default().trim_end_matches('\n');
    assert!(!answer.is_empty() && rest == ran.out.trim_end_matches('\n'), "{answer:?} {ran:?}");
}

#[test]
fn a_reader_that_goes_away_ends_the_answer_without_an_error() {
    let machine = Machine::without_hub();
    let model = endless(&machine);
    let mut child = start(machine.command(&["run", "-q", "-m", &model, "--logit-bias", "2=-inf", "Once"]));
    drop(child.stdin.take());
    first_output(&mut child);
    drop(child.stdout.take());
    let ran = wait(child, SOON).ok();
    assert_eq!(ran.err, "");
}
