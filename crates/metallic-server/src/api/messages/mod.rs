//! `/v1/messages`: conversations in the shape of Anthropic's API.

mod blocks;
mod output;
mod request;
mod stream;
mod tools;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use metallic::Chat;
use metallic::text::ToolChoice;
use serde_json::json;

use crate::error::ApiError;
use crate::http::{Journey, aside, body, json_response, sse};
use crate::server::Server;
use crate::task::told;
use output::Output;
use request::{MessageRequest, PLACES};
use stream::{Head, MessageEvents};

/// Answers a conversation.
pub(crate) async fn create(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Response {
    let answered = answer(&server, &journey, request).await;
    finish(answered, &journey)
}

/// How many tokens a conversation has.
pub(crate) async fn count_tokens(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Response {
    let counted = count(&server, &journey, request).await;
    finish(counted, &journey)
}

/// The response in this API's shape.
fn finish(result: Result<Response, ApiError>, journey: &Journey) -> Response {
    result.unwrap_or_else(|error| {
        let error = error.in_places(PLACES);
        error.respond_with(&error.anthropic_body(&journey.id()))
    })
}

async fn answer(server: &Server, journey: &Journey, request: Request) -> Result<Response, ApiError> {
    let fields = body::read(server, journey, request).await?;
    let (model, request) = request::read(fields, server).await?;
    let MessageRequest { task, stream, written } = request;
    let max_tokens = task.options.max_tokens;
    let mut choices = task.start(server, &model, journey).await?;
    let (head, mut output) = (Head::new(&model.name, max_tokens), Output::new(written));
    if stream {
        let events = MessageEvents::new(head, choices, output, journey.id());
        return Ok(sse::respond(events, server.options().limits.keep_alive));
    }
    while let Some(next) = choices.next().await {
        for delta in next?.1 {
            output.take(delta);
        }
    }
    Ok(json_response(StatusCode::OK, &head.message(&output)))
}

async fn count(server: &Server, journey: &Journey, request: Request) -> Result<Response, ApiError> {
    let fields = body::read(server, journey, request).await?;
    let (model, conversation) = request::read_counted(fields, server).await?;
    journey.log().model = Some(model.name.clone());
    let tokens = aside(journey, move || {
        let tools =
            if conversation.choice == ToolChoice::None { Vec::new() } else { told(&conversation.tools) };
        let chat = Chat::new(conversation.messages).tools(tools).variables(conversation.variables);
        let request = model.llm.chat_request(chat);
        Ok(request.map_err(|error| ApiError::of_library(&error, "/messages"))?.prompt.len())
    });
    Ok(json_response(StatusCode::OK, &json!({"input_tokens": tokens.await?})))
}
