//! The page with a server behind it that says what a test wants: slowly, wrongly, or not at all.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// What a model might say to take a page over.
pub(crate) const HOSTILE: &str = "<script>window.hacked = 1</script>\n\n<img src=x onerror=\"window.hacked = 2\">\n\n\
    [a](javascript:window.hacked=3) [b](JaVaScRiPt:window.hacked=4) [c](data:text/html,x) <javascript:window.hacked=5>\n\n\
    ```html\n<script>window.hacked = 6</script>\n```\n\n`<svg onload=window.hacked=7>` ![i](https://example.org/i.png) \
    [\"><img src=x onerror=window.hacked=8>](https://example.org/\"onclick=\"window.hacked=9)\n\n\
    | <b>x</b> | y |\n|---|---|\n| <iframe src=\"javascript:window.hacked=10\"> | z |\n\n- <style>* { display: none }</style>\n";

/// A server on a port of this machine. It ends with the process.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    seen: Arc<Seen>,
}

/// What has been asked.
#[derive(Default)]
struct Seen {
    bodies: Mutex<Vec<Value>>,
    left: AtomicUsize,
}

impl Scripted {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let app = Router::new()
            .route(
                "/v1/models",
                get(|| async { json!({"data": [{"id": "first"}, {"id": "second"}]}).to_string() }),
            )
            .route("/ready", get(|| async { json!({"waiting": 2, "in_work": 5}).to_string() }))
            .route("/v1/chat/completions", post(chat))
            .with_state(Arc::clone(&seen))
            .merge(metallic_server::page::routes());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), app).await.unwrap();
            });
        });
        Self { address, seen }
    }

    pub(crate) fn page(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The newest request.
    pub(crate) fn last(&self) -> Value {
        self.seen.bodies.lock().unwrap().last().cloned().unwrap_or_default()
    }

    /// Answers that the page did not wait for.
    pub(crate) fn left(&self) -> usize {
        self.seen.left.load(Ordering::SeqCst)
    }
}

fn refuse(status: u16, message: &str) -> Response {
    let body = json!({"error": {"message": message, "type": "invalid_request_error"}}).to_string();
    (StatusCode::from_u16(status).unwrap(), [("retry-after", "1")], body).into_response()
}

/// The first word of the question says what becomes of it.
async fn chat(State(seen): State<Arc<Seen>>, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let messages = body["messages"].as_array().unwrap().clone();
    let question = messages.last().unwrap()["content"].as_str().unwrap().to_owned();
    let times = {
        let mut bodies = seen.bodies.lock().unwrap();
        bodies.push(body);
        bodies.iter().filter(|body| body["messages"] == Value::from(messages.clone())).count()
    };
    match question.split(' ').next().unwrap() {
        "full" if times == 1 => return refuse(429, "there is no room"),
        "locked" if headers.get("authorization").is_none_or(|key| key != "Bearer secret") => {
            return refuse(401, "there is no API key");
        }
        "wrong" => return refuse(400, "`top_k` is -3, it must be 0 or more"),
        _ => {}
    }
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        if say(&question, messages.len(), times, &sender).await.is_none() {
            seen.left.fetch_add(1, Ordering::SeqCst);
        }
    });
    ([("content-type", "text/event-stream")], Body::from_stream(Pieces(receiver))).into_response()
}

/// Says it piece by piece; `None` where nobody listens any longer.
async fn say(question: &str, messages: usize, times: usize, to: &Sender<io::Result<String>>) -> Option<()> {
    let send = async |data: Value| to.send(Ok(format!("data: {data}\r\n\r\n"))).await.ok();
    let piece = |field: &str, text: &str| json!({"choices": [{"index": 0, "delta": {(field): text}}]});
    let (text, pause) = match question.split(' ').next().unwrap() {
        "slow" => ("word ".repeat(1000), 20),
        "hostile" => (HOSTILE.to_owned(), 1),
        _ => (format!("{messages} messages, asked {times} times: {question}"), 1),
    };
    if question == "think" {
        for word in ["Let ", "me ", "think."] {
            send(piece("reasoning_content", word)).await?;
        }
    }
    // Cut as tokens may be: within words and marks.
    let pieces: Vec<String> = text.chars().collect::<Vec<_>>().chunks(3).map(String::from_iter).collect();
    for (index, part) in pieces.iter().enumerate() {
        if question == "lost" && index == 3 {
            // A stream that breaks takes along what the page has not read yet.
            tokio::time::sleep(Duration::from_millis(500)).await;
            to.send(Err(io::Error::other("cut"))).await.ok()?;
            return Some(());
        }
        send(piece("content", part)).await?;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    send(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})).await?;
    send(json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1234}})).await?;
    to.send(Ok("data: [DONE]\n\n".into())).await.ok()
}

struct Pieces(Receiver<io::Result<String>>);

impl futures_util::Stream for Pieces {
    type Item = io::Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
