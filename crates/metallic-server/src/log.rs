//! What is kept of a request when it has ended.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// One request, as the log has it. Texts are there only where [`ServerOptions::log_prompts`](crate::ServerOptions) asks for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RequestLog {
    /// Its name, which the client has as the header `x-request-id`.
    pub id: String,
    /// `GET`, `POST`, …
    pub method: String,
    /// The route, not the path: what a client wrote is not put into logs.
    pub route: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// Seconds from its arrival to the end of the response.
    pub seconds: f64,
    /// Whether the client went away before the end.
    pub disconnected: bool,
    /// Which of the keys it came with, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<usize>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt_tokens: usize,
    /// Of those, the ones that were in the cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_tokens: usize,
    /// Tokens that were generated.
    #[serde(skip_serializing_if = "is_zero")]
    pub generated_tokens: usize,
    /// What was wrong with it, as the client was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The body of the request, where texts are logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The text of the answer, where texts are logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A function that takes records of requests. It is called where responses are written: it must not wait for long.
#[derive(Clone)]
pub struct LogSink(Arc<dyn Fn(&RequestLog) + Send + Sync>);

impl LogSink {
    /// Hands each record to `take`.
    pub fn new(take: impl Fn(&RequestLog) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub(crate) fn take(&self, record: &RequestLog) {
        (self.0)(record);
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogSink")
    }
}
