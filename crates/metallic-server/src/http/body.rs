//! Bodies of requests: of bounded size, in bounded time, as JSON.

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use futures_util::StreamExt;
use serde_json::Value;

use super::{Journey, aside, unique};
use crate::error::ApiError;
use crate::fields::{Fields, excerpt};
use crate::server::Server;

/// The fields of a request's body.
pub(crate) async fn read(server: &Server, journey: &Journey, request: Request) -> Result<Fields, ApiError> {
    let limits = &server.options().limits;
    let (parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    check_encoding(&parts.headers)?;
    let said = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let bytes = tokio::time::timeout(limits.body_time, collect(body, said, limits.body_bytes)).await;
    let bytes = bytes.map_err(|_| ApiError::SlowBody)??;
    let texts = journey.texts;
    let is_long = bytes.len() > ASIDE;
    let read = move || parse(bytes, texts);
    // The thread that reads it here writes everybody's events.
    let (value, text) = if is_long { aside(journey, read).await? } else { read()? };
    journey.log().request = text;
    Fields::of(value, "")
}

/// Bodies of more bytes are read beside the runtime.
const ASIDE: usize = 64 << 10;

/// The JSON of a body, and its text where that is wanted.
fn parse(bytes: Vec<u8>, wants_text: bool) -> Result<(Value, Option<String>), ApiError> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        ApiError::Body(format!("the body is not UTF-8: byte {at} is wrong"))
    })?;
    Ok((unique::parse(&text)?, Some(text).filter(|_| wants_text)))
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or("unreadable"));
    let Some(found) = found else { return Err(ApiError::MediaType { found: "missing".into() }) };
    let essence = found.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ApiError::MediaType { found: format!("`{essence:.100}`") })
}

fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("unreadable").trim());
    match found.filter(|found| !found.is_empty() && !found.eq_ignore_ascii_case("identity")) {
        None => Ok(()),
        Some(found) => Err(ApiError::Encoding { found: excerpt(found).to_owned() }),
    }
}

/// Parts of a body that is too large are still taken, up to this many times the limit: a client that is cut off while it writes
/// does not read why.
const TAKEN: usize = 4;

async fn collect(body: Body, said: Option<usize>, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::with_capacity(said.unwrap_or(0).min(limit));
    let (mut parts, mut total) = (body.into_data_stream(), 0_usize);
    if said.is_some_and(|said| said > limit.saturating_mul(TAKEN)) {
        return Err(ApiError::TooLarge { limit });
    }
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| ApiError::Body("the body breaks off".into()))?;
        total = total.saturating_add(part.len());
        if total <= limit {
            bytes.extend_from_slice(&part);
        } else if total > limit.saturating_mul(TAKEN) {
            break;
        }
    }
    if total > limit { Err(ApiError::TooLarge { limit }) } else { Ok(bytes) }
}
