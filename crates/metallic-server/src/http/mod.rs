//! Between the wire and the endpoints: who may ask, bodies in, responses out.

pub(crate) mod body;
mod cors;
mod follow;
pub(crate) mod gate;
mod hosts;
mod journey;
mod keys;
mod patient;
pub(crate) mod sse;
mod unique;

pub(crate) use hosts::Hosts;
pub(crate) use journey::{Journey, Told};
pub(crate) use keys::Keys;
pub(crate) use patient::Patient;

use std::hash::{BuildHasher, Hasher, RandomState};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use tokio::task::JoinHandle;

use crate::error::ApiError;

/// Runs work of a request that takes its time beside the runtime. The request is in work until it is done, even where its client has
/// left; what has not begun by then never does.
pub(crate) async fn aside<T: Send + 'static>(
    journey: &Journey,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = journey.permit();
    let mut task = Aside(tokio::task::spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    }));
    (&mut task.0).await.map_err(|error| ApiError::internal(&error))?
}

/// Work beside the runtime; dropping it cancels what has not begun.
struct Aside<T>(JoinHandle<T>);

impl<T> Drop for Aside<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A response with a body of JSON.
pub(crate) fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => response(status, "application/json", bytes),
        Err(error) => {
            tracing::error!(target: "metallic_server", %error, "a response could not be written");
            response(StatusCode::INTERNAL_SERVER_ERROR, "application/json", b"{}".as_slice())
        }
    }
}

/// A response with a body of a type.
pub(crate) fn response(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A name that nothing else has: a word for what it names, and 24 letters and digits.
pub(crate) fn fresh_id(prefix: &str) -> String {
    const SIGNS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut id = String::with_capacity(prefix.len() + 24);
    id.push_str(prefix);
    for _ in 0..3 {
        // The keys of the standard library's tables are random.
        let mut random = RandomState::new().build_hasher().finish();
        for _ in 0..8 {
            id.push(char::from(SIGNS[(random % 62) as usize]));
            random /= 62;
        }
    }
    id
}
