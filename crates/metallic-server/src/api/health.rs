//! `/health`, `/ready` and `/metrics`: for those who watch.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use metallic::generate::EngineStats;
use serde_json::json;

use crate::error::ApiError;
use crate::http::{json_response, response};
use crate::server::{Phase, Server};

/// How long an engine may take to say what it does: longer than any step.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the process is alive: an engine that broke down does not come back by itself.
pub(crate) async fn health(State(server): State<Server>) -> Result<Response, ApiError> {
    stats(&server).await?;
    Ok(json_response(StatusCode::OK, &json!({"status": "ok"})))
}

/// Whether requests should be sent here now.
pub(crate) async fn ready(State(server): State<Server>) -> Result<Response, ApiError> {
    if *server.phase().borrow() != Phase::Open {
        return Err(ApiError::Unavailable("the server is about to stop"));
    }
    let waiting: usize = stats(&server).await?.iter().map(|(_, stats)| stats.waiting).sum();
    let body = json!({"status": "ready", "waiting": waiting, "in_work": server.keys().in_work()});
    Ok(json_response(StatusCode::OK, &body))
}

/// Figures, in the text format of Prometheus.
pub(crate) async fn metrics(State(server): State<Server>) -> Result<Response, ApiError> {
    let stats = stats(&server).await?;
    let engines: Vec<(&str, EngineStats)> =
        stats.iter().map(|(model, stats)| (model.as_str(), *stats)).collect();
    let text = server.metrics().text(&engines) + &server.models().figures();
    Ok(response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// What every engine does. Engines answer between two steps, which is waited for beside the runtime.
async fn stats(server: &Server) -> Result<Vec<(String, EngineStats)>, ApiError> {
    let models = server.models().loaded();
    let asked = tokio::task::spawn_blocking(move || {
        let stats = models
            .into_iter()
            .map(|(model, llm)| Ok::<_, metallic::generate::EngineError>((model, llm.engine().stats()?)));
        stats.collect::<Result<Vec<_>, _>>()
    });
    let answered = tokio::time::timeout(PATIENCE, asked).await;
    let answered = answered.map_err(|_| ApiError::Unavailable("the model does not answer"))?;
    answered.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::of_engine(&error, ""))
}
