//! Over a network: clients that leave, are slow or too many, and a server that ends.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use metallic_server::{Server, ServerOptions, serve};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::chat::{CHAT, chat};
use crate::support::{llm, runtime, server_with};

/// A server that listens.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<(), metallic_server::ServerError>>,
}

impl Listening {
    async fn start(options: ServerOptions) -> Self {
        Self::of(server_with(llm(), options)).await
    }

    pub(crate) async fn of(server: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(serve(listener, server, async {
            let _ = stopped.await;
        }));
        Self { address, stop: Some(stop), served }
    }

    /// Sends a request and leaves the rest to the caller.
    async fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let text = format!(
            "{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn post(&self, body: &Value) -> TcpStream {
        self.send(&format!("POST {CHAT}"), &body.to_string()).await
    }

    /// One figure.
    pub(crate) async fn figure(&self, name: &str) -> u64 {
        let text = whole(self.send("GET /metrics", "").await).await;
        let line =
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

/// What comes until there is no more for a moment, or the text is complete.
async fn whole(mut stream: TcpStream) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) | Err(_) => break,
            Ok(Ok(count)) => text.extend_from_slice(&buffer[..count]),
        }
        let so_far = String::from_utf8_lossy(&text);
        let Some((head, body)) = so_far.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.is_some_and(|length| body.len() >= length.parse().unwrap()) || body.ends_with("0\r\n\r\n") {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Reads until this was said.
async fn until(stream: &mut TcpStream, word: &str) {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains(word) {
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{text}");
        text += &String::from_utf8_lossy(&buffer[..count]);
    }
}

/// A request that takes seconds.
fn long(stream: bool) -> Value {
    chat(json!({"stream": stream, "n": 64, "ignore_eos": true, "max_tokens": 450, "temperature": 1}))
}

#[test]
fn clients_that_leave_end_their_answers() {
    runtime().block_on(async {
        let server = Listening::start(ServerOptions::default()).await;
        let mut stream = server.post(&long(true)).await;
        until(&mut stream, "\"content\":\"").await;
        assert!(server.figure("metallic_engine_cache_blocks_held{").await > 0);
        let silent = server.post(&long(false)).await;
        drop(stream);
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(silent);
        let start = Instant::now();
        while server.figure("metallic_engine_cache_blocks_held{").await > 0 {
            assert!(start.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(server.figure("metallic_engine_running{").await, 0);
        assert_eq!(server.figure("metallic_disconnects_total").await, 2);
        assert!(server.figure("metallic_generated_tokens_total").await < 2 * 64 * 450);
    });
}

#[test]
fn those_who_come_too_many_are_told_when_to_come_back() {
    runtime().block_on(async {
        let server = Listening::start(ServerOptions::default().requests(1)).await;
        let mut first = server.post(&long(true)).await;
        until(&mut first, "\"content\":\"").await;
        let second = whole(server.post(&chat(json!({}))).await).await;
        assert!(second.starts_with("HTTP/1.1 429"), "{second}");
        assert!(second.contains("retry-after: 1\r\n") && second.contains("rate_limit_exceeded"), "{second}");
        drop(first);
        let start = Instant::now();
        loop {
            let third = whole(server.post(&chat(json!({}))).await).await;
            if third.starts_with("HTTP/1.1 200") {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{third}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn answers_that_take_too_long_are_cut_off_with_an_error() {
    runtime().block_on(async {
        let server =
            Listening::start(ServerOptions::default().request_time(Duration::from_millis(200))).await;
        let silent = whole(server.post(&long(false)).await).await;
        assert!(silent.starts_with("HTTP/1.1 504") && silent.contains("timeout_error"), "{silent}");
        let streamed = whole(server.post(&long(true)).await).await;
        assert!(streamed.starts_with("HTTP/1.1 200") && streamed.contains("timeout_error"), "{streamed}");
        assert!(!streamed.contains("[DONE]"));
    });
}

#[test]
fn a_body_or_a_head_that_does_not_come_is_not_waited_for() {
    runtime().block_on(async {
        let limit = Duration::from_millis(200);
        let options = ServerOptions::default().body_time(limit).header_time(limit);
        let server = Listening::start(options).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{{");
        stream.write_all(head.as_bytes()).await.unwrap();
        let got = whole(stream).await;
        assert!(got.starts_with("HTTP/1.1 408"), "{got}");
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /health HT").await.unwrap();
        let start = Instant::now();
        whole(stream).await;
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn on_the_loopback_other_names_are_refused() {
    runtime().block_on(async {
        let server = Listening::start(ServerOptions::default()).await;
        for (host, status) in [("localhost", 200), ("127.0.0.1:80", 200), ("evil.example", 403)] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let head = format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let got = whole(stream).await;
            assert!(got.starts_with(&format!("HTTP/1.1 {status}")), "{got}");
        }
    });
}

#[test]
fn a_server_that_ends_lets_short_answers_end_and_cancels_long_ones() {
    runtime().block_on(async {
        let options = ServerOptions::default().shutdown_time(Duration::from_secs(20));
        let mut server = Listening::start(options).await;
        let mut short =
            server.post(&chat(json!({"stream": true, "max_tokens": 100, "ignore_eos": true}))).await;
        until(&mut short, "\"role\"").await;
        server.stop.take().unwrap().send(()).unwrap();
        let rest = whole(short).await;
        assert!(rest.contains("[DONE]"), "{rest}");
        server.served.await.unwrap().unwrap();
        assert!(TcpStream::connect(server.address).await.is_err());

        let options = ServerOptions::default().shutdown_time(Duration::from_millis(100));
        let mut server = Listening::start(options).await;
        let mut long = server.post(&long(true)).await;
        until(&mut long, "\"role\"").await;
        server.stop.take().unwrap().send(()).unwrap();
        let rest = whole(long).await;
        assert!(rest.contains("about to stop") && !rest.contains("[DONE]"), "{rest}");
        server.served.await.unwrap().unwrap();
    });
}
