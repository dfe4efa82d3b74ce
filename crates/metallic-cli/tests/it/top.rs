//! `metallic top`.

use std::{fs, io::Read, process::Child, time::Duration};

use metallic_telemetry::{Event, Load, OpTime, Ops, Phase, Record, Request, Start, Step, VERSION, Warning};

use crate::{
    support::{Machine, Ran, endless, interrupt, start, stories, wait},
    terminal::{self, Pane},
};

/// A run of a minute, a line for each event: a prompt, then ten tokens a second.
fn lines() -> String {
    let begin = Start { program: "metallic run".into(), version: "0.1.0".into(), pid: 4711, unix: 0.0 };
    let load = Load {
        model: "tiny\u{1b}[31m.gguf".to_owned(),
        family: "llama".into(),
        device: "cpu".into(),
        kv_type: "F16".into(),
        peak_bytes_per_second: Some(1e9),
        ..Load::default()
    };
    let warning = Warning { about: "copy".into(), text: "weights were copied".to_owned() };
    let first = Request { phase: Phase::FirstToken, ttft_seconds: 0.5, ..Request::default() };
    let prompt = Step { begin: 0.5, seconds: 0.5, tokens: 50, ..Step::default() };
    let mut events = vec![
        (0.0, Event::Start(begin)),
        (0.4, Event::Load(load)),
        (1.0, Event::Step(prompt)),
        (1.0, Event::Request(first)),
    ];
    for token in 0..590_u32 {
        let begin = 1.0 + f64::from(token) * 0.1;
        let step = Step { begin, seconds: 0.1, tokens: 1, decode_tokens: 1, ..Step::default() };
        let op = OpTime {
            op: "linear".into(),
            part: "ffn_up".into(),
            layer: Some(3),
            seconds: 0.05,
            bytes: 5_000_000,
            ..OpTime::default()
        };
        events.push((begin + 0.1, Event::Step(step)));
        events.push((begin + 0.1, Event::Ops(Ops { ops: vec![op], ..Ops::default() })));
        if token == 300 {
            events.push((begin + 0.1, Event::Warning(warning.clone())));
        }
    }
    let line = |(t, event)| Record { v: VERSION, t, event }.to_line() + "\n";
    events.into_iter().map(line).collect()
}

fn recorded(machine: &Machine) {
    fs::write(machine.folder().join("run.jsonl"), lines()).unwrap();
}

fn once(machine: &Machine, args: &[&str]) -> Ran {
    let args = [&["top", "--replay", "run.jsonl", "--once"], args].concat();
    let mut command = machine.command(&args);
    for name in ["LC_CTYPE", "LANG", "NO_COLOR", "COLUMNS", "LINES"] {
        command.env_remove(name);
    }
    Ran::from(command.env("LC_ALL", "C.UTF-8").output().unwrap())
}

#[test]
fn one_screen_of_a_recorded_run_is_printed_as_text() {
    let machine = Machine::without_hub();
    recorded(&machine);
    let ran = once(&machine, &[]).ok();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!((lines.len(), ran.err.as_str()), (40, ""));
    assert!(lines.iter().all(|line| line.chars().count() <= 120), "{}", ran.out);
    for text in [
        "metallic run  tiny\\u{1b}[31m.gguf · cpu · kv F16",
        "replay 1:00/1:00 ×1 · ended",
        "10.0  median 10.0  p95 10.0",
        "500 ms  median 500 ms",
        "linear ffn_up",
        "10 %",
        "warning copy: weights were copied",
    ] {
        assert!(ran.out.contains(text), "wanted {text} in\n{}", ran.out);
    }
    assert!(!ran.out.contains('\u{1b}'), "{}", ran.out);
    let early = once(&machine, &["--at", "2.55", "--pane", "ops", "--size", "80x24"]).ok().out;
    assert_eq!(early.lines().count(), 24);
    assert!(early.contains("replay 0:02/1:00") && early.contains("15 timed steps"), "{early}");
    let mut command = machine.command(&["top", "--replay", "run.jsonl", "--once"]);
    let plain = Ran::from(command.env("LC_ALL", "C").output().unwrap()).ok().out;
    assert!(plain.is_ascii() && plain.contains("##########"), "{plain}");
    let svg = machine.folder().join("top.svg");
    let ran = once(&machine, &["--svg", svg.to_str().unwrap(), "--size", "100x30"]).ok();
    let drawing = fs::read_to_string(svg).unwrap();
    assert!(
        ran.out.is_empty() && drawing.starts_with("<svg ") && drawing.contains("linear ffn_up"),
        "{drawing}"
    );
}

#[test]
fn files_that_are_no_recorded_run_are_refused_by_name() {
    let machine = Machine::without_hub();
    let write = |text: &str| fs::write(machine.folder().join("run.jsonl"), text).unwrap();
    once(&machine, &[]).failed(1, "cannot read `run.jsonl`: No such file", "--telemetry FILE.jsonl");
    write("");
    once(&machine, &[]).failed(1, "`run.jsonl` has no telemetry: it is empty", "--telemetry FILE.jsonl");
    write("GGUF\n\u{1b}[2J\n");
    once(&machine, &[]).failed(
        1,
        "has no telemetry: 2 lines are left out: line 1: ",
        "--telemetry FILE.jsonl",
    );
    write(&(lines() + "{\"v\":7,\"t\":1}\n"));
    once(&machine, &[]).failed(
        1,
        "telemetry of version 7; this program reads version 1",
        "version of metallic",
    );
    write(&format!("nonsense\n{}{{\"v\":1,\"t\":9", lines()));
    let ran = once(&machine, &[]).ok();
    assert!(ran.out.contains(", 2 bad lines"), "{}", ran.out);
    assert!(ran.err.starts_with("note: `run.jsonl`: 2 lines are left out: line 1: "), "{}", ran.err);
    for (args, option) in [
        (["--speed", "0"], "--speed"),
        (["--at", "-1"], "--at"),
        (["--size", "9x9"], "--size"),
        (["--pane", "x"], "--pane"),
        (["--window", "7"], "--window"),
    ] {
        let ran = once(&machine, &args);
        assert!(ran.code == Some(2) && ran.err.contains(option), "{ran:?}");
    }
}

#[test]
fn off_a_terminal_only_text_can_be_had() {
    let machine = Machine::without_hub();
    recorded(&machine);
    let ran = machine.run(&["top", "--replay", "run.jsonl"]);
    ran.failed(1, "stdout is no terminal", "`metallic top --once` prints one screen as text");
}

#[test]
fn a_recorded_run_is_looked_at_by_keys() {
    if !terminal::is_there() {
        return;
    }
    let machine = Machine::without_hub();
    recorded(&machine);
    let pane = Pane::start(&machine, (100, 30), "", "top --replay run.jsonl --speed 0.5");
    pane.until(&["decode tok/s", "replay 0:0", "×1/2", "tiny"]);
    assert!(pane.coloured().contains("\u{1b}[38;5;2m"), "{}", pane.coloured());
    pane.keys(&["space"]);
    pane.until(&["paused"]);
    pane.keys(&["Right", "Right", "Right", "Right", "Right", "Right", "Right", "]", "]", "+"]);
    pane.until(&["replay 0:3", "×2", "window 180 s", "weights were copied"]);
    pane.keys(&["2"]);
    pane.until(&["[2 ops]", "time by layer"]);
    pane.keys(&["Tab"]);
    pane.until(&["[3 caches]"]);
    pane.keys(&["5", "?"]);
    pane.until(&["[5 log 1]", "this help"]);
    pane.keys(&["Escape"]);
    let end = pane.until(&["weights were copied"]);
    assert!(!end.contains("this help"), "{end}");
    pane.resize(60, 20);
    pane.until(&[" 1   2   3   4  [5 log 1]"]);
    pane.resize(30, 9);
    pane.until(&["40x12 needed,", "30x9 here"]);
    pane.resize(100, 30);
    pane.keys(&["1", "Left", "Left", "Left", "Left", "Left", "Left", "Left", "Left"]);
    pane.until(&["replay 0:00/1:00"]);
    pane.keys(&["q"]);
    assert_eq!((pane.left(), pane.file("errors")), (0, String::new()));
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    if !terminal::is_there() {
        return;
    }
    let machine = Machine::without_hub();
    recorded(&machine);
    for (end, code) in [("C-c", 0), ("-INT", 130), ("-TERM", 143)] {
        let pane = Pane::start(&machine, (100, 30), "NO_COLOR=1", "top --replay run.jsonl");
        pane.until(&["decode tok/s", "replay 0:0", "tiny"]);
        assert!(!pane.coloured().contains("\u{1b}[38;5;2m"), "{}", pane.coloured());
        match end {
            "C-c" => pane.keys(&[end]),
            signal => pane.signal(signal),
        }
        assert_eq!(pane.left(), code, "{end}");
    }
}

/// A process that answers for as long as it may. It lives until it is interrupted.
fn answering(machine: &Machine) -> Child {
    let model = endless(machine);
    let mut command =
        machine.command(&["run", "-m", &model, "--device", "cpu", "-t", "1", "--raw", "Once upon a time"]);
    command.env("METALLIC_RUNTIME_DIR", machine.folder().join("run"));
    let mut child = start(command);
    // Who writes has loaded.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

fn end(child: Child) {
    interrupt(&child);
    let ran = wait(child, Duration::from_secs(60));
    assert_eq!(ran.code, Some(130), "{ran:?}");
}

fn top(machine: &Machine, args: &[&str]) -> Ran {
    let mut command = machine.command(&[&["top"], args].concat());
    command.env("METALLIC_RUNTIME_DIR", machine.folder().join("run")).env("LC_ALL", "C.UTF-8");
    Ran::from(command.output().unwrap())
}

#[test]
fn processes_that_run_are_found_and_looked_at() {
    let machine = Machine::without_hub();
    top(&machine, &["--once"]).failed(1, "no metallic runs here that could be looked at", "`metallic chat`");
    let first = answering(&machine);
    let ran = top(&machine, &["--once", &first.id().to_string()]).ok();
    let pid = format!("pid {} up ", first.id());
    for text in [
        "metallic run  endless.gguf · cpu",
        "kv F16",
        &pid,
        "decode tok/s",
        "running 1",
        "attention",
        "weights",
    ] {
        assert!(ran.out.contains(text), "wanted {text} in\n{}", ran.out);
    }
    assert!(!ran.out.contains("no step in this window"), "{}", ran.out);

    let second = answering(&machine);
    let both = format!("2 processes can be looked at: {} (metallic run)", first.id().min(second.id()));
    top(&machine, &["--once"]).failed(1, &both, "name one, such as `metallic top ");
    top(&machine, &["--once", "1"]).failed(1, "process 1 is no metallic", &first.id().to_string());
    end(second);
    end(first);
    top(&machine, &["--once"]).failed(1, "no metallic runs here", "--replay");
}

#[test]
fn a_process_that_runs_is_shown_until_it_ends() {
    if !terminal::is_there() {
        return;
    }
    let machine = Machine::without_hub();
    let child = answering(&machine);
    let pane = Pane::start(&machine, (110, 36), "METALLIC_RUNTIME_DIR=run", "top");
    pane.until(&["metallic run  endless.gguf", "median", "attention", "running 1"]);
    pane.keys(&["p"]);
    pane.until(&["paused"]);
    pane.keys(&["p", "3"]);
    pane.until(&["[3 caches]", "kernels:"]);
    end(child);
    pane.until(&["ended"]);
    pane.keys(&["q"]);
    assert_eq!((pane.left(), pane.file("errors")), (0, String::new()));
}

#[test]
fn an_answer_is_shown_below_its_figures_and_printed_at_the_end() {
    if !terminal::is_there() {
        return;
    }
    let machine = Machine::without_hub();
    let model = stories();
    let args = |command: &str| format!("{command} -m {model} --device cpu -t 1 --dashboard");
    let pane = Pane::start(
        &machine,
        (110, 40),
        "METALLIC_RUNTIME_DIR=run",
        &(args("run") + " --raw --temp 0 -n 40 --telemetry run.jsonl 'Once upon a time'"),
    );
    pane.until(&["answer", "there was a little girl", "time by operation", "ended"]);
    pane.keys(&["q"]);
    assert_eq!(pane.left(), 0, "{}", pane.file("errors"));
    assert!(pane.screen().contains("there was a little girl"), "{}", pane.screen());
    assert!(pane.file("errors").contains("40 generated"), "{}", pane.file("errors"));
    drop(pane);
    // The same run, from its file.
    let again = once(&machine, &["--pane", "ops"]).ok().out;
    assert!(again.contains("stories260K-f32.gguf") && again.contains("time by layer"), "{again}");

    let pane = Pane::start(
        &machine,
        (110, 40),
        "METALLIC_RUNTIME_DIR=run",
        &(args("bench") + " --no-limits -p 8 -n 8,16 -r 1"),
    );
    pane.until(&["median", "tokens/s", "tg16", "ended"]);
    pane.keys(&["q"]);
    assert_eq!(pane.left(), 0, "{}", pane.file("errors"));
    assert!(pane.screen().contains("MEAN t/s"), "{}", pane.screen());
    drop(pane);

    // Leaving before the end ends the answer; a conversation at the keyboard has no room for it.
    let endless = endless(&machine);
    let line = format!("run -m {endless} --device cpu -t 1 --raw --dashboard 'Once upon a time'");
    for (end, code) in [("C-c", 130), ("-TERM", 143)] {
        let pane = Pane::start(&machine, (110, 40), "METALLIC_RUNTIME_DIR=run", &line);
        pane.until(&["decode tok/s", "answer", "median"]);
        match end {
            "C-c" => pane.keys(&[end]),
            signal => pane.signal(signal),
        }
        assert_eq!(pane.left(), code, "{}", pane.file("errors"));
    }
    let piped = "printf 'Once\\nThe dog\\n' | METALLIC_RUNTIME_DIR=run";
    let pane = Pane::start(&machine, (110, 40), piped, &(args("chat") + " --temp 0 -n 30"));
    pane.until(&["there was a little girl", "requests 2 (2 ended)", "ended"]);
    pane.keys(&["q"]);
    assert_eq!(pane.left(), 0, "{}", pane.file("errors"));
    assert!(pane.screen().contains("there was a little girl"), "{}", pane.screen());
    drop(pane);
    let pane = Pane::start(&machine, (110, 40), "METALLIC_RUNTIME_DIR=run", &args("chat"));
    assert_eq!(pane.left(), 1);
    let errors = pane.file("errors");
    assert!(errors.contains("needs the terminal that messages are typed in"), "{errors}");
    drop(pane);
    machine.run(&["run", "-m", &model, "--dashboard", "x"]).failed(
        1,
        "stdout is no terminal, so there is nothing to draw on",
        "`metallic top --once`",
    );
}
