//! Thousands of requests, most of them bad: the server outlives them all, and everything they took comes back.
//!
//! `METALLIC_CHAOS` is how many there are.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use metallic_server::ServerOptions;

use crate::listening::Listening;
use crate::support::{llm, runtime, server_with};

const REQUESTS: usize = 10_000;
/// Bytes that a body may have here.
const BODY: usize = 1 << 18;
const WORKERS: usize = 16;
/// So much more memory may be taken at the end than after the first tenth: what the system's allocator does not give back.
const MORE_MEMORY: u64 = 24 << 20;
/// No answer of the tiny model takes so long, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    [head(path, body.len()).as_bytes(), body].concat()
}

fn chat(fields: &str) -> Vec<u8> {
    let body =
        format!(r#"{{"model": "tiny", "messages": [{{"role": "user", "content": "Once"}}], {fields}}}"#);
    post("/v1/chat/completions", body.as_bytes())
}

/// What became of a request.
#[derive(Debug, PartialEq)]
enum Fate {
    /// The status of the answer, and all of it.
    Answered(u16, Vec<u8>),
    /// The client left, or the server would not hear it out.
    Left,
}

fn answer(stream: &mut TcpStream) -> Fate {
    let mut bytes = Vec::new();
    // A server that refuses a body may close the connection while it is being sent.
    if stream.read_to_end(&mut bytes).is_err() && bytes.is_empty() {
        return Fate::Left;
    }
    let status = bytes.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    status.map_or(Fate::Left, |status| Fate::Answered(status, bytes))
}

fn send(to: SocketAddr, request: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let _ = stream.write_all(request);
    stream
}

/// Requests that are told apart below.
const KINDS: u64 = 22;

/// One request of some kind; what it must come to is checked here.
fn one(to: SocketAddr, dice: &mut Dice) {
    let expect = |request: &[u8], statuses: &[u16]| {
        let fate = answer(&mut send(to, request));
        let Fate::Answered(status, bytes) = &fate else { panic!("no answer to {}", shown(request)) };
        assert!(statuses.contains(status), "{status} to {}: {}", shown(request), shown(bytes));
    };
    match dice.roll(KINDS) {
        0 => expect(&chat(r#""max_tokens": 4"#), &[200, 429]),
        1 => {
            let fate = answer(&mut send(to, &chat(r#""max_tokens": 6, "stream": true"#)));
            let Fate::Answered(status, bytes) = fate else { panic!("a stream without an answer") };
            let text = String::from_utf8_lossy(&bytes);
            assert!(status == 429 || text.contains("data: [DONE]"), "{status}: {text}");
        }
        2 | 3 => {
            // Leaves in the midst of a long answer.
            let mut stream = send(to, &chat(r#""max_tokens": 400, "stream": true, "ignore_eos": true"#));
            let mut some = vec![0; 1 + dice.roll(600) as usize];
            let _ = stream.read(&mut some);
            let _ = stream.shutdown(Shutdown::Both);
        }
        4 => {
            // Leaves before it has an answer.
            drop(send(to, &chat(r#""max_tokens": 300, "ignore_eos": true"#)));
        }
        5 => {
            let request = chat(r#""max_tokens": 4"#);
            let cut = dice.roll(request.len() as u64) as usize;
            drop(send(to, &request[..cut]));
        }
        6 => {
            let body = &br#"{"model": "tiny", "messages": [{"role": "user", "content": "x"}]}"#[..];
            let cut = 1 + dice.roll(body.len() as u64 - 2) as usize;
            expect(&post("/v1/chat/completions", &body[..cut]), &[400]);
        }
        7 => {
            let fields = [
                r#""max_tokens": "many""#,
                r#""temperature": []"#,
                r#""stop": {"a": 1}"#,
                r#""no_such_field": null"#,
                r#""n": -1"#,
                r#""logit_bias": {"x": 1}"#,
                r#""max_tokens": 1e400"#,
                r#""seed": 0.5"#,
            ];
            expect(&chat(fields[dice.roll(fields.len() as u64) as usize]), &[400]);
        }
        8 => {
            let mut body = br#"{"model": "tiny", "messages": [{"role": "user", "content": ""#.to_vec();
            body.extend([0xff, 0xfe, 0xc0, 0x80]);
            body.extend(br#""}]}"#);
            expect(&post("/v1/chat/completions", &body), &[400]);
        }
        9 => {
            // Says that it is huge, and sends a part of it.
            let mut stream = send(to, head("/v1/completions", 1 << 40).as_bytes());
            let _ = stream.write_all(&vec![b'['; 1 << 16]);
            let fate = answer(&mut stream);
            assert!(matches!(fate, Fate::Answered(413, _) | Fate::Left), "{fate:?}");
        }
        10 => {
            let nested = "[".repeat(100_000);
            expect(&post("/v1/chat/completions", nested.as_bytes()), &[400]);
        }
        11 => {
            let bytes: Vec<u8> = (0..dice.roll(200)).map(|_| dice.roll(256) as u8).collect();
            drop(send(to, &bytes));
        }
        12 => {
            // A slow client: byte by byte, and then it has enough.
            let request = chat(r#""max_tokens": 2"#);
            let mut stream = TcpStream::connect(to).expect("the server listens");
            for byte in request.iter().take(20) {
                let _ = stream.write_all(&[*byte]);
            }
            std::thread::sleep(Duration::from_millis(dice.roll(5)));
        }
        13 => {
            // Reads a stream in crumbs, and then it has enough.
            let mut stream = send(to, &chat(r#""max_tokens": 60, "stream": true, "ignore_eos": true"#));
            for _ in 0..dice.roll(12) {
                let mut crumb = [0; 64];
                if !matches!(stream.read(&mut crumb), Ok(1..)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(dice.roll(3)));
            }
        }
        14 => {
            // Reads nothing, though there is more than the system keeps for it.
            let stream = send(to, &chat(r#""max_tokens": 200, "stream": true, "ignore_eos": true, "n": 2"#));
            std::thread::sleep(Duration::from_millis(dice.roll(8)));
            drop(stream);
        }
        15 => {
            // All of a body that is too large.
            let long = "x".repeat(BODY + dice.roll(4 * BODY as u64) as usize);
            let fate = answer(&mut send(to, &chat(&format!(r#""user": "{long}""#))));
            assert!(matches!(fate, Fate::Answered(413, _) | Fate::Left), "{fate:?}");
        }
        16 => {
            let (path, body) = WRONG[dice.roll(WRONG.len() as u64) as usize];
            expect(&post(path, body.as_bytes()), &[400]);
        }
        17 => {
            let request = post("/v1/chat/completions", br#"{"model": "nobody", "messages": []}"#);
            expect(&request, &[400, 404]);
            let request = String::from_utf8_lossy(&request).replace("application/json", "text/plain");
            expect(request.as_bytes(), &[415]);
            expect(&post("/nowhere", b"{}"), &[404]);
        }
        18 => {
            // In pieces, and one of them is none.
            let head = head("/v1/completions", 0).replace("Content-Length: 0", "Transfer-Encoding: chunked");
            let ends = ["zz\r\n", "5\r\n{\"mo", "-1\r\n", "ffffffffffffffffff\r\n", "2\r\n{}\r\n0\r\n\r\n"];
            let end = ends[dice.roll(ends.len() as u64) as usize];
            let mut stream = send(to, [&head, end].concat().as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
            let fate = answer(&mut stream);
            assert!(matches!(fate, Fate::Answered(400, _) | Fate::Left), "{fate:?}");
        }
        19 => {
            // Several answers at once, of which none is waited for to its end.
            let mut stream =
                send(to, &chat(r#""max_tokens": 50, "n": 4, "stream": true, "ignore_eos": true"#));
            let mut some = vec![0; 1 + dice.roll(2000) as usize];
            let _ = stream.read(&mut some);
        }
        20 => {
            let (path, body) = OTHERS[dice.roll(OTHERS.len() as u64) as usize];
            let request = post(path, body.as_bytes());
            if dice.roll(2) == 0 { expect(&request, &[200, 429]) } else { drop(send(to, &request)) }
        }
        _ => expect(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", &[200]),
    }
}

/// Bodies of other endpoints that are wrong.
const WRONG: &[(&str, &str)] = &[
    ("/v1/completions", r#"{"model": "tiny", "prompt": {"text": 1}}"#),
    ("/v1/completions", r#"{"model": "tiny", "prompt": [1, -1, 4e9]}"#),
    ("/v1/completions", r#"{"model": "tiny", "prompt": [999999999]}"#),
    ("/v1/completions", r#"{"model": 7, "prompt": "x"}"#),
    ("/v1/embeddings", r#"{"model": "tiny", "input": [[]]}"#),
    ("/v1/embeddings", r#"{"model": "tiny", "input": null}"#),
    ("/v1/messages", r#"{"model": "tiny", "max_tokens": "9", "messages": []}"#),
    ("/v1/messages", r#"{"model": "tiny", "max_tokens": 9, "messages": [{"role": 1}]}"#),
    ("/v1/responses", r#"{"model": "tiny", "input": [{"type": []}]}"#),
    ("/v1/responses", "[]"),
    ("/tokenize", r#"{"model": "tiny", "content": ["x"]}"#),
    ("/detokenize", r#"{"model": "tiny", "tokens": ["x"]}"#),
];

/// Requests of other endpoints that are good.
const OTHERS: &[(&str, &str)] = &[
    ("/v1/completions", r#"{"model": "tiny", "prompt": ["Once", "upon"], "max_tokens": 9, "logprobs": 2}"#),
    (
        "/v1/completions",
        r#"{"model": "tiny", "prompt": "Once", "max_tokens": 0, "echo": true, "logprobs": 1}"#,
    ),
    ("/v1/embeddings", r#"{"model": "tiny", "input": ["Once upon", "a time"]}"#),
    ("/v1/messages", r#"{"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}"#),
    ("/v1/responses", r#"{"model": "tiny", "input": "Once", "max_output_tokens": 20, "store": false}"#),
    ("/tokenize", r#"{"model": "tiny", "content": "Once upon a time"}"#),
];

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(600)]).into_owned()
}

/// Bytes of memory this process has, where the system says.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// Files and connections this process has open, where the system says.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn storm(server: &Listening, requests: usize, seed: u64) {
    let to = server.address;
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let mut dice = Dice((seed * 1000 + worker as u64) * 7919);
            scope.spawn(move || (worker..requests).step_by(WORKERS).for_each(|_| one(to, &mut dice)));
        }
    });
}

#[test]
fn thousands_of_requests_most_of_them_bad_leave_nothing_behind() {
    let requests = std::env::var("METALLIC_CHAOS").ok().and_then(|text| text.parse().ok());
    let requests = requests.unwrap_or(REQUESTS);
    let options = ServerOptions::default().body_bytes(BODY);
    let server = runtime().block_on(Listening::of(server_with(llm(), options)));
    // What is made once is made by the first of them.
    storm(&server, requests / 10, 1);
    settle(&server);
    let (before, begun) = ((resident(), open_files()), Instant::now());
    storm(&server, requests - requests / 10, 2);
    settle(&server);
    let after = (resident(), open_files());
    eprintln!(
        "{requests} requests, {:.1?}: (bytes of memory, open files) were {before:?} and are {after:?}",
        begun.elapsed()
    );
    if let (Some(before), Some(after)) = (before.0, after.0) {
        assert!(after < before + MORE_MEMORY, "{before} bytes of memory before, {after} after");
    }
    // Connections of those who asked last may still be closing.
    assert!(after.1 <= before.1 + WORKERS, "{before:?} {after:?}");
    let fate = answer(&mut send(server.address, &chat(r#""max_tokens": 4"#)));
    assert!(matches!(fate, Fate::Answered(200, _)), "{fate:?}");
}

/// Waits until nothing runs, waits or holds blocks.
fn settle(server: &Listening) {
    let begun = Instant::now();
    loop {
        let names =
            ["engine_running{", "engine_waiting{", "engine_cache_blocks_held{", "requests_in_flight "];
        let figure = |name| runtime().block_on(server.figure(&format!("metallic_{name}")));
        let busy = names.map(figure);
        // The one that asks.
        if busy == [0, 0, 0, 1] {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "still busy: {names:?} are {busy:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
