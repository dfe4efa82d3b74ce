//! `/v1/models`: what is served, in OpenAI's shape, or in Anthropic's for its clients.

use std::ops::Range;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::{error_response, is_anthropic, query};
use crate::error::ApiError;
use crate::fields::{Fields, excerpt};
use crate::http::{Journey, json_response};
use crate::server::Server;

/// How many models are listed at once for Anthropic's clients, where they do not say, and at most.
const PAGE: usize = 20;
pub(crate) const LONGEST_PAGE: usize = 1000;

/// Every model, every one with an adapter, and every other name of one.
pub(crate) async fn list(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Response {
    let listed = if is_anthropic(&request) { page(&server, &request) } else { all(&server, &request) };
    respond(listed, &request, &journey)
}

/// All of them, as OpenAI's API lists them.
fn all(server: &Server, request: &Request) -> Result<Value, ApiError> {
    query::read(request.uri().query())?.finish()?;
    let entries = server.models().names().map(|name| entry(server, &name, false));
    Ok(json!({"object": "list", "data": entries.collect::<Result<Vec<_>, _>>()?}))
}

/// Those that were asked for, as Anthropic's API lists them.
fn page(server: &Server, request: &Request) -> Result<Value, ApiError> {
    let names: Vec<String> = server.models().names().collect();
    let page = Page::read(query::read(request.uri().query())?, &names)?;
    let names = &names[page.range];
    let data = names.iter().map(|name| entry(server, name, true)).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({"first_id": names.first(), "last_id": names.last(), "has_more": page.has_more, "data": data}))
}

/// A part of a list.
struct Page {
    range: Range<usize>,
    /// Whether there are others on the side that it goes to.
    has_more: bool,
}

impl Page {
    fn read(mut query: Fields, names: &[String]) -> Result<Self, ApiError> {
        let limit = query::limit(&mut query, PAGE, LONGEST_PAGE)?;
        let after = place(&mut query, "after_id", names)?;
        let before = place(&mut query, "before_id", names)?;
        // What the package says of itself where it asks for features that are not final.
        query.one_of("beta", &["true"])?;
        query.finish()?;
        match (after, before) {
            (Some(_), Some(_)) => {
                Err(ApiError::invalid("/before_id", "give one of `after_id` and `before_id`"))
            }
            (None, Some(end)) => {
                let start = end.saturating_sub(limit);
                Ok(Self { range: start..end, has_more: start > 0 })
            }
            (after, None) => {
                let start = after.map_or(0, |at| at + 1);
                let end = names.len().min(start + limit);
                Ok(Self { range: start..end, has_more: end < names.len() })
            }
        }
    }
}

/// Where a model stands in the list that a field names.
fn place(query: &mut Fields, field: &str, names: &[String]) -> Result<Option<usize>, ApiError> {
    let Some(id) = query.string(field)? else { return Ok(None) };
    let pointer = query.pointer(field);
    let wrong =
        || ApiError::invalid(&pointer, format!("`{pointer}` is {:?}, which is no model here", excerpt(&id)));
    names.iter().position(|name| *name == id).map(Some).ok_or_else(wrong)
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
