//! `--telemetry` and `--trace`: what the binary writes while it works.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixStream,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{Machine, endless, interrupt, start_until, stories, wait};

/// Whole lines of a file; what stands after the last of them is given as it is.
fn lines(path: &Path) -> (Vec<Value>, String) {
    let text = fs::read_to_string(path).unwrap();
    let (whole, rest) = text.rsplit_once('\n').unwrap_or(("", &text));
    (whole.lines().map(|line| serde_json::from_str(line).expect(line)).collect(), rest.to_owned())
}

fn kinds(lines: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[test]
fn commands_that_run_models_write_what_they_do() {
    let machine = Machine::without_hub();
    let (model, text) = (stories(), machine.folder().join("text.txt"));
    fs::write(&text, "Once upon a time there was a little girl. ".repeat(20)).unwrap();
    let text = text.to_str().unwrap();
    let commands: [(&str, Vec<&str>); 4] = [
        ("metallic run", vec!["run", "-m", &model, "--raw", "-n", "4", "Once"]),
        ("metallic bench", vec!["bench", "-m", &model, "-n", "4", "-r", "1", "--no-limits"]),
        ("metallic tool generate", vec!["tool", "generate", "-m", &model, "--tokens", "1,2", "-n", "4"]),
        ("metallic tool perplexity", vec!["tool", "perplexity", "-m", &model, "--ctx", "32", "--file", text]),
    ];
    for (program, mut args) in commands {
        args.extend(["--telemetry", "told.jsonl"]);
        let ran = machine.run(&args).ok();
        let (lines, rest) = lines(&machine.folder().join("told.jsonl"));
        assert_eq!((rest.as_str(), lines[0]["program"].as_str()), ("", Some(program)), "{ran:?}");
        assert_eq!(kinds(&lines)[..3], ["start", "load", "memory"], "{program}");
        assert!(kinds(&lines).contains(&"step") && kinds(&lines).contains(&"ops"), "{program}");
        let end = lines.last().unwrap();
        assert_eq!((&end["kind"], &end["lost"]), (&"end".into(), &0.into()), "{program}");
        let steps = lines.iter().filter(|line| line["kind"] == "step").count();
        assert_eq!(end["steps"], steps, "{program}");
    }
}

#[test]
fn the_environment_names_a_file_and_the_option_goes_before_it() {
    let machine = Machine::without_hub();
    let model = stories();
    let mut chat = machine.command(&["chat", "-m", &model, "-n", "2"]);
    let chat = chat.env("METALLIC_TELEMETRY", "chat.jsonl").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = chat.stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"Hello\n").unwrap();
    wait(child, Duration::from_secs(60)).ok();
    let (told, _) = lines(&machine.folder().join("chat.jsonl"));
    assert_eq!(told[0]["program"], "metallic chat");
    let mut run =
        machine.command(&["run", "-m", &model, "--raw", "-n", "2", "--telemetry", "a.jsonl", "Once"]);
    assert!(run.env("METALLIC_TELEMETRY", "b.jsonl").output().unwrap().status.success());
    assert!(machine.folder().join("a.jsonl").is_file() && !machine.folder().join("b.jsonl").exists());
}

#[test]
fn a_file_that_cannot_be_written_is_refused_by_name_before_the_model_is_read() {
    let machine = Machine::without_hub();
    let folder = machine.folder().to_str().unwrap();
    for path in ["no/such/folder.jsonl", folder] {
        for (option, what) in [("--telemetry", "telemetry"), ("--trace", "a trace")] {
            let args = ["run", "-m", "./nowhere.gguf", "--raw", option, path, "Once"];
            let reason = format!("cannot write {what} to `{path}`: ");
            machine.run(&args).failed(1, &reason, option);
        }
    }
    let args = ["run", "-m", "./nowhere.gguf", "--raw", "--telemetry", "a", "--trace", "a", "Once"];
    machine.run(&args).failed(1, "`a` cannot be telemetry and trace at once", "a file each");
}

#[test]
fn ctrl_c_writes_the_end_and_a_kill_leaves_whole_lines() {
    let machine = Machine::without_hub();
    let (model, path) = (endless(&machine), machine.folder().join("told.jsonl"));
    for killed in [false, true] {
        let _ = fs::remove_file(&path);
        let args = ["run", "-m", &model, "--raw", "--telemetry", "told.jsonl", "Once"];
        let mut child = start_until(machine.command(&args), &path, 200_000);
        if killed {
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            interrupt(&child);
            assert_eq!(wait(child, Duration::from_secs(60)).code, Some(130));
        }
        let (lines, rest) = lines(&path);
        assert!(lines.len() > 10);
        let ended = lines.last().unwrap()["kind"] == "end";
        assert_eq!(ended && rest.is_empty(), !killed, "{rest}");
    }
}

#[test]
fn a_timeline_has_slices_that_nest_and_counters() {
    let machine = Machine::without_hub();
    let model = stories();
    machine
        .run(&["run", "-m", &model, "--device", "null", "--raw", "-n", "70", "--trace", "trace.json", "Once"])
        .ok();
    let text = fs::read_to_string(machine.folder().join("trace.json")).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut rows = BTreeMap::<u64, Vec<(i64, i64, &str)>>::new();
    for event in &events {
        let (name, ph) = (event["name"].as_str().unwrap(), event["ph"].as_str().unwrap());
        assert!(!name.is_empty() && ["X", "M", "C", "i", "b", "n", "e"].contains(&ph), "{event}");
        if ph != "M" {
            assert!(event["ts"].as_f64().unwrap() >= 0.0, "{event}");
        }
        if ph == "X" {
            let nanos = |field: &str| (event[field].as_f64().unwrap() * 1e3).round() as i64;
            assert!(nanos("dur") >= 0, "{event}");
            let row = rows.entry(event["tid"].as_u64().unwrap()).or_default();
            row.push((nanos("ts"), nanos("ts") + nanos("dur"), name));
        }
    }
    for row in rows.values_mut() {
        // Outer slices first: each ends within the one that it begins in.
        row.sort_by_key(|(begin, end, _)| (*begin, -end));
        let mut open: Vec<i64> = Vec::new();
        for &mut (begin, end, name) in row {
            open.retain(|until| *until > begin || (*until == begin && end == begin));
            assert!(open.last().is_none_or(|until| end <= *until), "{name} sticks out");
            open.push(end);
        }
    }
    let has = |ph: &str, begins: &str| {
        events.iter().any(|event| event["ph"] == ph && event["name"].as_str().unwrap().starts_with(begins))
    };
    for (ph, begins) in [
        ("X", "load stories260K"),
        ("X", "prompt "),
        ("X", "decode 1"),
        ("X", "sample"),
        ("X", "layer 4"),
        ("X", "qkv"),
        ("X", "rms_norm"),
        ("C", "tokens/s"),
        ("C", "kv blocks"),
        ("C", "queue"),
        ("C", "memory"),
        ("b", "request"),
        ("e", "request"),
    ] {
        assert!(has(ph, begins), "no {ph} {begins}");
    }
}

/// Attaches to the only process of a folder.
fn attach(folder: &Path) -> UnixStream {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let mut sockets = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        if let Some(stream) = sockets.find_map(|path| UnixStream::connect(path).ok()) {
            return stream;
        }
        assert!(Instant::now() < end, "no socket in {}", folder.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn readers_attach_to_a_running_process_and_go_and_see_its_end() {
    let machine = Machine::without_hub();
    let (model, folder) = (endless(&machine), machine.folder().join("run"));
    let mut command = machine.command(&["run", "-q", "-m", &model, "--json", "--raw", "Once"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let read = |stream: UnixStream, until: &dyn Fn(&Value) -> bool| -> Vec<Value> {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut found = Vec::new();
        for line in BufReader::new(stream).lines() {
            found.push(serde_json::from_str(&line.unwrap()).unwrap());
            if until(&found[found.len() - 1]) {
                break;
            }
        }
        found
    };
    // Who comes and goes learns what holds first, and what happens next.
    for _ in 0..2 {
        let found = read(attach(&folder), &|line| line["kind"] == "ops");
        let first: Vec<&str> = found.iter().take(2).map(|line| line["kind"].as_str().unwrap()).collect();
        let needed = |kind: &str| found.iter().any(|line| line["kind"] == kind);
        assert!(first[0] == "start" && needed("load") && needed("memory") && needed("step"), "{first:?}");
    }
    let last = attach(&folder);
    interrupt(&child);
    let found = read(last, &|line| line["kind"] == "end");
    assert_eq!(found.last().unwrap()["kind"], "end");
    assert_eq!(wait(child, Duration::from_secs(60)).code, Some(130));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "its socket is gone");
}
