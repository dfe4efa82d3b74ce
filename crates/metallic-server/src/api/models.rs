//! `/v1/models`: what is served, in OpenAI's shape, or in Anthropic's for its clients.

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::{error_response, is_anthropic};
use crate::error::ApiError;
use crate::http::{Journey, json_response};
use crate::server::Server;

/// Every model, every one with an adapter, and every other name of one.
pub(crate) async fn list(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Response {
    let for_anthropic = is_anthropic(&request);
    let entries = server.models().names().map(|name| entry(&server, &name, for_anthropic));
    let data = entries.collect::<Result<Vec<_>, _>>();
    let list = data.map(|data| {
        if for_anthropic {
            let end = |entry: Option<&Value>| entry.map(|entry| entry["id"].clone());
            json!({"first_id": end(data.first()), "last_id": end(data.last()), "has_more": false, "data": data})
        } else {
            json!({"object": "list", "data": data})
        }
    });
    respond(list, &request, &journey)
}

/// One model.
pub(crate) async fn retrieve(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    // Bytes that are no text are no model's name.
    let name = name.map_err(|_| ApiError::NoModel { model: "?".into() });
    let entry = name.and_then(|Path(name)| entry(&server, &name, is_anthropic(&request)));
    respond(entry, &request, &journey)
}

fn respond(answer: Result<Value, ApiError>, request: &Request, journey: &Journey) -> Response {
    match answer {
        Ok(answer) => json_response(StatusCode::OK, &answer),
        Err(error) => error_response(request, &error, &journey.id()),
    }
}

fn entry(server: &Server, name: &str, for_anthropic: bool) -> Result<Value, ApiError> {
    let model = server.models().describe(name)?;
    if for_anthropic {
        let created = date(model.created);
        return Ok(json!({"type": "model", "id": name, "display_name": name, "created_at": created}));
    }
    Ok(json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "metallic",
        "root": model.root,
        "parent": model.parent,
        "context_length": model.context,
        "state": model.state.name(),
        "bytes": model.bytes,
    }))
}

/// Seconds since 1970 as RFC 3339 writes them.
fn date(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (day, hour, minute, second) = (days + 1, second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
