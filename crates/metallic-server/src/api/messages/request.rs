//! The fields of a request.

use std::sync::Arc;

use metallic::constrain::Format;
use metallic::text::ToolChoice;
use metallic::{Chat, Message};
use serde_json::{Map, Value, json};

use super::blocks::{read_cache_control, read_messages, read_system};
use super::output::Written;
use super::tools::{read_choice, read_tools};
use crate::api::chat::{mentions, template_variables, without_thoughts};
use crate::api::common::{EFFORTS, MOST_TOKENS, limit_tokens, read_options, read_stop};
use crate::api::turns::Turns;
use crate::error::ApiError;
use crate::fields::{Fields, as_number, excerpt};
use crate::models::Served;
use crate::server::Server;
use crate::task::{Input, Task};

/// What is asked for, and how the answer is to be written.
pub(super) struct MessageRequest {
    pub(super) task: Task,
    pub(super) stream: bool,
    pub(super) written: Written,
}

/// What the prompt is made of.
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    pub(super) tools: Vec<Value>,
    pub(super) choice: ToolChoice,
    parallel: bool,
    /// What the answer must be like, and the field that says so.
    format: Asked,
    thinking: Thinking,
    effort: Option<&'static str>,
    /// For the template.
    pub(super) variables: Map<String, Value>,
}

/// A form, and the field that asks for it.
type Asked = Option<(Format, String)>;

/// Whether a model is to think.
#[derive(Clone, Copy, Debug, Default)]
struct Thinking {
    /// `None`: as the model does by itself.
    on: Option<bool>,
    /// Whether thoughts are told.
    omitted: bool,
    /// Tokens that they are to have at most.
    budget: Option<usize>,
}

/// Where this API has what others have elsewhere.
pub(super) const PLACES: &[(&str, &str)] =
    &[("/response_format", "/output_config/format"), ("/reasoning_effort", "/output_config/effort")];

/// A conversation to answer.
pub(super) async fn read(
    mut fields: Fields,
    server: &Server,
) -> Result<(Arc<Served>, MessageRequest), ApiError> {
    let name = fields.required_string("model")?;
    let conversation = read_conversation(&mut fields)?;
    // Of this API, temperatures end earlier.
    if let Some(value) = fields.take("temperature") {
        let temperature = as_number(&value, "/temperature", 0.0..=1.0)?;
        fields.put("temperature", json!(temperature));
    }
    fields.refuse("stop", &[], "use `stop_sequences`")?;
    let stop = read_stop(&mut fields, "stop_sequences")?;
    let mut options = read_options(&mut fields, server.options())?.stop(stop);
    let most = fields.count("max_tokens", 1..=MOST_TOKENS)?.ok_or_else(|| fields.missing("max_tokens"))?;
    options.max_tokens = limit_tokens(Some(most), "/max_tokens", server.options())?;
    if let Some(budget) = conversation.thinking.budget.filter(|budget| *budget >= most) {
        let message = format!(
            "`/thinking/budget_tokens` is {budget}, it must be less than `max_tokens`, which is {most}"
        );
        return Err(ApiError::invalid("/thinking/budget_tokens", message));
    }
    let stream = fields.bool("stream")?.unwrap_or(false);
    if let Some(mut metadata) = fields.object("metadata")? {
        metadata.string("user_id")?;
        metadata.finish()?;
    }
    fields.one_of("service_tier", &["auto", "standard_only"])?;
    fields.refuse("container", &[], "this server runs no tools itself")?;
    fields.refuse("mcp_servers", &[json!([])], "this server runs no tools itself")?;
    fields.refuse("diagnostics", &[], "`usage` tells what was found in the cache")?;
    fields.refuse("inference_geo", &[], "answers are computed where this server is")?;
    let written = Written { omit_thoughts: conversation.thinking.omitted };
    let (model, conversation) = complete(fields, &name, conversation, server).await?;
    let Conversation { messages, tools, choice, parallel, format, variables, .. } = conversation;
    let chat = Chat::new(messages).variables(variables);
    let mut task = Task::new(Input::Chat(chat), "/messages", options);
    (task.tools, task.tool_choice, task.parallel_calls, task.format) = (tools, choice, parallel, format);
    Ok((model, MessageRequest { task, stream, written }))
}

/// A conversation whose tokens are counted.
pub(super) async fn read_counted(
    mut fields: Fields,
    server: &Server,
) -> Result<(Arc<Served>, Conversation), ApiError> {
    let name = fields.required_string("model")?;
    let conversation = read_conversation(&mut fields)?;
    complete(fields, &name, conversation, server).await
}

fn read_conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    // First: the messages of one that goes on are no conversation by themselves.
    read_thread(fields)?;
    let mut turns = Turns::default().merging_users();
    read_system(fields, &mut turns)?;
    read_messages(fields, &mut turns)?;
    read_cache_control(fields)?;
    read_context_management(fields)?;
    fields.refuse("speed", &[json!("standard")], "every answer comes as fast as it can")?;
    fields.refuse("user_profile_id", &[], "no users are known here; `metadata` may have an id")?;
    let tools = read_tools(fields)?;
    let (choice, parallel) = read_choice(fields, &tools)?;
    let thinking = read_thinking(fields)?;
    let (format, effort) = read_output(fields)?;
    let (messages, variables) = (turns.finish(), Map::new());
    Ok(Conversation { messages, tools, choice, parallel, format, thinking, effort, variables })
}

/// What is to be left out of a conversation: nothing ever is, so an edit that keeps everything holds.
fn read_context_management(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut management) = fields.object("context_management")? else { return Ok(()) };
    for (at, edit) in management.list("edits")?.into_iter().flatten() {
        let mut edit = Fields::of(edit, &at)?;
        let kind = edit.required_string("type")?;
        if kind != "clear_thinking_20251015" || edit.take("keep") != Some(json!("all")) {
            let message = format!("`{at}` is not supported: nothing is left out of a conversation");
            return Err(ApiError::unsupported(at, message));
        }
        edit.finish()?;
    }
    management.finish()
}

/// A thread may be begun, and none is kept: who goes on with one is told so in the way that has clients send everything again.
fn read_thread(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut thread) = fields.object("thread")? else { return Ok(()) };
    let kind = thread.one_of("type", &["create", "continue"])?.ok_or_else(|| thread.missing("type"))?;
    if kind == "continue" {
        let id = thread.required_string("previous_message_id")?;
        return Err(ApiError::NoThread { id: excerpt(&id).to_owned() });
    }
    thread.finish()
}

/// Reads what depends on the model, once it is there.
async fn complete(
    mut fields: Fields,
    name: &str,
    mut conversation: Conversation,
    server: &Server,
) -> Result<(Arc<Served>, Conversation), ApiError> {
    let given = fields.object("chat_template_kwargs")?;
    fields.finish()?;
    let model = server.models().get(name).await?;
    // A hint here, which clients send to every model: one that does not think has none to take.
    let thinks = model.llm.reasoning().is_some();
    let mut variables = template_variables(&model, conversation.effort.filter(|_| thinks), given)?;
    if let Some(on) = conversation.thinking.on {
        think(&model, on, &mut variables)?;
    }
    if conversation.format.is_some() {
        without_thoughts(&model, &mut variables);
    }
    conversation.variables = variables;
    Ok((model, conversation))
}

fn read_thinking(fields: &mut Fields) -> Result<Thinking, ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(Thinking::default()) };
    let kinds = &["enabled", "adaptive", "disabled"];
    let kind = thinking.one_of("type", kinds)?.ok_or_else(|| thinking.missing("type"))?;
    // Adaptive: whether a model thinks is up to it.
    let on = (kind != "adaptive").then_some(kind == "enabled");
    let mut read = Thinking { on, ..Thinking::default() };
    if kind == "enabled" {
        let budget = thinking.count("budget_tokens", 1024..=MOST_TOKENS)?;
        read.budget = Some(budget.ok_or_else(|| thinking.missing("budget_tokens"))?);
    }
    if kind != "disabled" {
        let display = thinking.one_of("display", &["summarized", "omitted"])?;
        read.omitted = display == Some("omitted");
    }
    thinking.finish()?;
    Ok(read)
}

/// Has the template ask the model for thoughts, or for none.
fn think(model: &Served, on: bool, variables: &mut Map<String, Value>) -> Result<(), ApiError> {
    let source = model.llm.template().map(metallic::ChatTemplate::source).unwrap_or_default();
    let thinks = model.llm.reasoning().is_some();
    if thinks && mentions(source, "enable_thinking") {
        variables.insert("enable_thinking".into(), json!(on));
    } else if thinks != on {
        let message = if on {
            "`/thinking` is not supported: the model does not think aloud"
        } else {
            "`/thinking/type` is `disabled`, which is not supported: the model always thinks aloud"
        };
        return Err(ApiError::unsupported("/thinking", message));
    }
    Ok(())
}

/// `output_config`: what the answer must be like, and how much is to be thought about it.
fn read_output(fields: &mut Fields) -> Result<(Asked, Option<&'static str>), ApiError> {
    // What it was called before.
    let old = fields.object("output_format")?.map(read_format).transpose()?;
    let Some(mut config) = fields.object("output_config")? else { return Ok((old, None)) };
    let effort = config.one_of("effort", EFFORTS)?;
    let new = config.object("format")?.map(read_format).transpose()?;
    config.finish()?;
    if old.is_some() && new.is_some() {
        let message = "an answer has one form: give one of `output_config` and `output_format`";
        return Err(ApiError::invalid("/output_format", message));
    }
    Ok((new.or(old), effort))
}

fn read_format(mut format: Fields) -> Result<(Format, String), ApiError> {
    format.one_of("type", &["json_schema"])?.ok_or_else(|| format.missing("type"))?;
    let (schema, pointer) = (format.required("schema")?, format.pointer("schema"));
    format.finish()?;
    Ok((Format::JsonSchema(schema), pointer))
}
