//! A fake hub: an API with listings and redirects, and a second origin that serves the bytes.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong with the next request of a kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// This status and no body.
    Status(u16),
    /// The whole length is promised, this much comes, the connection closes.
    CutAfter(usize),
    /// This much comes, then nothing, and the connection stays open.
    StallAfter(usize),
    /// The range is ignored.
    NoRanges,
    /// A body that is not what was asked for.
    Garbage,
    /// A redirect to itself.
    Loop,
    /// No length is promised, and bytes come without end.
    Endless,
    /// A byte now and then, without end.
    Drip,
    /// This length is promised instead of the right one.
    Length(usize),
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) token: Option<String>,
}

struct File {
    path: String,
    bytes: Vec<u8>,
    /// What the hub claims; small files have none.
    sha256: Option<String>,
}

#[derive(Default)]
struct State {
    files: Vec<File>,
    requests: Vec<Request>,
    api_faults: VecDeque<Fault>,
    /// Where it is not [`COMMIT`].
    commit: Option<String>,
    blob_faults: VecDeque<Fault>,
}

/// One repository, `owner/repo`, on one hub.
pub(crate) struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Hub {
    pub(crate) fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let blobs = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, blob_address) = (api.local_addr().unwrap(), blobs.local_addr().unwrap());
        serve(blobs, Arc::clone(&state), blob);
        serve(api, Arc::clone(&state), move |state, request, out| {
            answer_api(state, request, out, blob_address);
        });
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a large file: the hub knows its sha256.
    pub(crate) fn add(&self, path: &str, bytes: Vec<u8>) {
        let sha256 = Some(sha256(&bytes));
        self.state().files.push(File { path: path.to_owned(), bytes, sha256 });
    }

    pub(crate) fn add_small(&self, path: &str, text: &str) {
        let bytes = text.as_bytes().to_vec();
        self.state().files.push(File { path: path.to_owned(), bytes, sha256: None });
    }

    /// Replaces the contents of a file, and what the hub says of it.
    pub(crate) fn replace(&self, path: &str, bytes: Vec<u8>) {
        self.state().files.retain(|file| file.path != path);
        self.add(path, bytes);
    }

    pub(crate) fn claim_sha256(&self, path: &str, sha256: &str) {
        let mut state = self.state();
        let file = state.files.iter_mut().find(|file| file.path == path).unwrap();
        file.sha256 = Some(sha256.to_owned());
    }

    /// The version that the files are of from now on.
    pub(crate) fn set_commit(&self, commit: &str) {
        self.state().commit = Some(commit.to_owned());
    }

    pub(crate) fn fail_api(&self, faults: &[Fault]) {
        self.state().api_faults.extend(faults);
    }

    pub(crate) fn fail_blobs(&self, faults: &[Fault]) {
        self.state().blob_faults.extend(faults);
    }

    /// Requests so far whose path begins so.
    pub(crate) fn requests(&self, prefix: &str) -> Vec<Request> {
        self.state().requests.iter().filter(|request| request.path.starts_with(prefix)).cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Bytes that do not repeat within a chunk.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut x = 0x2545_f491_u32;
    let step = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    (0..length).map(step).collect()
}

fn serve(
    listener: TcpListener,
    state: Arc<Mutex<State>>,
    answer: impl Fn(&Mutex<State>, &Request, &mut TcpStream) + Send + Sync + 'static,
) {
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (state, answer) = (Arc::clone(&state), Arc::clone(&answer));
            thread::spawn(move || {
                let mut stream = stream;
                if let Some(request) = read_request(&stream) {
                    state.lock().unwrap().requests.push(request.clone());
                    answer(&state, &request, &mut stream);
                }
            });
        }
    });
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut request = Request { path, range: None, token: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.token = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(request)
}

fn answer_api(state: &Mutex<State>, request: &Request, out: &mut TcpStream, blobs: SocketAddr) {
    let mut state = state.lock().unwrap();
    let commit = state.commit.clone().unwrap_or_else(|| COMMIT.to_owned());
    let resolve = format!("/owner/repo/resolve/{commit}/");
    match state.api_faults.pop_front() {
        Some(Fault::Status(status)) => return send(out, status, &[], b""),
        Some(Fault::Garbage) => return send(out, 200, &[], b"<html>a login page</html>"),
        Some(Fault::Loop) => {
            state.api_faults.push_front(Fault::Loop);
            return send(out, 302, &[("location", request.path.clone())], b"");
        }
        Some(fault @ (Fault::Endless | Fault::Drip)) => {
            drop(state);
            let _ = out.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"siblings\": [\"");
            return without_end(out, fault);
        }
        _ => {}
    }
    if request.path == "/api/models/owner/repo?blobs=true" {
        let listing = json!({"sha": commit, "siblings": state.files.iter().map(sibling).collect::<Vec<_>>()});
        return send(
            out,
            200,
            &[("content-type", "application/json".into())],
            listing.to_string().as_bytes(),
        );
    }
    let Some(path) = request.path.strip_prefix(&resolve) else { return send(out, 404, &[], b"") };
    let Some(at) = state.files.iter().position(|file| file.path == path) else {
        return send(out, 404, &[], b"");
    };
    let file = &state.files[at];
    match &file.sha256 {
        // Large files live elsewhere; the hub's own tag is on the redirect.
        Some(sha256) => {
            let headers = [
                ("location", format!("http://{blobs}/blob/{at}")),
                ("x-linked-etag", format!("\"{sha256}\"")),
                ("x-linked-size", file.bytes.len().to_string()),
            ];
            send(out, 302, &headers, b"");
        }
        None => send(out, 200, &[("etag", "\"small\"".into())], &file.bytes),
    }
}

fn sibling(file: &File) -> Value {
    let bytes = file.bytes.len();
    match &file.sha256 {
        Some(sha256) => {
            json!({"rfilename": file.path, "size": bytes, "lfs": {"sha256": sha256, "size": bytes, "pointerSize": 134}})
        }
        None => json!({"rfilename": file.path, "size": bytes}),
    }
}

fn blob(state: &Mutex<State>, request: &Request, out: &mut TcpStream) {
    let (bytes, fault) = {
        let mut state = state.lock().unwrap();
        let at: usize = request.path.strip_prefix("/blob/").unwrap().parse().unwrap();
        (state.files[at].bytes.clone(), state.blob_faults.pop_front())
    };
    if let Some(Fault::Status(status)) = fault {
        return send(out, status, &[], b"");
    }
    let from = match (&request.range, fault) {
        (_, Some(Fault::NoRanges)) | (None, _) => 0,
        (Some(range), _) => {
            range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')).unwrap().parse().unwrap()
        }
    };
    if from > 0 && from >= bytes.len() {
        return send(out, 416, &[("content-range", format!("bytes */{}", bytes.len()))], b"");
    }
    let (rest, total) = (&bytes[from..], bytes.len());
    if let Some(fault @ (Fault::Endless | Fault::Drip)) = fault {
        let _ = out.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
        return without_end(out, fault);
    }
    let length = if let Some(Fault::Length(length)) = fault { length } else { rest.len() };
    let mut head = format!("content-length: {length}\r\netag: \"elsewhere\"\r\nconnection: close\r\n\r\n");
    if from > 0 {
        head = format!("HTTP/1.1 206 Partial\r\ncontent-range: bytes {from}-{}/{total}\r\n{head}", total - 1);
    } else {
        head = format!("HTTP/1.1 200 OK\r\n{head}");
    }
    let sent = match fault {
        Some(Fault::CutAfter(length) | Fault::StallAfter(length)) => &rest[..length],
        _ => rest,
    };
    let _ = out.write_all(head.as_bytes()).and_then(|()| out.write_all(sent)).and_then(|()| out.flush());
    if let Some(Fault::StallAfter(_)) = fault {
        thread::sleep(Duration::from_secs(60));
    }
}

/// Sends until nobody listens any more.
fn without_end(out: &mut TcpStream, fault: Fault) {
    let (piece, pause) = match fault {
        Fault::Drip => (&b"x"[..], Duration::from_millis(200)),
        _ => (&[b'x'; 1 << 14][..], Duration::ZERO),
    };
    while out.write_all(piece).and_then(|()| out.flush()).is_ok() {
        thread::sleep(pause);
    }
}

fn send(out: &mut TcpStream, status: u16, headers: &[(&str, String)], body: &[u8]) {
    let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    for (name, value) in headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    let _ = out.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| out.write_all(body));
}
