//! The fields of a request for a response.

use std::sync::Arc;

use metallic::constrain::Format;
use metallic::{Chat, Options};
use serde_json::{Map, Value, json};

use super::items::{conversation, read_input, resolve};
use super::output::Written;
use super::tools::{read_choice, read_tools};
use crate::api::chat::{names_one, template_variables, without_thoughts};
use crate::api::common::{
    EFFORTS, MOST_TOKENS, TIER, limit_tokens, read_formalities, read_options, refuse_what_is_elsewhere,
};
use crate::error::ApiError;
use crate::fields::{Fields, as_string, child, excerpt};
use crate::http::fresh_id;
use crate::models::{Served, unix_time};
use crate::server::Server;
use crate::task::{Input, Task};

/// What is asked for, and how the answer is to be written.
pub(super) struct ResponseRequest {
    pub(super) task: Task,
    pub(super) stream: bool,
    pub(super) written: Written,
    /// What the response repeats of the request.
    pub(super) echo: Value,
    /// Everything that was said before the answer, where it is to be kept.
    pub(super) items: Option<Vec<Value>>,
}

/// Where this API has what others have elsewhere.
pub(super) const PLACES: &[(&str, &str)] = &[
    ("/response_format", "/text/format"),
    ("/reasoning_effort", "/reasoning/effort"),
    ("/max_tokens", "/max_output_tokens"),
];

/// Most log-probabilities at a place.
const TOP_LOGPROBS: usize = 20;
/// Most entries of `metadata`, and most characters of their names and values.
const METADATA: (usize, usize, usize) = (16, 64, 512);

pub(super) async fn read(
    mut fields: Fields,
    server: &Server,
    key: Option<usize>,
) -> Result<(Arc<Served>, ResponseRequest), ApiError> {
    let name = fields.required_string("model")?;
    let mut request = read_fields(&mut fields, server, key)?;
    let effort = read_effort(&mut fields, &mut request.echo)?;
    let variables = fields.object("chat_template_kwargs")?;
    fields.finish()?;
    let model = server.models().get(&name).await?;
    request.echo["model"] = json!(model.name);
    let mut variables = template_variables(&model, effort, variables)?;
    if request.task.format.is_some() {
        without_thoughts(&model, &mut variables);
    }
    if let Input::Chat(chat) = &mut request.task.input {
        chat.variables = variables;
    }
    Ok((model, request))
}

fn read_fields(
    fields: &mut Fields,
    server: &Server,
    key: Option<usize>,
) -> Result<ResponseRequest, ApiError> {
    let limits = &server.options().limits;
    let mut input = read_input(fields)?;
    resolve(&mut input, server.responses(), key)?;
    let instructions = fields.string("instructions")?;
    let previous = fields.string("previous_response_id")?;
    let mut before = match &previous {
        Some(id) => before(server, id, key)?,
        None => Vec::new(),
    };
    let messages = conversation(instructions.as_deref(), &before, &input)?;
    let mut options = read_options(fields, server.options())?;
    let asked = fields.count("max_output_tokens", 1..=MOST_TOKENS)?;
    options.max_tokens = limit_tokens(asked, "/max_output_tokens", server.options())?;
    let (written, top_logprobs) = read_written(fields, &mut options)?;
    let (tools, echoed_tools) = read_tools(fields)?;
    let (choice, tools, echoed_choice) = read_choice(fields, tools)?;
    let (format, text) = read_text(fields)?;
    let metadata = read_metadata(fields)?;
    // What nobody could keep is not promised.
    let can_store = limits.stored_responses > 0;
    let pointer = fields.pointer("store");
    let store = match fields.bool("store")? {
        Some(true) if !can_store => {
            return Err(ApiError::unsupported(&pointer, format!("`{pointer}`: this server keeps nothing")));
        }
        asked => asked.unwrap_or(can_store),
    };
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let stream = read_stream(fields)?;
    let mut echo = json!({
        "id": fresh_id("resp_"),
        "object": "response",
        "created_at": unix_time(),
        "status": "in_progress",
        "background": false,
        "completed_at": null,
        "error": null,
        "frequency_penalty": short(options.sampling.frequency_penalty),
        "incomplete_details": null,
        "instructions": instructions,
        "max_output_tokens": asked,
        "max_tool_calls": null,
        "model": null,
        "output": [],
        "parallel_tool_calls": parallel,
        "presence_penalty": short(options.sampling.presence_penalty),
        "previous_response_id": previous,
        "reasoning": {"effort": null, "summary": null},
        "service_tier": TIER,
        "store": store,
        "temperature": short(options.sampling.temperature),
        "text": text,
        "tool_choice": echoed_choice,
        "tools": echoed_tools,
        "top_logprobs": top_logprobs.unwrap_or(0),
        "top_p": short(options.sampling.top_p),
        "truncation": "disabled",
        "usage": null,
        "metadata": metadata,
    });
    read_names(fields, &mut echo)?;
    // What clients note about themselves.
    if let Some(metadata) = fields.object("client_metadata")? {
        for (name, value) in metadata.rest() {
            as_string(value, &child("/client_metadata", excerpt(&name)))?;
        }
    }
    refuse_what_is_not_here(fields)?;
    let mut task = Task::new(Input::Chat(Chat::new(messages)), "/input", options);
    (task.tools, task.parallel_calls, task.format) = (tools, parallel && !names_one(&choice), format);
    task.tool_choice = choice;
    before.extend(input);
    Ok(ResponseRequest { task, stream, written, echo, items: store.then_some(before) })
}

/// A number with as many digits as it was given with.
fn short(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, |number| json!(number))
}

/// What was said up to the response that this one follows.
fn before(server: &Server, id: &str, key: Option<usize>) -> Result<Vec<Value>, ApiError> {
    match server.responses().get(id, key) {
        Some(stored) => Ok(stored.items()),
        None => Err(ApiError::Field {
            pointer: "/previous_response_id".into(),
            message: format!("there is no response `{id:.100}` here, or not any more"),
            code: "previous_response_not_found",
        }),
    }
}

/// `include` and `top_logprobs`: what the answer has besides its text.
fn read_written(fields: &mut Fields, options: &mut Options) -> Result<(Written, Option<usize>), ApiError> {
    let mut written = Written::default();
    for (at, value) in fields.list("include")?.unwrap_or_default() {
        match as_string(value, &at)?.as_str() {
            "message.output_text.logprobs" => written.logprobs = true,
            "reasoning.encrypted_content" => written.sealed = true,
            other => {
                let message =
                    format!("`{at}` is `{other:.60}`, which is not supported: there is no such output here");
                return Err(ApiError::unsupported(at, message));
            }
        }
    }
    let top = fields.count("top_logprobs", 0..=TOP_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !written.logprobs {
        let message = "`/top_logprobs` needs `message.output_text.logprobs` in `include`";
        return Err(ApiError::invalid("/top_logprobs", message));
    }
    options.logprobs = written.logprobs.then(|| top.unwrap_or(0));
    Ok((written, top))
}

/// What the answer must be like, and the field that says so.
type Asked = Option<(Format, String)>;

/// `text`: what the answer must be like, and that as the response repeats it.
fn read_text(fields: &mut Fields) -> Result<(Asked, Value), ApiError> {
    let plain = json!({"format": {"type": "text"}, "verbosity": "medium"});
    let Some(mut text) = fields.object("text")? else { return Ok((None, plain)) };
    text.refuse("verbosity", &[json!("medium")], "ask for it in the instructions")?;
    let (format, echo) = match text.object("format")? {
        Some(format) => read_format(format)?,
        None => (None, plain["format"].clone()),
    };
    text.finish()?;
    Ok((format, json!({"format": echo, "verbosity": "medium"})))
}

fn read_format(mut fields: Fields) -> Result<(Asked, Value), ApiError> {
    let kind = fields.one_of("type", &["text", "json_object", "json_schema"])?;
    let kind = kind.ok_or_else(|| fields.missing("type"))?;
    let mut echo = json!({"type": kind});
    let format = match kind {
        "json_schema" => {
            echo["name"] = json!(fields.required_string("name")?);
            echo["description"] = json!(fields.string("description")?);
            // A schema is kept to either way.
            echo["strict"] = json!(fields.bool("strict")?.unwrap_or(true));
            let schema = fields.required("schema")?;
            echo["schema"] = schema.clone();
            Some((Format::JsonSchema(schema), fields.pointer("schema")))
        }
        "json_object" => Some((Format::JsonObject, "/text/format".to_owned())),
        _ => None,
    };
    fields.finish()?;
    Ok((format, echo))
}

/// `reasoning`: how much a model is to think.
fn read_effort(fields: &mut Fields, echo: &mut Value) -> Result<Option<&'static str>, ApiError> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(None) };
    let effort = reasoning.one_of("effort", EFFORTS)?;
    let why = "thoughts are told as they are, not in summary";
    let summary = reasoning.string("summary")?;
    if let Some(summary) = summary.as_deref().filter(|summary| *summary != "auto") {
        let message = format!("`/reasoning/summary` is `{summary:.40}`, which is not supported: {why}");
        return Err(ApiError::unsupported("/reasoning/summary", message));
    }
    reasoning.refuse("generate_summary", &[], why)?;
    reasoning.finish()?;
    echo["reasoning"] = json!({"effort": effort, "summary": summary});
    Ok(effort)
}

fn read_metadata(fields: &mut Fields) -> Result<Value, ApiError> {
    let Some(metadata) = fields.object("metadata")? else { return Ok(json!({})) };
    let ((most, name_limit, value_limit), entries) = (METADATA, metadata.rest());
    if entries.len() > most {
        let message = format!("`/metadata` has {} entries, at most {most} are allowed", entries.len());
        return Err(ApiError::invalid("/metadata", message));
    }
    let read = entries.into_iter().map(|(name, value)| {
        let at = child("/metadata", &name);
        let text = as_string(value, &at)?;
        if name.chars().count() > name_limit || text.chars().count() > value_limit {
            let message = format!(
                "`{at:.200}` is too long: names have at most {name_limit} characters, values {value_limit}"
            );
            return Err(ApiError::invalid(at, message));
        }
        Ok((name, Value::String(text)))
    });
    Ok(Value::Object(read.collect::<Result<Map<_, _>, _>>()?))
}

/// Who asks and for whom, which the response repeats.
fn read_names(fields: &mut Fields, echo: &mut Value) -> Result<(), ApiError> {
    for name in ["user", "safety_identifier", "prompt_cache_key"] {
        echo[name] = json!(fields.string(name)?);
    }
    read_formalities(fields)
}

fn read_stream(fields: &mut Fields) -> Result<bool, ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        options.refuse("include_obfuscation", &[json!(false)], "streams are as long as their text")?;
        options.finish()?;
        if !stream {
            let message = "`/stream_options` is for streams: set `stream` to true, or leave it out";
            return Err(ApiError::invalid("/stream_options", message));
        }
    }
    Ok(stream)
}

/// Fields of the API that this server has no answer to.
fn refuse_what_is_not_here(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("background", &[json!(false)], "responses are made while the client waits")?;
    fields.refuse("conversation", &[], "use `previous_response_id`, or send the items")?;
    fields.refuse("max_tool_calls", &[], "this server calls no tools itself")?;
    fields.refuse("prompt", &[], "no prompts are kept here")?;
    fields.refuse("access_programs", &[], "there are none here")?;
    fields.refuse("context_management", &[json!([])], "nothing is left out of a conversation")?;
    fields.refuse("image", &[], "answers are text")?;
    refuse_what_is_elsewhere(fields)?;
    fields.refuse("truncation", &[json!("disabled")], "nothing is left out of a conversation")
}
