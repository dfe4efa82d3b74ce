//! `/v1/models`: what is served.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::http::json_response;
use crate::server::Server;

/// Every model, every one with an adapter, and every other name of one.
pub(crate) async fn list(State(server): State<Server>) -> Result<Response, ApiError> {
    let entries = server.models().names().map(|name| entry(&server, &name));
    let data = entries.collect::<Result<Vec<_>, _>>()?;
    Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": data})))
}

/// One model.
pub(crate) async fn retrieve(
    State(server): State<Server>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    // Bytes that are no text are no model's name.
    let Path(name) = name.map_err(|_| ApiError::NoModel { model: "?".into() })?;
    Ok(json_response(StatusCode::OK, &entry(&server, &name)?))
}

fn entry(server: &Server, name: &str) -> Result<Value, ApiError> {
    let model = server.models().describe(name)?;
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
