//! `/v1/responses`: answers as items, on which later requests may build.

mod items;
mod output;
mod request;
mod store;
mod stream;
mod tools;

pub(crate) use store::Store;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::error::ApiError;
use crate::http::{Journey, body, json_response, sse};
use crate::server::Server;
use output::Output;
use request::{PLACES, ResponseRequest};
use stream::{Envelope, ResponseEvents};

/// Makes a response.
pub(crate) async fn create(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = body::read(&server, &journey, request).await?;
    let key = journey.log().key;
    let read = request::read(fields, &server, key).await;
    let (model, request) = read.map_err(|error| error.in_places(PLACES))?;
    let ResponseRequest { task, stream, written, echo, items } = request;
    let started = task.start(&server, &model, &journey).await;
    let mut choices = started.map_err(|error| error.in_places(PLACES))?;
    let (mut envelope, mut output) = (Envelope::new(server.clone(), key, echo, items), Output::new(written));
    if stream {
        let events = ResponseEvents::new(envelope, choices, output);
        return Ok(sse::respond(events, server.options().limits.keep_alive));
    }
    while let Some(next) = choices.next().await {
        for delta in next?.1 {
            output.take(delta);
        }
    }
    Ok(json_response(StatusCode::OK, &envelope.end(&output)))
}

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

fn missing(id: &str) -> ApiError {
    ApiError::NoResponse { id: id.chars().take(100).collect() }
}
