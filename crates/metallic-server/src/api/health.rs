//! `/health`, `/ready` and `/metrics`: for those who watch.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use metallic::diff::Verification;
use metallic::generate::EngineError;
use serde_json::json;

use crate::error::ApiError;
use crate::http::{json_response, response};
use crate::metrics::Doing;
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
    let waiting: usize = stats(&server).await?.iter().map(|doing| doing.engine.waiting).sum();
    let body = json!({"status": "ready", "waiting": waiting, "in_work": server.keys().in_work()});
    Ok(json_response(StatusCode::OK, &body))
}

/// Figures, in the text format of Prometheus.
pub(crate) async fn metrics(State(server): State<Server>) -> Result<Response, ApiError> {
    let text = server.metrics().text(&stats(&server).await?) + &server.models().figures();
    Ok(response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// What every model does. Engines answer between two steps, which is waited for beside the runtime.
async fn stats(server: &Server) -> Result<Vec<Doing>, ApiError> {
    let models = server.models().loaded();
    let asked = tokio::task::spawn_blocking(move || {
        let doing = models.into_iter().map(|(model, llm)| {
            let looked_over = llm.verification().map(Verification::found);
            Ok::<_, EngineError>(Doing { model, engine: llm.engine().stats()?, looked_over })
        });
        doing.collect::<Result<Vec<_>, _>>()
    });
    let answered = tokio::time::timeout(PATIENCE, asked).await;
    let answered = answered.map_err(|_| ApiError::Unavailable("the model does not answer"))?;
    answered.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::of_engine(&error, ""))
}
