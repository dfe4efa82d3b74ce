//! `/health`, `/ready` and `/metrics`: for those who watch.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use metallic::Llm;
use metallic::diff::Verification;
use metallic::generate::EngineStats;
use serde_json::json;
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::http::{json_response, response};
use crate::metrics::Doing;
use crate::server::{Phase, Server};

/// How long figures wait for an engine to look up from its step. After that they are those of the step before.
const PATIENCE: Duration = Duration::from_millis(500);

/// Whether the process is alive: an engine that broke down does not come back by itself, nor does one that is longer at a step than
/// any request may take.
pub(crate) async fn health(State(server): State<Server>) -> Result<Response, ApiError> {
    alive(&server)?;
    Ok(json_response(StatusCode::OK, &json!({"status": "ok"})))
}

/// Whether requests should be sent here now.
pub(crate) async fn ready(State(server): State<Server>) -> Result<Response, ApiError> {
    if *server.phase().borrow() != Phase::Open {
        return Err(ApiError::Unavailable("the server is about to stop"));
    }
    alive(&server)?;
    let models = server.models().loaded();
    let waiting: usize = models.iter().map(|(_, llm)| llm.engine().recent_stats().waiting).sum();
    let body = json!({"status": "ready", "waiting": waiting, "in_work": server.keys().in_work()});
    Ok(json_response(StatusCode::OK, &body))
}

/// Nobody waits for a step here: probes are more patient with none than long prompts take.
fn alive(server: &Server) -> Result<(), ApiError> {
    let limit = server.options().limits.request_time;
    for (_, llm) in server.models().loaded() {
        match llm.engine().busy_for() {
            None => return Err(ApiError::Unavailable("the model has stopped")),
            Some(busy) if busy > limit => return Err(ApiError::Unavailable("the model does not answer")),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Figures, in the text format of Prometheus.
pub(crate) async fn metrics(State(server): State<Server>) -> Result<Response, ApiError> {
    let mut doing = Vec::new();
    for (model, llm) in server.models().loaded() {
        let looked_over = llm.verification().map(Verification::found);
        doing.push(Doing { model, engine: stats(&llm).await, looked_over });
    }
    let text = server.metrics().text(&doing) + &server.models().figures();
    Ok(response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// What an engine does now, or did before its present step where that is long.
async fn stats(llm: &Llm) -> EngineStats {
    let (reply, answer) = oneshot::channel();
    let asked = llm.engine().ask_stats(move |stats| {
        // Whoever asked may have gone.
        let _ = reply.send(stats);
    });
    let answered = tokio::time::timeout(PATIENCE, answer).await;
    match (asked, answered) {
        (Ok(()), Ok(Ok(stats))) => stats,
        _ => llm.engine().recent_stats(),
    }
}
