//! The endpoints: each file reads the fields of one, and writes its answer.

mod chat;
mod common;
mod completions;
mod embeddings;
mod functions;
mod health;
mod messages;
mod models;
mod openapi;
mod query;
mod responses;
mod tokenize;
mod turns;

pub(crate) use responses::{LONGEST_ITEMS, Store};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{get, post};

use crate::error::ApiError;
use crate::server::Server;

/// Every route, as figures and logs call it.
pub(crate) const ROUTES: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/responses/{id}",
    "/v1/responses/{id}/input_items",
    "/v1/models",
    "/v1/models/{*id}",
    "/tokenize",
    "/detokenize",
    "/health",
    "/ready",
    "/metrics",
    "/openapi.json",
];

/// Routes that need no key: probes, and what describes the server.
pub(crate) const OPEN_ROUTES: &[&str] = &["/health", "/ready", "/openapi.json"];

pub(crate) fn routes() -> Router<Server> {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::count))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::document))
}

/// What Anthropic's clients send with every request, and nobody else does.
const ANTHROPIC: &str = "anthropic-version";

/// Whether a request is of Anthropic's API: its path is in that one alone, or is in both and the client is Anthropic's.
pub(crate) fn is_anthropic(request: &Request) -> bool {
    let path = request.uri().path();
    let is_shared = path.starts_with("/v1/models");
    path.starts_with("/v1/messages") || is_shared && request.headers().contains_key(ANTHROPIC)
}

/// An error in the shape of the API that was asked; `id` is the name of the request.
pub(crate) fn error_response(request: &Request, error: &ApiError, id: &str) -> Response {
    error.respond_with(&if is_anthropic(request) { error.anthropic_body(id) } else { error.body() })
}
