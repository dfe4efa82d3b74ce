//! `/v1/responses`: answers as items, on which later requests may build.

mod items;
mod kept;
mod output;
mod request;
mod store;
mod stream;
mod tools;

pub(crate) use kept::{LONGEST_ITEMS, delete, input_items, retrieve};
pub(crate) use store::Store;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::error::ApiError;
use crate::http::{Journey, aside, body, json_response, sse};
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

/// How many tokens the prompt of a response would have.
pub(crate) async fn count(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = body::read(&server, &journey, request).await?;
    let key = journey.log().key;
    let read = request::read(fields, &server, key).await;
    let (model, request) = read.map_err(|error| error.in_places(PLACES))?;
    journey.log().model = Some(model.name.clone());
    let tokens = aside(&journey, move || request.task.count(&model)).await?;
    Ok(json_response(StatusCode::OK, &json!({"object": "response.input_tokens", "input_tokens": tokens})))
}
