//! Ten thousand requests, most of them bad: the server outlives them all, and everything they took comes back.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use metallic_server::ServerOptions;

use crate::listening::Listening;
use crate::support::{llm, runtime, server_with};

const REQUESTS: usize = 10_000;
const WORKERS: usize = 16;
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

/// One request of some kind; what it must come to is checked here.
fn one(to: SocketAddr, dice: &mut Dice) {
    let expect = |request: &[u8], statuses: &[u16]| {
        let fate = answer(&mut send(to, request));
        let Fate::Answered(status, bytes) = &fate else { panic!("no answer to {}", shown(request)) };
        assert!(statuses.contains(status), "{status} to {}: {}", shown(request), shown(bytes));
    };
    match dice.roll(14) {
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
        _ => expect(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", &[200]),
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(600)]).into_owned()
}

/// Bytes of memory this process has, where the system says.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

fn storm(server: &Listening, requests: usize, seed: u64) {
    let to = server.address;
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let mut dice = Dice(seed.wrapping_add(worker as u64));
            scope.spawn(move || (0..requests / WORKERS).for_each(|_| one(to, &mut dice)));
        }
    });
}

#[test]
fn ten_thousand_requests_most_of_them_bad_leave_nothing_behind() {
    let server = runtime().block_on(Listening::of(server_with(llm(), ServerOptions::default())));
    // What is made once is made by the first of them.
    storm(&server, REQUESTS / 10, 1);
    settle(&server);
    let before = resident();
    storm(&server, REQUESTS - REQUESTS / 10, 2);
    settle(&server);
    if let (Some(before), Some(after)) = (before, resident()) {
        assert!(after < before + (64 << 20), "{before} bytes of memory before, {after} after");
    }
    let fate = answer(&mut send(server.address, &chat(r#""max_tokens": 4"#)));
    assert!(matches!(fate, Fate::Answered(200, _)), "{fate:?}");
}

/// Waits until nothing runs, waits or holds blocks.
fn settle(server: &Listening) {
    let begun = Instant::now();
    loop {
        let names = ["running{", "waiting{", "cache_blocks_held{"];
        let figure = |name| runtime().block_on(server.figure(&format!("metallic_engine_{name}")));
        let busy = names.map(figure);
        if busy == [0, 0, 0] {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "still busy: {names:?} are {busy:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
