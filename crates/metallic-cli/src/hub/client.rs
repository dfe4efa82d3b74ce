//! HTTP with the hub: listings, redirects, tokens, retries.

use std::{
    env,
    fmt::{self, Write},
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use ureq::{
    Agent, Body,
    http::{Response, Uri},
    tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem},
};

use super::{
    HubError,
    cache::{home, set},
    name::Repo,
};
use crate::interrupt;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const MAX_REDIRECTS: usize = 8;
/// Short: where the hub is blocked, the user should not wait long for the other source.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the hub may say nothing, or next to nothing.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_SETTING: &str = "HF_HUB_DOWNLOAD_TIMEOUT";
/// Pauses before the second, third and fourth try.
const BACKOFF: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
const CHUNK: usize = 256 * 1024;
/// The longest real ones have some hundred kilobytes.
const MAX_LISTING: usize = 16 << 20;

/// One hub, with the token for it.
pub(super) struct Client {
    agent: Agent,
    /// Without a trailing `/`.
    endpoint: String,
    origin: Origin,
    token: Option<String>,
    pub(super) patience: Duration,
}

/// What a repository holds at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<RemoteFile>,
}

#[derive(Debug, Clone)]
pub(super) struct RemoteFile {
    pub(super) path: String,
    pub(super) bytes: Option<u64>,
    /// Known for large files (git LFS), which is where it matters.
    pub(super) sha256: Option<String>,
}

/// An answer whose body has not been read yet.
pub(super) struct Answer {
    pub(super) status: u16,
    /// What identifies the contents: the hub's own tag where a redirect gave it, else the server's.
    pub(super) tag: Option<String>,
    /// First byte and total size, from `Content-Range`.
    pub(super) range: Option<(u64, Option<u64>)>,
    pub(super) length: Option<u64>,
    body: Body,
}

impl Client {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` (or the saved token), `SSL_CERT_FILE` and the proxy settings.
    pub(super) fn from_env() -> Result<Self, HubError> {
        let endpoint = env::var("HF_ENDPOINT").ok().filter(|value| !value.trim().is_empty());
        let endpoint = endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT).trim().trim_end_matches('/');
        let origin = Origin::of(endpoint).ok_or_else(|| HubError::BadSetting {
            setting: "HF_ENDPOINT",
            value: endpoint.to_owned(),
            problem: "an address that begins with https:// or http:// is needed".to_owned(),
        })?;
        let patience = patience()?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here: the token must not travel, and the hub's tags are on the first answer.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("metallic/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(patience))
            .timeout_per_read(Some(patience))
            .tls_config(tls()?)
            .build();
        let (agent, endpoint, token) = (config.into(), endpoint.to_owned(), token()?);
        Ok(Self { agent, endpoint, origin, token, patience })
    }

    pub(super) fn host(&self) -> &str {
        &self.origin.host
    }

    /// What the repository holds on its main branch.
    pub(super) fn listing(&self, repo: &Repo) -> Result<Listing, HubError> {
        #[derive(Deserialize)]
        struct Model {
            sha: Option<String>,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
            size: Option<u64>,
            lfs: Option<Lfs>,
        }
        #[derive(Deserialize)]
        struct Lfs {
            sha256: Option<String>,
            size: Option<u64>,
        }

        let what = format!("the file list of {repo}");
        let answer = self.get(&format!("{}/api/models/{repo}?blobs=true", self.endpoint), 0, &what)?;
        let answer = self.accept(answer, &what)?;
        let text = self.read_listing(answer, &what)?;
        let bad = |problem: String| self.bad_answer(&what, problem);
        let model: Model = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let files = model.siblings.into_iter().map(|file| {
            let (sha256, lfs_bytes) = file.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
            let sha256 = sha256.as_deref().and_then(as_sha256);
            RemoteFile { path: file.rfilename, bytes: lfs_bytes.or(file.size), sha256 }
        });
        let commit = model.sha.unwrap_or_else(|| "main".to_owned());
        if !commit.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(bad(format!("the commit is `{commit}`")));
        }
        Ok(Listing { commit, files: files.collect() })
    }

    /// A whole body, of bounded size and in bounded time.
    fn read_listing(&self, answer: Answer, what: &str) -> Result<Vec<u8>, HubError> {
        let (end, mut text) = (Instant::now() + self.patience * 4, Vec::new());
        let mut chunks = answer.into_chunks();
        while let Some(chunk) = chunks.next()? {
            text.extend(chunk.map_err(|error| self.bad_answer(what, error.to_string()))?);
            if text.len() > MAX_LISTING {
                return Err(self.bad_answer(what, format!("it has more than {MAX_LISTING} bytes")));
            }
            if Instant::now() > end {
                let seconds = (self.patience * 4).as_secs();
                return Err(self.bad_answer(what, format!("it has not ended after {seconds} s")));
            }
        }
        Ok(text)
    }

    /// Asks for a file from byte `from` on. The status is 200, 206 or 416.
    pub(super) fn open(&self, repo: &Repo, commit: &str, path: &str, from: u64) -> Result<Answer, HubError> {
        let url = format!("{}/{repo}/resolve/{commit}/{}", self.endpoint, escape(path));
        let what = format!("{path} of {repo}");
        let answer = self.get(&url, from, &what)?;
        if answer.status == 416 && from > 0 { Ok(answer) } else { self.accept(answer, &what) }
    }

    pub(super) fn bad_answer(&self, what: &str, problem: String) -> HubError {
        HubError::BadAnswer { host: self.origin.host.clone(), what: what.to_owned(), problem }
    }

    fn accept(&self, answer: Answer, what: &str) -> Result<Answer, HubError> {
        if matches!(answer.status, 200 | 206) {
            return Ok(answer);
        }
        Err(HubError::Refused {
            host: self.origin.host.clone(),
            status: answer.status,
            what: what.to_owned(),
            token_sent: self.token.is_some(),
        })
    }

    /// GET with redirects; tries again after server errors and broken connections.
    fn get(&self, url: &str, from: u64, what: &str) -> Result<Answer, HubError> {
        let mut pauses = BACKOFF.iter();
        loop {
            let result = self.get_once(url, from, what);
            let again = match &result {
                Ok(answer) => answer.status >= 500,
                Err(error) => matches!(error, HubError::Unreachable { broken: true, .. }),
            };
            match pauses.next() {
                Some(pause) if again => interrupt::sleep(*pause)?,
                _ => return result,
            }
        }
    }

    fn get_once(&self, url: &str, from: u64, what: &str) -> Result<Answer, HubError> {
        let mut url = url.to_owned();
        let mut hub_tag = None;
        for _ in 0..=MAX_REDIRECTS {
            let origin =
                Origin::of(&url).ok_or_else(|| self.bad_answer(what, format!("a redirect to `{url}`")))?;
            if self.origin.secure && !origin.secure {
                return Err(self.bad_answer(what, format!("a redirect to the insecure `{url}`")));
            }
            let response = self.send(&url, &origin, from)?;
            let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
            hub_tag = hub_tag.or_else(|| header("x-linked-etag"));
            let status = response.status().as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                let tag = hub_tag.or_else(|| header("etag"));
                return Ok(Answer {
                    status,
                    tag: tag.map(|tag| tag.trim_start_matches("W/").trim_matches('"').to_owned()),
                    range: header("content-range").as_deref().and_then(parse_range),
                    length: response.body().content_length(),
                    body: response.into_body(),
                });
            }
            url = match header("location") {
                Some(path) if path.starts_with('/') && !path.starts_with("//") => format!("{origin}{path}"),
                Some(location) => location,
                None => return Err(self.bad_answer(what, "a redirect to nowhere".into())),
            };
        }
        Err(self.bad_answer(what, format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn send(&self, url: &str, origin: &Origin, from: u64) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(url).header("accept-encoding", "identity");
        if let Some(token) = self.token.as_ref().filter(|_| *origin == self.origin) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        interrupt::run_aside(move || request.call())?.map_err(|error| HubError::Unreachable {
            host: origin.host.clone(),
            reason: error.to_string(),
            broken: is_broken(&error),
        })
    }
}

impl Answer {
    /// Reads the body on a thread of its own: a stalled network does not hold up Ctrl-C.
    pub(super) fn into_chunks(self) -> Chunks {
        let (send, receive) = mpsc::sync_channel(8);
        thread::spawn(move || {
            let mut body = self.body.into_reader();
            loop {
                let mut chunk = vec![0; CHUNK];
                let result = match body.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(read) => {
                        chunk.truncate(read);
                        Ok(chunk)
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let failed = result.is_err();
                if send.send(result).is_err() || failed {
                    break;
                }
            }
        });
        Chunks(receive)
    }
}

/// A body as it arrives.
pub(super) struct Chunks(Receiver<io::Result<Vec<u8>>>);

impl Chunks {
    /// The next piece; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<io::Result<Vec<u8>>>, interrupt::Interrupted> {
        loop {
            interrupt::check()?;
            match self.0.recv_timeout(interrupt::POLL) {
                Ok(chunk) => return Ok(Some(chunk)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// The connection broke: worth another try.
fn is_broken(error: &ureq::Error) -> bool {
    use io::ErrorKind as Kind;
    let ureq::Error::Io(error) = error else { return false };
    matches!(
        error.kind(),
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof
    )
}

/// Who a token belongs to: scheme, host and port.
#[derive(Debug, Clone, PartialEq)]
struct Origin {
    secure: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Some(Self { secure, host: uri.host()?.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

fn tls() -> Result<TlsConfig, HubError> {
    let native = cfg!(target_os = "macos");
    let provider = if native { TlsProvider::NativeTls } else { TlsProvider::Rustls };
    let roots = match set("SSL_CERT_FILE") {
        Some(path) => own_roots(&path)?,
        None if native => RootCerts::PlatformVerifier,
        None => RootCerts::WebPki,
    };
    Ok(TlsConfig::builder().provider(provider).root_certs(roots).build())
}

/// Roots of the user's own choice: a company's proxy signs with a certificate that nobody else knows.
fn own_roots(path: &Path) -> Result<RootCerts, HubError> {
    let bad = |problem: String| HubError::BadSetting {
        setting: "SSL_CERT_FILE",
        value: path.display().to_string(),
        problem,
    };
    let pem = fs::read(path).map_err(|error| bad(error.to_string()))?;
    let roots: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if roots.is_empty() { Err(bad("it holds no certificate".into())) } else { Ok(roots.into()) }
}

/// `HF_TOKEN`, else the token that `huggingface-cli login` saved.
fn token() -> Result<Option<String>, HubError> {
    let saved = || fs::read_to_string(token_file()?).ok();
    let token = env::var("HF_TOKEN").ok().filter(|token| !token.trim().is_empty()).or_else(saved);
    let Some(token) = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()) else {
        return Ok(None);
    };
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        // The value is a secret: it is not shown.
        return Err(HubError::BadSetting {
            setting: "HF_TOKEN",
            value: "…".to_owned(),
            problem: "a token has no spaces and no letters outside ASCII".to_owned(),
        });
    }
    Ok(Some(token))
}

/// Seconds of `HF_HUB_DOWNLOAD_TIMEOUT`, which other programs of the hub know, too.
pub(super) fn patience() -> Result<Duration, HubError> {
    let Some(value) = env::var(PATIENCE_SETTING).ok().filter(|value| !value.trim().is_empty()) else {
        return Ok(PATIENCE);
    };
    let seconds = value.trim().parse().ok().filter(|seconds| (1..=3600).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| HubError::BadSetting {
        setting: PATIENCE_SETTING,
        value,
        problem: "a whole number of seconds from 1 to 3600 is needed".to_owned(),
    })
}

fn token_file() -> Option<PathBuf> {
    set("HF_TOKEN_PATH")
        .or_else(|| set("HF_HOME").map(|home| home.join("token")))
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/token")))
        .or_else(|| home().map(|home| home.join(".cache/huggingface/token")))
}

/// `bytes 100-199/200` → `(100, Some(200))`.
fn parse_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.parse().ok()?, total.parse().ok()))
}

pub(super) fn as_sha256(text: &str) -> Option<String> {
    let valid = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    valid.then(|| text.to_ascii_lowercase())
}

/// Percent-encodes a path; `/` stays.
fn escape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_knows_default_ports_and_ignores_the_path() {
        assert_eq!(Origin::of("https://HUB.example/a"), Origin::of("https://hub.example:443/b?c"));
        assert_ne!(Origin::of("https://hub.example"), Origin::of("http://hub.example"));
        assert_ne!(Origin::of("https://hub.example"), Origin::of("https://hub.example:8443"));
        assert_eq!(Origin::of("file:///etc/passwd"), None);
        assert_eq!(Origin::of("hub.example/x"), None);
    }

    #[test]
    fn odd_file_names_are_escaped_in_urls() {
        assert_eq!(escape("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
    }

    #[test]
    fn content_ranges_with_and_without_a_total_are_read() {
        assert_eq!(parse_range("bytes 100-199/200"), Some((100, Some(200))));
        assert_eq!(parse_range("bytes 0-1/*"), Some((0, None)));
        assert_eq!(parse_range("items 0-1/2"), None);
    }
}
