//! The server as a program: options, what it tells, and how it ends. What it answers is tested where it lives.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, ChildStderr, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    support::{Machine, Ran, stories, wait},
    terminal::{self, Pane},
};

/// A server that listens.
struct Served {
    child: Option<Child>,
    err: BufReader<ChildStderr>,
    told: String,
    address: String,
}

impl Served {
    fn start(machine: &Machine, args: &[&str]) -> Self {
        let model = format!("stories={}", stories());
        let common = ["serve", "-m", &model, "--device", "cpu", "-t", "1", "--port", "0"];
        let mut command = machine.command(&[&common, args].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        let mut served = Served { child: Some(child), err, told: String::new(), address: String::new() };
        while served.address.is_empty() {
            let mut line = String::new();
            assert!(served.err.read_line(&mut line).unwrap() > 0, "it ended: {}", served.told);
            served.told += &line;
            if let Some(rest) = line.trim().strip_prefix("listening on http://") {
                rest.split(' ').next().unwrap().clone_into(&mut served.address);
            }
        }
        served
    }

    /// Ends it as a service manager does; gives what it printed.
    fn end(mut self) -> Ran {
        let child = self.child.take().unwrap();
        let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let mut rest = String::new();
        self.err.read_to_string(&mut rest).unwrap();
        let ran = wait(child, Duration::from_secs(60));
        Ran { err: format!("{}{rest}", self.told), ..ran }
    }

    fn metrics(&self) -> String {
        ask(&self.address, "GET", "/metrics", "")
    }

    fn complete(&self, prompt: &str, tokens: usize) -> Value {
        let body = json!({"model": "stories", "prompt": prompt, "max_tokens": tokens, "temperature": 0});
        let reply = ask(&self.address, "POST", "/v1/completions", &body.to_string());
        serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

/// Of a test that has failed.
impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The whole response to a request.
fn ask(address: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// A figure of the metrics.
#[track_caller]
fn figure(metrics: &str, name: &str) -> u64 {
    let start = format!("metallic_engine_{name}{{model=\"stories\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

#[test]
fn a_server_answers_as_run_does_and_ends_when_it_is_asked_to() {
    let machine = Machine::without_hub();
    let alone = ["run", "-m", &stories(), "--device", "cpu", "-t", "1", "--raw", "--temp", "0", "-n", "20"];
    let alone = machine.run(&[&alone[..], &["Once upon a time"]].concat()).ok().out;
    let server = Served::start(&machine, &[]);
    let answer = server.complete("Once upon a time", 20);
    assert_eq!(answer["choices"][0]["text"].as_str().unwrap().trim(), alone.trim());
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    let metrics = server.metrics();
    assert_eq!(figure(&metrics, "guessed_tokens_total"), 0);
    assert!(!metrics.contains("verified_operations"), "nobody looks over the steps: {metrics}");
    let ran = server.end().ok();
    assert!(ran.err.contains("no key needed") && ran.err.contains("stopped"), "{ran:?}");
}

#[test]
fn a_second_sigterm_ends_a_server_at_once() {
    let machine = Machine::without_hub();
    let mut server = Served::start(&machine, &["--shutdown-timeout", "600"]);
    // A client that never reads holds its answer open, as that is longer than what lies between two programs.
    let mut client = TcpStream::connect(&server.address).unwrap();
    let body = json!({
        "model": "stories", "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "logprobs": 5, "stream": true, "n": 64,
    });
    let body = body.to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    client.read_exact(&mut [0; 12]).unwrap();
    let mut child = server.child.take().unwrap();
    let kill = || Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill().success());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(child.try_wait().unwrap(), None, "it waits for the answer");
    let kill = || Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill().success());
    let ran = wait(child, Duration::from_secs(20));
    assert_eq!(ran.code, Some(143), "{ran:?}");
}

#[test]
fn a_variable_for_keys_that_has_none_is_no_leave_to_serve_everybody() {
    let machine = Machine::without_hub();
    let mut command = machine.command(&["serve", "-m", &stories(), "--port", "0"]);
    let child = command.env("METALLIC_API_KEY", " , ").stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = wait(child.spawn().unwrap(), Duration::from_secs(60));
    ran.failed(1, "`METALLIC_API_KEY` is set and has no keys", "unset it");
}

#[test]
fn steps_are_looked_over_and_tokens_guessed_for_the_same_answers() {
    let machine = Machine::without_hub();
    let prompt = "The cat sat on the mat. The cat sat on the mat. The cat sat on the";
    let plain = Served::start(&machine, &[]);
    let expected = plain.complete(prompt, 60);
    plain.end().ok();
    let server = Served::start(&machine, &["--speculate", "lookup", "--verify", "2"]);
    assert_eq!(server.complete(prompt, 60)["choices"], expected["choices"]);
    let metrics = server.metrics();
    let checked = figure(&metrics, "verified_operations_total");
    assert!(checked > 10, "{metrics}");
    assert_eq!(figure(&metrics, "wrong_operations_total"), 0);
    assert!(figure(&metrics, "right_guesses_total") <= figure(&metrics, "guessed_tokens_total"));
    let ran = server.end().ok();
    assert!(ran.err.contains(" operations, 0 were wrong"), "{ran:?}");
    assert!(!ran.err.contains("warning:"), "{ran:?}");
}

#[test]
fn options_that_do_not_go_together_are_refused_before_anything_is_loaded() {
    let machine = Machine::without_hub();
    let models = ["serve", "--port", "0", "-m", "a=./a.gguf", "-m", "b=./b.gguf"];
    for (args, reason, hint) in [
        (
            &["--draft", "./small.gguf"][..],
            "a draft model belongs to one model",
            "give one model, or leave out `--draft`",
        ),
        (&["--lora", "x.gguf"], "an adapter belongs to one model", "leave out `--lora`"),
        (&["--lazy", "--verify", "3"], "models that are there from the start", "`--lazy` or `--verify`"),
        (&["--dashboard", "--log", "-"], "cannot both have the terminal", "give `--log` a file"),
        (&["--dashboard"], "stdout is no terminal", "`metallic top --once`"),
        (&["--api-key-file", "none.txt"], "cannot read `none.txt`", "a key on each line"),
    ] {
        machine.run(&[&models[..], args].concat()).failed(1, reason, hint);
    }
    let server = Served::start(&machine, &[]);
    let port = server.address.rsplit(':').next().unwrap().to_owned();
    machine.run(&["serve", "-m", &stories(), "--port", &port]).failed(1, "cannot listen on", "`--port`");
    server.end().ok();
}

#[test]
fn the_dashboard_of_a_server_shows_its_requests_and_ends_it() {
    if !terminal::is_there() {
        return;
    }
    let machine = Machine::without_hub();
    let line = format!("serve -m stories={} --device cpu -t 1 --port 0 --dashboard", stories());
    let pane = Pane::start(&machine, (110, 40), "METALLIC_RUNTIME_DIR=run", &line);
    let screen = pane.until(&["metallic serve", "http://127.0.0.1:"]);
    let address = screen.split("http://").nth(1).unwrap().split_whitespace().next().unwrap();
    let body = json!({"model": "stories", "prompt": "Once", "max_tokens": 5}).to_string();
    assert!(ask(address, "POST", "/v1/completions", &body).contains("200 OK"));
    pane.until(&["requests 1 (1 ended)"]);
    pane.keys(&["q"]);
    assert_eq!(pane.left(), 0, "{}", pane.file("errors"));
    assert!(pane.file("errors").contains("stopped"), "{}", pane.file("errors"));
}
