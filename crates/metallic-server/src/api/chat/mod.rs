//! `/v1/chat/completions`.

mod messages;
mod request;
mod stream;
mod tools;
mod write;

pub(crate) use messages::{MOST_CALLS, read_messages};
pub(crate) use request::{mentions, template_variables, without_thoughts};
pub(crate) use tools::{TOOLS, is_name, name_of, names_one, read_tools};

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::error::ApiError;
use crate::http::{Journey, body, fresh_id, json_response, sse};
use crate::models::unix_time;
use crate::server::Server;
use request::ChatRequest;

/// What all parts of one response have in common.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Head {
    pub(crate) fn new(prefix: &str, model: &str) -> Self {
        Self { id: fresh_id(prefix), created: unix_time(), model: model.to_owned() }
    }
}

/// Answers a conversation.
pub(crate) async fn create(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = body::read(&server, &journey, request).await?;
    let (model, request) = request::read(fields, &server).await?;
    let ChatRequest { task, streaming, logprobs } = request;
    let (head, n) = (Head::new("chatcmpl-", &model.name), task.n);
    let mut choices = task.start(&server, &model, &journey).await?;
    if streaming.on {
        let events = stream::ChatEvents::new(head, choices, n, streaming, logprobs);
        return Ok(sse::respond(events, server.options().limits.keep_alive));
    }
    let answers = choices.collect(n).await?;
    Ok(json_response(StatusCode::OK, &write::completion(&head, answers, choices.usage(), logprobs)))
}
