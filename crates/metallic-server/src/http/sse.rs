//! Server-sent events: an answer as it comes.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde::Serialize;

/// Where events come from.
pub(crate) trait Events: Send + 'static {
    /// The next events as text, or the end. A call that is given up before it is done must not lose any.
    fn next(&mut self) -> impl Future<Output = Option<String>> + Send;
}

/// Appends an event without a name.
pub(crate) fn push(out: &mut String, data: &impl Serialize) {
    push_json(out, None, data);
}

/// Appends an event with a name.
pub(crate) fn push_named(out: &mut String, name: &str, data: &impl Serialize) {
    push_json(out, Some(name), data);
}

fn push_json(out: &mut String, name: Option<&str>, data: &impl Serialize) {
    match serde_json::to_string(data) {
        Ok(json) => {
            if let Some(name) = name {
                out.extend(["event: ", name, "\n"]);
            }
            // JSON in one line has no line breaks.
            out.extend(["data: ", &json, "\n\n"]);
        }
        Err(error) => tracing::error!(target: "metallic_server", %error, "an event could not be written"),
    }
}

/// The end of a stream of the OpenAI API.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// Sends the events, and a comment whenever there is none for a while. The client's leaving drops them.
pub(crate) fn respond(events: impl Events, keep_alive: Duration) -> Response {
    let stream = futures_util::stream::unfold(Box::new(events), move |mut events| async move {
        let text = match tokio::time::timeout(keep_alive, events.next()).await {
            Ok(None) => return None,
            Ok(Some(text)) => Bytes::from(text),
            Err(_) => Bytes::from_static(b": keep-alive\n\n"),
        };
        Some((Ok::<_, Infallible>(text), events))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that gather responses would hold tokens back.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
