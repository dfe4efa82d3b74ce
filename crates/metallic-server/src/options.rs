//! What may be chosen of a server.

use std::time::Duration;

use metallic::Sampling;

use crate::log::LogSink;

/// What may be chosen of a server; the defaults are those of a service for this machine alone.
///
/// ```
/// use metallic_server::ServerOptions;
///
/// let options = ServerOptions::default().api_keys(["secret".to_owned()]).body_bytes(1 << 20);
/// assert_eq!(options.limits.body_bytes, 1 << 20);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Keys of which a request must bring one; without any, everybody may ask.
    pub api_keys: Vec<String>,
    /// Most of everything.
    pub limits: Limits,
    /// Web pages of these origins (`https://example.org`) may ask; `*` for all. Without any, only the server's own page.
    pub cors_origins: Vec<String>,
    /// Names that requests may call the server by, as a guard against pages that point a name of theirs at this machine. `None`:
    /// [`serve`](crate::serve) takes those of the loopback where it listens there, and else all names are good.
    pub allowed_hosts: Option<Vec<String>>,
    /// How tokens are chosen where a request does not say; the API's own defaults are the model's plain distribution.
    pub sampling: Sampling,
    /// Puts messages and answers into the log. Without it the log has figures alone.
    pub log_prompts: bool,
    /// Takes a record of each request when it has ended.
    pub log: Option<LogSink>,
}

metallic_core::setters!(
    ServerOptions {
        api_keys: impl Into<Vec<String>>,
        limits: Limits,
        cors_origins: impl Into<Vec<String>>,
        allowed_hosts: impl Into<Option<Vec<String>>>,
        sampling: Sampling,
        log_prompts: bool,
        log: impl Into<Option<LogSink>>,
    }
    limits {
        body_bytes: usize,
        body_time: Duration,
        header_time: Duration,
        write_time: Duration,
        request_time: Duration,
        shutdown_time: Duration,
        keep_alive: Duration,
        max_tokens: impl Into<Option<usize>>,
        choices: usize,
        requests: usize,
        requests_per_key: usize,
        connections: usize,
        stored_responses: usize,
        stored_bytes: usize,
    }
);

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            limits: Limits::default(),
            cors_origins: Vec::new(),
            allowed_hosts: None,
            sampling: Sampling::plain(),
            log_prompts: false,
            log: None,
        }
    }
}

/// Most of everything that a client could ask too much of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Time for a body to arrive.
    pub body_time: Duration,
    /// Time for the headers of a request to arrive, and that a connection may stay idle.
    pub header_time: Duration,
    /// Time that a client may read nothing of what is there for it.
    pub write_time: Duration,
    /// Time from a request's arrival to the end of its answer.
    pub request_time: Duration,
    /// Time that answers have to end in when the server is to stop; then they are cancelled.
    pub shutdown_time: Duration,
    /// Time after which a stream that has nothing to say sends a comment, so that nothing on the way takes it for dead.
    pub keep_alive: Duration,
    /// Tokens that a request may ask for; `None`: what the context holds.
    pub max_tokens: Option<usize>,
    /// Choices (`n`) of a request, and texts of one to be embedded or continued.
    pub choices: usize,
    /// Requests in work at once, of everybody.
    pub requests: usize,
    /// Requests in work at once with the same key; without keys, of everybody.
    pub requests_per_key: usize,
    /// Open connections.
    pub connections: usize,
    /// Responses of `/v1/responses` that are kept in memory for requests that build on them; 0: none.
    pub stored_responses: usize,
    /// Bytes of those together.
    pub stored_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            body_time: Duration::from_secs(30),
            header_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            request_time: Duration::from_secs(600),
            shutdown_time: Duration::from_secs(20),
            keep_alive: Duration::from_secs(10),
            max_tokens: None,
            choices: 64,
            requests: 512,
            requests_per_key: 512,
            connections: 1024,
            stored_responses: 1024,
            stored_bytes: 64 << 20,
        }
    }
}
