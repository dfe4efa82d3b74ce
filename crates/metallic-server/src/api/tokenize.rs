//! `/tokenize` and `/detokenize`: text to tokens and back, as the model sees it.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use metallic::Chat;
use serde_json::{Value, json};

use super::chat::{read_messages, read_tools};
use super::common::as_tokens;
use crate::error::ApiError;
use crate::http::{Journey, aside, body, json_response};
use crate::models::Served;
use crate::server::Server;

/// What is to become tokens.
enum Text {
    Plain { text: String, add_special: bool, parse_special: bool },
    Chat(Chat),
}

/// The tokens of `content`, or those of `messages` as the chat template writes them.
pub(crate) async fn tokenize(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Result<Response, ApiError> {
    let mut fields = body::read(&server, &journey, request).await?;
    let name = fields.required_string("model")?;
    let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
    let text = match (fields.string("content")?, fields.list("messages")?) {
        (Some(text), None) => {
            let add_special = fields.bool("add_special")?.unwrap_or(true);
            let parse_special = fields.bool("parse_special")?.unwrap_or(true);
            Text::Plain { text, add_special, parse_special }
        }
        (None, Some(messages)) => {
            let tools = read_tools(&mut fields)?;
            Text::Chat(Chat::new(read_messages(messages, "/messages")?).tools(tools))
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("/messages", "give one of `content` and `messages`"));
        }
        (None, None) => return Err(fields.missing("content")),
    };
    fields.finish()?;
    let model = server.models().get(&name).await?;
    // A response may be as long as a body, so it is written there too.
    aside(&journey, move || {
        let tokens = encode(&model, text)?;
        let mut answer = json!({
            "tokens": tokens,
            "count": tokens.len(),
            "context_length": model.llm.engine().config().context_length,
        });
        if with_pieces {
            answer["pieces"] = tokens.iter().map(|&id| piece(&model, id)).collect();
        }
        Ok(json_response(StatusCode::OK, &answer))
    })
    .await
}

/// The text of a token, or its bytes where they are no text alone.
fn piece(model: &Served, id: u32) -> Value {
    let bytes = model.llm.tokenizer().token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(&bytes) {
        Ok(text) => json!(text),
        Err(_) => json!(bytes),
    }
}

fn encode(model: &Served, text: Text) -> Result<Vec<u32>, ApiError> {
    match text {
        Text::Plain { text, add_special, parse_special } => {
            let tokens = model.llm.tokenizer().encode(&text, add_special, parse_special);
            tokens.map_err(|error| ApiError::of_text(&error, "/content"))
        }
        Text::Chat(chat) => {
            let request = model.llm.chat_request(chat);
            Ok(request.map_err(|error| ApiError::of_library(&error, "/messages"))?.prompt)
        }
    }
}

/// The text of `tokens`.
pub(crate) async fn detokenize(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Result<Response, ApiError> {
    let mut fields = body::read(&server, &journey, request).await?;
    let (name, tokens) = (fields.required_string("model")?, fields.required("tokens")?);
    let skip_special = fields.bool("skip_special")?.unwrap_or(false);
    fields.finish()?;
    let tokens = aside(&journey, move || as_tokens(tokens, "/tokens")).await?;
    let model = server.models().get(&name).await?;
    aside(&journey, move || {
        let tokenizer = model.llm.tokenizer();
        let vocab = tokenizer.vocab_size();
        if let Some((i, id)) = tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
            let message = format!("`/tokens/{i}` is {id}, the vocabulary has {vocab} tokens");
            return Err(ApiError::invalid(format!("/tokens/{i}"), message));
        }
        Ok(json_response(StatusCode::OK, &json!({"content": tokenizer.decode(&tokens, skip_special)})))
    })
    .await
}
