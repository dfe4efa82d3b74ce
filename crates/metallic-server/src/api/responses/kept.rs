//! Responses that were kept: what they are, and what they were made of.

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::api::query;
use crate::error::ApiError;
use crate::fields::excerpt;
use crate::http::{Journey, json_response};
use crate::server::Server;

/// How many items are listed at once, where nobody says, and at most.
const PAGE: usize = 20;
pub(crate) const LONGEST_ITEMS: usize = 100;

/// A response that was kept.
pub(crate) async fn retrieve(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    if let Some(query) = query.filter(|query| !query.is_empty()) {
        let name: String = query.split(['=', '&']).next().unwrap_or_default().chars().take(60).collect();
        let message = format!("`{name}` is not supported: a response is given as it was told");
        return Err(ApiError::unsupported(format!("/{name}"), message));
    }
    let Path(id) = id.map_err(|_| missing("?"))?;
    let stored = server.responses().get(&id, journey.log().key).ok_or_else(|| missing(&id))?;
    Ok(json_response(StatusCode::OK, &stored.response()))
}

/// Forgets a response.
pub(crate) async fn delete(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| missing("?"))?;
    if !server.responses().delete(&id, journey.log().key) {
        return Err(missing(&id));
    }
    let body = json!({"id": id, "object": "response", "deleted": true});
    Ok(json_response(StatusCode::OK, &body))
}

/// What a response was made of: everything that was said before it, the latest first.
pub(crate) async fn input_items(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let mut query = query::read(query.as_deref())?;
    let limit = query::limit(&mut query, PAGE, LONGEST_ITEMS)?;
    let ascending = query.one_of("order", &["asc", "desc"])? == Some("asc");
    let after = query.string("after")?;
    query.finish()?;
    let Path(id) = id.map_err(|_| missing("?"))?;
    let stored = server.responses().get(&id, journey.log().key).ok_or_else(|| missing(&id))?;
    let mut items = stored.items();
    let own = stored.response()["output"].as_array().map_or(0, Vec::len);
    items.truncate(items.len().saturating_sub(own));
    let mut items: Vec<Value> =
        items.into_iter().enumerate().map(|(index, item)| listed(index, item)).collect();
    if !ascending {
        items.reverse();
    }
    let begin = match after {
        None => 0,
        Some(after) => {
            let at = items.iter().position(|item| item["id"] == after.as_str());
            let message = || format!("`/after` is {:?}, which is no item of this response", excerpt(&after));
            at.ok_or_else(|| ApiError::invalid("/after", message()))? + 1
        }
    };
    let has_more = items.len() - begin > limit;
    let data: Vec<Value> = items.into_iter().skip(begin).take(limit).collect();
    let end = |item: Option<&Value>| item.map(|item| item["id"].clone());
    let list = json!({
        "object": "list", "first_id": end(data.first()), "last_id": end(data.last()), "has_more": has_more, "data": data,
    });
    Ok(json_response(StatusCode::OK, &list))
}

/// An item in its longest form, with an id by which it can be found in the list.
fn listed(index: usize, mut item: Value) -> Value {
    if let Value::Object(fields) = &mut item {
        fields.entry("id").or_insert_with(|| json!(format!("item_{index}")));
        if let (Some(role), Some(Value::String(text))) = (fields.get("role"), fields.get("content")) {
            let kind = if role == "assistant" { "output_text" } else { "input_text" };
            let content = json!([{"type": kind, "text": text}]);
            fields.insert("content".into(), content);
            fields.entry("type").or_insert(json!("message"));
        }
    }
    item
}

fn missing(id: &str) -> ApiError {
    ApiError::NoResponse { id: id.chars().take(100).collect() }
}
