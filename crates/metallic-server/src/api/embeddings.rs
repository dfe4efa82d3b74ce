//! `/v1/embeddings`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use metallic::Llm;
use metallic::generate::EngineError;
use serde::Serialize;
use serde_json::{Value, json};

use super::common::as_tokens;
use crate::error::ApiError;
use crate::fields::{Fields, as_list, as_string, kind};
use crate::http::{Journey, aside, body, json_response};
use crate::models::Served;
use crate::server::Server;
use crate::task::Input;

/// Most texts of a request.
pub(crate) const INPUTS: usize = 2048;
/// How many of them are computed at once, so that others come in between.
const AT_ONCE: usize = 8;

/// Embeds texts or lists of tokens.
pub(crate) async fn create(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Result<Response, ApiError> {
    let mut fields = body::read(&server, &journey, request).await?;
    let name = fields.required_string("model")?;
    let inputs = read_inputs(&mut fields, "input")?;
    let format = fields.one_of("encoding_format", &["float", "base64"])?;
    let dimensions = fields.count("dimensions", 1..=usize::MAX)?;
    fields.string("user")?;
    fields.finish()?;
    if inputs.len() > INPUTS {
        let message = format!("`/input` has {} texts, at most {INPUTS} are allowed", inputs.len());
        return Err(ApiError::invalid("/input", message));
    }
    let model = server.models().get(&name).await?;
    journey.log().model = Some(model.name.clone());
    if model.adapter.is_some() {
        let message = "`/model` names an adapter, and embeddings are made with the model's own";
        return Err(ApiError::unsupported("/model", message));
    }
    let width = model.llm.model().config().hidden;
    if let Some(asked) = dimensions.filter(|asked| *asked != width) {
        let message = format!("`/dimensions` is {asked}, the model's embeddings have {width}");
        return Err(ApiError::unsupported("/dimensions", message));
    }
    let limit = server.options().limits.request_time;
    let worker = Arc::clone(&model);
    let prompts = aside(&journey, move || read_prompts(&worker, inputs)).await?;
    let tokens = prompts.iter().map(Vec::len).sum();
    // A client that leaves drops this, and with it what is under way.
    let embedded = tokio::time::timeout(limit, embed(&model.llm, prompts)).await;
    let rows = embedded.map_err(|_| ApiError::Timeout { limit: limit.as_secs() })??;
    journey.log().prompt_tokens = tokens;
    let packed = format == Some("base64");
    // Thousands of rows are megabytes of text.
    aside(&journey, move || {
        let data: Vec<Row> =
            rows.into_iter().enumerate().map(|(index, row)| Row::new(index, row, packed)).collect();
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        let answer = Embeddings { object: "list", data, model: &model.name, usage };
        Ok(json_response(StatusCode::OK, &answer))
    })
    .await
}

/// What is answered: written as it is, because a row is as wide as the model.
#[derive(Serialize)]
struct Embeddings<'a> {
    object: &'static str,
    data: Vec<Row>,
    model: &'a str,
    usage: Value,
}

/// The embedding of one text.
#[derive(Serialize)]
struct Row {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Plain(Vec<f32>),
    /// As base64.
    Packed(String),
}

impl Row {
    fn new(index: usize, row: Vec<f32>, packed: bool) -> Self {
        let embedding = if packed { Numbers::Packed(base64_of(&row)) } else { Numbers::Plain(row) };
        Self { object: "embedding", index, embedding }
    }
}

/// A text, a list of tokens, or a list of either, each with the pointer to it.
pub(super) fn read_inputs(fields: &mut Fields, name: &str) -> Result<Vec<Input>, ApiError> {
    let pointer = fields.pointer(name);
    let inputs = match fields.required(name)? {
        Value::String(text) => vec![Input::Text(text)],
        Value::Array(list) if list.first().is_some_and(Value::is_number) => {
            vec![Input::Tokens(as_tokens(Value::Array(list), &pointer)?)]
        }
        list @ Value::Array(_) => {
            let entries = as_list(list, &pointer)?;
            let inputs = entries.map(|(at, entry)| match entry {
                tokens @ Value::Array(_) => as_tokens(tokens, &at).map(Input::Tokens),
                text => as_string(text, &at).map(Input::Text),
            });
            inputs.collect::<Result<_, _>>()?
        }
        other => {
            let message = format!("`{pointer}` is {}, it must be a string or an array", kind(&other));
            return Err(ApiError::Field { pointer, message, code: "invalid_type" });
        }
    };
    let is_empty = |input: &Input| match input {
        Input::Text(text) => text.is_empty(),
        Input::Tokens(tokens) => tokens.is_empty(),
        Input::Chat(_) => false,
    };
    if inputs.is_empty() || inputs.iter().any(is_empty) {
        return Err(ApiError::invalid(&pointer, format!("`{pointer}` must not be empty")));
    }
    Ok(inputs)
}

fn read_prompts(model: &Served, inputs: Vec<Input>) -> Result<Vec<Vec<u32>>, ApiError> {
    let told = |error: metallic::Error| ApiError::of_library(&error, "/input");
    let read = inputs.into_iter().map(|input| match input {
        Input::Text(text) => Ok(model.llm.request(text).map_err(told)?.prompt),
        Input::Tokens(tokens) => Ok(tokens),
        Input::Chat(_) => Err(ApiError::Internal),
    });
    read.collect()
}

/// The embeddings, several at a time. One for which the engine has no place waits until another of the same request is done.
async fn embed(llm: &Llm, prompts: Vec<Vec<u32>>) -> Result<Vec<Vec<f32>>, ApiError> {
    let told = |error: metallic::Error| ApiError::of_library(&error, "/input");
    let mut rows = vec![Vec::new(); prompts.len()];
    let (mut left, mut under_way) = (prompts.into_iter().enumerate().peekable(), FuturesUnordered::new());
    loop {
        while under_way.len() < AT_ONCE
            && let Some((index, prompt)) = left.peek()
        {
            let index = *index;
            match llm.embedding(prompt.as_slice()) {
                Ok(embedding) => under_way.push(async move { (index, embedding.await) }),
                Err(metallic::Error::Engine(EngineError::Busy { .. })) if !under_way.is_empty() => break,
                Err(error) => return Err(told(error)),
            }
            left.next();
        }
        match under_way.next().await {
            Some((index, row)) => rows[index] = row.map_err(told)?,
            None => return Ok(rows),
        }
    }
}

/// The numbers as the API packs them: 32 bits each, the lowest byte first.
fn base64_of(row: &[f32]) -> String {
    let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}
