//! `/v1/completions`: text that is continued as it is.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::chat::Head;
use super::common::{
    self, FINGERPRINT, MOST_TOKENS, Streaming, limit_tokens, read_formalities, read_options, read_streaming,
};
use super::embeddings::read_inputs;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::sse::{self, DONE, Events};
use crate::http::{Journey, body, json_response};
use crate::models::Served;
use crate::server::Server;
use crate::task::{Choices, Collected, Delta, Input, Task, TokenDelta, TokenText};

/// The API's own, where a request does not say.
const DEFAULT_TOKENS: usize = 16;
/// Most log-probabilities at a place.
pub(crate) const LOGPROBS: usize = 5;

/// Texts to continue, and how the answer is to be written.
struct CompletionRequest {
    tasks: Vec<Task>,
    n: usize,
    echo: bool,
    logprobs: bool,
    streaming: Streaming,
}

/// Continues texts.
pub(crate) async fn create(
    State(server): State<Server>,
    Extension(journey): Extension<Journey>,
    request: Request,
) -> Result<Response, ApiError> {
    let mut fields = body::read(&server, &journey, request).await?;
    let name = fields.required_string("model")?;
    let request = read(&mut fields, &server)?;
    fields.finish()?;
    let model = server.models().get(&name).await?;
    let head = Head::new("cmpl-", &model.name);
    let prompts = request.echo.then(|| texts(&model, &request.tasks));
    let mut writer = Writer::new(head, prompts, &request);
    let mut groups = Vec::with_capacity(request.tasks.len());
    for task in request.tasks {
        groups.push(task.start(&server, &model, &journey).await?);
    }
    let mut choices = Choices::join(groups).ok_or(ApiError::Internal)?;
    if request.streaming.on {
        let events = CompletionEvents { writer, choices, done: false };
        return Ok(sse::respond(events, server.options().limits.keep_alive));
    }
    let answers = choices.collect(writer.begun.len()).await?;
    let answers: Vec<Value> =
        answers.into_iter().enumerate().map(|(index, answer)| writer.whole(index, answer)).collect();
    Ok(json_response(StatusCode::OK, &writer.response(&answers, Some(common::usage(choices.usage())))))
}

fn read(fields: &mut Fields, server: &Server) -> Result<CompletionRequest, ApiError> {
    let limits = &server.options().limits;
    let inputs = read_inputs(fields, "prompt")?;
    let n = fields.count("n", 1..=limits.choices)?.unwrap_or(1);
    if inputs.len().saturating_mul(n) > limits.choices {
        let message = format!(
            "{} prompts with {n} answers each are more than {} answers",
            inputs.len(),
            limits.choices
        );
        return Err(ApiError::invalid("/prompt", message));
    }
    let best_of = fields.count("best_of", 1..=limits.choices)?;
    if best_of.is_some_and(|best_of| best_of != n) {
        let message = "`/best_of` is not supported: choose among the answers that `n` gives";
        return Err(ApiError::unsupported("/best_of", message));
    }
    let mut options = read_options(fields, server.options())?;
    let asked = fields.count("max_tokens", 0..=MOST_TOKENS)?;
    let usual = DEFAULT_TOKENS.min(limits.max_tokens.unwrap_or(DEFAULT_TOKENS));
    options.max_tokens = limit_tokens(asked.or(Some(usual)), "/max_tokens", server.options())?;
    options.logprobs = fields.count("logprobs", 0..=LOGPROBS)?;
    let (logprobs, echo) = (options.logprobs.is_some(), fields.bool("echo")?.unwrap_or(false));
    options.prompt_logprobs = options.logprobs.filter(|_| echo);
    let streaming = read_streaming(fields)?;
    read_formalities(fields)?;
    fields.refuse("suffix", &[json!("")], "text is continued at its end")?;
    let task = |input| Task { n, ..Task::new(input, "/prompt", options.clone()) };
    Ok(CompletionRequest { tasks: inputs.into_iter().map(task).collect(), n, echo, logprobs, streaming })
}

/// The prompts as text.
fn texts(model: &Arc<Served>, tasks: &[Task]) -> Vec<String> {
    let text = |task: &Task| match &task.input {
        Input::Text(text) => text.clone(),
        // As their own texts add up, with those that are special.
        Input::Tokens(tokens) => model.llm.tokenizer().decode(tokens, false),
        Input::Chat(_) => String::new(),
    };
    tasks.iter().map(text).collect()
}

/// Writes answers in the words of the API.
struct Writer {
    head: Head,
    /// The prompts, where answers begin with them.
    prompts: Option<Vec<String>>,
    n: usize,
    logprobs: bool,
    streaming: Streaming,
    begun: Vec<bool>,
    /// Where each answer is.
    places: Vec<Place>,
}

impl Writer {
    fn new(head: Head, prompts: Option<Vec<String>>, request: &CompletionRequest) -> Self {
        let answers = request.tasks.len() * request.n;
        let CompletionRequest { n, logprobs, streaming, .. } = *request;
        Self {
            head,
            prompts,
            n,
            logprobs,
            streaming,
            begun: vec![false; answers],
            places: vec![Place::default(); answers],
        }
    }

    fn response(&self, choices: &[Value], usage: Option<Value>) -> Value {
        let Head { id, created, model } = &self.head;
        let mut response = json!({
            "id": id,
            "object": "text_completion",
            "created": created,
            "model": model,
            "choices": choices,
            "system_fingerprint": FINGERPRINT,
        });
        if usage.is_some() || self.streaming.usage {
            response["usage"] = usage.unwrap_or_default();
        }
        response
    }

    /// What an answer begins with, once.
    fn beginning(&mut self, index: usize) -> String {
        let Some(begun) = self.begun.get_mut(index).filter(|begun| !**begun) else { return String::new() };
        *begun = true;
        let prompts = self.prompts.as_deref().unwrap_or_default();
        prompts.get(index / self.n.max(1)).cloned().unwrap_or_default()
    }

    fn whole(&mut self, index: usize, answer: Collected) -> Value {
        let reason = answer.finish.map(|finish| finish.reason.name());
        let text = self.beginning(index) + &answer.text;
        let tokens = [answer.prompt, answer.tokens].concat();
        self.choice(index, &text, &tokens, reason)
    }

    fn choice(&mut self, index: usize, text: &str, tokens: &[TokenDelta], reason: Option<&str>) -> Value {
        let logprobs = self.logprobs.then(|| self.logprobs_of(index, tokens));
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})
    }

    fn logprobs_of(&mut self, index: usize, tokens: &[TokenDelta]) -> Value {
        let mut offsets = Vec::with_capacity(tokens.len());
        if let Some(place) = self.places.get_mut(index) {
            offsets.extend(tokens.iter().map(|TokenDelta { token, .. }| place.pass(&token.bytes)));
        }
        let top = tokens.iter().map(|token| {
            // The token itself is always among them.
            let own = token.top.iter().all(|best| best.id != token.token.id).then_some(&token.token);
            let best = own.into_iter().chain(&token.top).map(|token| (spelled(token), json!(token.logprob)));
            // The first token of a prompt has no others beside it.
            token.token.logprob.map(|_| Value::Object(best.collect::<Map<_, _>>()))
        });
        json!({
            "tokens": tokens.iter().map(|token| spelled(&token.token)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| token.token.logprob).collect::<Vec<_>>(),
            "top_logprobs": top.collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

/// A token as the API writes it: its text, or `bytes:\xf0\x9f` where it is none by itself. Several at a place must not have one name.
fn spelled(token: &TokenText) -> String {
    match std::str::from_utf8(&token.bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => token.bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

/// How far the text of an answer is: characters, and the bytes of one that is not complete.
#[derive(Clone, Debug, Default)]
struct Place {
    characters: usize,
    begun: Vec<u8>,
}

impl Place {
    /// Where a token begins, whose end is the next place. Tokens that make a character together begin where that one does.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let start = self.characters;
        self.begun.extend_from_slice(bytes);
        let text = String::from_utf8_lossy(&self.begun);
        let open = match std::str::from_utf8(&self.begun) {
            Err(error) if error.error_len().is_none() => self.begun.len() - error.valid_up_to(),
            _ => 0,
        };
        // What is not complete yet is one replacement character.
        self.characters += text.chars().count() - usize::from(open > 0);
        self.begun.drain(..self.begun.len() - open);
        start
    }
}

/// The chunks of a stream.
struct CompletionEvents {
    writer: Writer,
    choices: Choices,
    done: bool,
}

impl CompletionEvents {
    fn write(&mut self, index: usize, deltas: Vec<Delta>) -> String {
        let mut out = String::new();
        if deltas.is_empty() {
            return out;
        }
        let (mut text, mut tokens, mut reason) = (self.writer.beginning(index), Vec::new(), None);
        for delta in deltas {
            match delta {
                Delta::Prompt(prompt) => tokens = prompt,
                Delta::Token(token) => tokens.push(token),
                Delta::Text(more) => text.push_str(&more),
                Delta::Finished(finish) => reason = Some(finish.reason.name()),
                // Plain text has neither thoughts nor calls.
                _ => {}
            }
        }
        let choice = self.writer.choice(index, &text, &tokens, reason);
        let usage = self.writer.streaming.running_usage.then(|| common::usage(self.choices.usage_of(index)));
        sse::push(&mut out, &self.writer.response(&[choice], usage));
        out
    }

    fn end(&mut self) -> String {
        self.done = true;
        let mut out = String::new();
        if self.writer.streaming.usage {
            let usage = Some(common::usage(self.choices.usage()));
            sse::push(&mut out, &self.writer.response(&[], usage));
        }
        out.push_str(DONE);
        out
    }
}

impl Events for CompletionEvents {
    async fn next(&mut self) -> Option<String> {
        while !self.done {
            let text = match self.choices.next().await {
                None => self.end(),
                Some(Ok((index, deltas))) => self.write(index, deltas),
                Some(Err(error)) => {
                    self.done = true;
                    let mut out = String::new();
                    sse::push(&mut out, &error.body());
                    out
                }
            };
            if !text.is_empty() {
                return Some(text);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_counted_where_they_are_complete() {
        let mut place = Place::default();
        let parts: [&[u8]; 5] = ["a ".as_bytes(), &[0xf0, 0x9f], &[0xa6, 0x84], b"b", &[0xff]];
        let starts = parts.map(|part| place.pass(part));
        assert_eq!((starts, place.characters), ([0, 2, 2, 3, 4], 5));
    }
}
