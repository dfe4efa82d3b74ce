//! The fields of a request for an answer to a conversation.

use std::sync::Arc;

use metallic::Chat;
use metallic::constrain::Format;
use serde_json::{Map, Value, json};

use super::messages::read_messages;
use super::tools::{names_one, read_choice, read_tools};
use crate::api::common::{
    EFFORTS, MOST_TOKENS, Streaming, limit_tokens, read_formalities, read_options, read_streaming,
    refuse_what_is_elsewhere,
};
use crate::error::ApiError;
use crate::fields::{Fields, child};
use crate::models::Served;
use crate::server::Server;
use crate::task::{Input, Task};

/// A conversation to answer, and how the answer is to be written.
pub(super) struct ChatRequest {
    pub(super) task: Task,
    pub(super) streaming: Streaming,
    /// Whether log-probabilities are part of the answer.
    pub(super) logprobs: bool,
}

/// Most log-probabilities at a place.
const TOP_LOGPROBS: usize = 20;

pub(super) async fn read(
    mut fields: Fields,
    server: &Server,
) -> Result<(Arc<Served>, ChatRequest), ApiError> {
    let name = fields.required_string("model")?;
    let mut request = read_fields(&mut fields, server)?;
    let (effort, variables) = (read_effort(&mut fields)?, fields.object("chat_template_kwargs")?);
    fields.finish()?;
    // What the template takes depends on the model.
    let model = server.models().get(&name).await?;
    let mut variables = template_variables(&model, effort, variables)?;
    if request.task.format.is_some() {
        without_thoughts(&model, &mut variables);
    }
    if let Input::Chat(chat) = &mut request.task.input {
        chat.variables = variables;
    }
    Ok((model, request))
}

fn read_fields(fields: &mut Fields, server: &Server) -> Result<ChatRequest, ApiError> {
    let messages = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    let chat = Chat::new(read_messages(messages, "/messages")?);
    let mut options = read_options(fields, server.options())?;
    options.max_tokens = read_max_tokens(fields, server)?;
    let logprobs = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=TOP_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        let message = "`/top_logprobs` needs `logprobs` to be true";
        return Err(ApiError::invalid("/top_logprobs", message));
    }
    options.logprobs = logprobs.then(|| top.unwrap_or(0));
    let mut task = Task::new(Input::Chat(chat), "/messages", options);
    task.n = fields.count("n", 1..=server.options().limits.choices)?.unwrap_or(1);
    task.format = read_format(fields)?;
    let tools = read_tools(fields)?;
    (task.tool_choice, task.tools) = read_choice(fields, tools)?;
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    task.parallel_calls = parallel && !names_one(&task.tool_choice);
    let streaming = read_streaming(fields)?;
    read_formalities(fields)?;
    refuse_what_is_not_here(fields)?;
    Ok(ChatRequest { task, streaming, logprobs })
}

/// `max_completion_tokens`, or `max_tokens` as it was called before.
fn read_max_tokens(fields: &mut Fields, server: &Server) -> Result<Option<usize>, ApiError> {
    let old = fields.count("max_tokens", 1..=MOST_TOKENS)?;
    let new = fields.count("max_completion_tokens", 1..=MOST_TOKENS)?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let message = format!("`max_tokens` is {old} and `max_completion_tokens` is {new}; give one of them");
        return Err(ApiError::invalid("/max_tokens", message));
    }
    let pointer = if new.is_some() { "/max_completion_tokens" } else { "/max_tokens" };
    limit_tokens(new.or(old), pointer, server.options())
}

/// `response_format`, or one of our own: `regex` and `grammar`. One of them.
fn read_format(fields: &mut Fields) -> Result<Option<(Format, String)>, ApiError> {
    let mut formats = Vec::new();
    if let Some(format) = fields.object("response_format")? {
        formats.extend(read_response_format(format)?);
    }
    formats.extend(fields.string("regex")?.map(|regex| (Format::Regex(regex), "/regex".to_owned())));
    formats.extend(fields.string("grammar")?.map(|grammar| (Format::Lark(grammar), "/grammar".to_owned())));
    if formats.len() > 1 {
        let message = "an answer has one form: give one of `response_format`, `regex` and `grammar`";
        return Err(ApiError::invalid("/response_format", message));
    }
    Ok(formats.pop())
}

fn read_response_format(mut fields: Fields) -> Result<Option<(Format, String)>, ApiError> {
    let kind = fields.one_of("type", &["text", "json_object", "json_schema"])?;
    let pointer = fields.pointer("json_schema");
    let format = match kind.ok_or_else(|| fields.missing("type"))? {
        "json_schema" => {
            let mut inner = fields.object("json_schema")?.ok_or_else(|| fields.missing("json_schema"))?;
            inner.required_string("name")?;
            inner.string("description")?;
            // A schema is kept to either way.
            inner.bool("strict")?;
            let schema = inner.required("schema")?;
            inner.finish()?;
            Some((Format::JsonSchema(schema), child(&pointer, "schema")))
        }
        // Other servers' way of asking for a schema.
        "json_object" => Some(match fields.take("schema") {
            Some(schema) => (Format::JsonSchema(schema), fields.pointer("schema")),
            None => (Format::JsonObject, "/response_format".to_owned()),
        }),
        _ => None,
    };
    fields.finish()?;
    Ok(format)
}

/// How much a model is to think.
fn read_effort(fields: &mut Fields) -> Result<Option<&'static str>, ApiError> {
    fields.one_of("reasoning_effort", EFFORTS)
}

/// Variables for the template; those it does not know are refused.
pub(crate) fn template_variables(
    model: &Served,
    effort: Option<&'static str>,
    given: Option<Fields>,
) -> Result<Map<String, Value>, ApiError> {
    let source = model.llm.template().map(metallic::ChatTemplate::source).unwrap_or_default();
    let mut variables = Map::new();
    for (name, value) in given.map(Fields::rest).unwrap_or_default() {
        let pointer = child("/chat_template_kwargs", &name);
        let taken = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
        if taken.contains(&name.as_str()) || !mentions(source, &name) {
            let message = format!("`{pointer:.200}` is no variable that the model's chat template takes");
            return Err(ApiError::unsupported(pointer, message));
        }
        variables.insert(name, value);
    }
    match effort {
        None => {}
        Some(effort) if mentions(source, "reasoning_effort") => {
            variables.insert("reasoning_effort".into(), json!(effort));
        }
        Some(effort) if mentions(source, "enable_thinking") => {
            variables.insert("enable_thinking".into(), json!(effort != "none"));
        }
        // A model that does not think aloud does as it is told.
        Some("none") if model.llm.reasoning().is_none() => {}
        Some(_) => {
            let message =
                "`/reasoning_effort` is not supported: the model's chat template has no place for it";
            return Err(ApiError::unsupported("/reasoning_effort", message));
        }
    }
    Ok(variables)
}

/// An answer that has a form is no place for thoughts, unless they were asked for.
pub(crate) fn without_thoughts(model: &Served, variables: &mut Map<String, Value>) {
    let source = model.llm.template().map(metallic::ChatTemplate::source).unwrap_or_default();
    if mentions(source, "enable_thinking") {
        variables.entry("enable_thinking").or_insert(json!(false));
    }
}

/// Whether `name` stands in the template as a word.
pub(crate) fn mentions(source: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !name.is_empty()
        && source.match_indices(name).any(|(at, _)| {
            let before = source[..at].chars().next_back();
            let after = source[at + name.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// Fields of the API that this server has no answer to.
fn refuse_what_is_not_here(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("functions", &[], "use `tools`")?;
    fields.refuse("function_call", &[], "use `tool_choice`")?;
    fields.refuse("modalities", &[json!(["text"])], "answers are text")?;
    fields.refuse("audio", &[], "answers are text")?;
    fields.refuse("prediction", &[], "speculation needs no hints here")?;
    fields.refuse("web_search_options", &[], "this server does not search")?;
    fields.refuse("verbosity", &[json!("medium")], "ask for it in the messages")?;
    refuse_what_is_elsewhere(fields)
}
