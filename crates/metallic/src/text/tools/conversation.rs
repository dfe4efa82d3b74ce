//! Conversations with tools, as a template can write them.

use serde_json::{Map, Value, json};

use super::super::template::ChatTemplate;
use super::super::{Message, TextError};
use super::habits::{self, CallHabit, Definitions};
use super::schema;
use super::write::spaced;
use super::{ToolFormat, families};

/// What tells a model of its tools where the chat template does not: calls are asked for as Hermes writes them.
pub fn system_prompt(tools: &[Value]) -> String {
    prompt(families::prompted(), tools)
}

fn prompt(family: &families::Family, tools: &[Value]) -> String {
    let mut arguments = Map::new();
    arguments.insert("argument-name".into(), "argument-value".into());
    let example = super::write::calls(family, &[("function-name".to_owned(), arguments)]);
    let tools: Vec<String> = tools.iter().map(spaced).collect();
    format!(
        "You may call one or more functions to assist with the user query.\n\n\
         You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\n\
         To call a function, answer with its name and arguments in exactly this form:\n{example}",
        tools.join("\n")
    )
}

impl ToolFormat {
    /// [`system_prompt`] for calls in this format.
    pub fn system_prompt(&self, tools: &[Value]) -> String {
        prompt(self.family, tools)
    }
}

/// The text of a conversation, up to where the answer begins.
///
/// Nothing of tools is left out: where the template does not write definitions, calls or results, they are put into messages that
/// it does write.
pub(crate) fn render(
    template: &ChatTemplate,
    format: Option<&ToolFormat>,
    messages: &[Message],
    tools: &[Value],
    variables: &Map<String, Value>,
) -> Result<String, TextError> {
    let mut messages: Vec<Message> = messages.iter().map(flattened).collect();
    if tools.is_empty() && !messages.iter().any(speaks_of_tools) {
        return template.render_values(&messages, None, true, variables);
    }
    let habits = *habits::of(template);
    let family = format.map_or(families::prompted(), |format| format.family);
    for message in &mut messages {
        read_arguments(message)?;
    }
    name_results(&mut messages);
    match habits.calls {
        Some(habit) => suit(&mut messages, habit),
        None => messages.iter_mut().for_each(|message| calls_as_content(message, family)),
    }
    if template.source().contains("length 9") {
        messages.iter_mut().for_each(shorten_ids);
    }
    if !habits.results {
        messages = results_as_messages(messages);
    }
    let mut variables = variables.clone();
    let mut list = Some(Value::from(tools.to_vec())).filter(|_| !tools.is_empty());
    if list.is_some() && habits.definitions == Definitions::Functions {
        for (key, value) in habits::functions(tools) {
            variables.entry(key).or_insert(value);
        }
    }
    if list.is_none() || habits.definitions != Definitions::Nowhere {
        return template.render_values(&messages, list.as_ref(), true, &variables);
    }
    // Templates that write calls may ask whether there are tools; others need not hear of them twice.
    if habits.calls.is_none() {
        list = None;
    }
    let prompt = prompt(family, tools);
    let with_system = put_first(&messages, "system", &prompt);
    match template.render_values(&with_system, list.as_ref(), true, &variables) {
        // A template that knows no system message: the first of the user has the prompt.
        Err(TextError::TemplateRaised { .. }) if !messages.iter().any(|m| m.role == "system") => {
            let messages = put_first(&messages, "user", &prompt);
            template.render_values(&messages, list.as_ref(), true, &variables)
        }
        Ok(text) if !text.contains(&prompt) => Err(TextError::Tools {
            reason: "the chat template writes neither tools nor system messages".to_owned(),
        }),
        result => result,
    }
}

fn speaks_of_tools(message: &Message) -> bool {
    message.role == "tool" || !calls_of(message).is_empty()
}

fn calls_of(message: &Message) -> &[Value] {
    message.extra.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A message whose content is text, where it is a list of nothing but texts.
fn flattened(message: &Message) -> Message {
    let mut message = message.clone();
    if let Some(Value::Array(parts)) = &message.content {
        let text = |part: &Value| match part {
            Value::String(text) => Some(text.clone()),
            part => part.get("text").and_then(Value::as_str).map(str::to_owned),
        };
        let texts: Option<Vec<String>> = parts.iter().map(text).collect();
        if let Some(texts) = texts {
            message.content = Some(texts.join("\n").into());
        }
    }
    message
}

/// What arguments are called that are no JSON object: models write such too, and clients send back what was written.
const RAW_ARGUMENTS: &str = "raw";

/// Makes the arguments of calls objects, which most templates want; clients send them as JSON text.
fn read_arguments(message: &mut Message) -> Result<(), TextError> {
    let Some(Value::Array(calls)) = message.extra.get_mut("tool_calls") else { return Ok(()) };
    for (i, call) in calls.iter_mut().enumerate() {
        if let Value::Object(call) = call {
            call.entry("type").or_insert_with(|| "function".into());
            call.entry("id").or_insert_with(|| format!("call{i:05}").into());
        }
        let function =
            if call.get("function").is_some_and(Value::is_object) { &mut call["function"] } else { call };
        let name = function.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
        let Value::Object(function) = function else { continue };
        let arguments = function.entry("arguments").or_insert_with(|| json!({}));
        let read = match &*arguments {
            Value::String(text) => read_text(text),
            Value::Null => json!({}),
            Value::Object(_) => continue,
            // Without what they say: errors go into logs.
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                let reason = format!(
                    "the arguments of a call of `{name:.80}` are neither text nor a JSON object, needed: one of them"
                );
                return Err(TextError::Tools { reason });
            }
        };
        *arguments = read;
    }
    Ok(())
}

/// The object that is written in a text, or one that has the text.
fn read_text(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => object,
        Ok(Value::Null) => json!({}),
        _ if text.trim().is_empty() => json!({}),
        _ => json!({RAW_ARGUMENTS: text}),
    }
}

/// Gives results the names of the tools they come from: some templates write them, and clients leave them out.
fn name_results(messages: &mut [Message]) {
    let mut names: Map<String, Value> = Map::new();
    for message in messages {
        for call in calls_of(message) {
            if let (Some(id), Some(name)) = (call.get("id").and_then(Value::as_str), schema::name(call)) {
                names.insert(id.to_owned(), name.into());
            }
        }
        if message.role == "tool" && !message.extra.contains_key("name") {
            let id = message.extra.get("tool_call_id").and_then(Value::as_str);
            if let Some(name) = id.and_then(|id| names.get(id)) {
                message.extra.insert("name".into(), name.clone());
            }
        }
    }
}

/// Gives messages with calls the form that the template wants.
fn suit(messages: &mut Vec<Message>, habit: CallHabit) {
    if !habit.several {
        *messages = one_call_each(std::mem::take(messages));
    }
    for message in messages {
        if calls_of(message).is_empty() {
            continue;
        }
        let is_empty = match &message.content {
            None | Some(Value::Null) => true,
            Some(content) => content.as_str() == Some(""),
        };
        if is_empty {
            message.content = Some(if habit.null_content { Value::Null } else { "".into() });
        }
        if let Some(Value::Array(calls)) =
            message.extra.get_mut("tool_calls").filter(|_| habit.text_arguments)
        {
            for call in calls {
                let function = if call.get("function").is_some() { &mut call["function"] } else { call };
                if let Some(arguments) = function.get_mut("arguments") {
                    *arguments = spaced(arguments).into();
                }
            }
        }
    }
}

/// A message for each call, followed by its result.
fn one_call_each(messages: Vec<Message>) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::new();
    let mut messages = messages.into_iter().peekable();
    while let Some(message) = messages.next() {
        let calls = calls_of(&message).to_vec();
        if calls.len() < 2 {
            out.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = messages.next_if(|next| next.role == "tool") {
            results.push(result);
        }
        for (i, call) in calls.iter().enumerate() {
            let mut one = message.clone();
            one.extra.insert("tool_calls".into(), vec![call.clone()].into());
            if i > 0 {
                one.content = Some("".into());
                one.extra.retain(|key, _| key == "tool_calls");
            }
            out.push(one);
            let of_call = |result: &Message| result.extra.get("tool_call_id") == call.get("id");
            let at = results.iter().position(of_call).or((!results.is_empty()).then_some(0));
            out.extend(at.map(|at| results.remove(at)));
        }
        out.extend(results);
    }
    out
}

/// Writes calls into the content, for templates that know nothing of them.
fn calls_as_content(message: &mut Message, family: &families::Family) {
    let Some(Value::Array(calls)) = message.extra.remove("tool_calls") else { return };
    let calls: Vec<(String, Map<String, Value>)> = calls
        .iter()
        .map(|call| {
            let function = call.get("function").unwrap_or(call);
            let name = schema::name(call).unwrap_or("").to_owned();
            (name, function.get("arguments").and_then(Value::as_object).cloned().unwrap_or_default())
        })
        .collect();
    let text = message.content.as_ref().and_then(Value::as_str).unwrap_or("");
    if !calls.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        message.content = Some(format!("{text}{gap}{}", super::write::calls(family, &calls)).into());
    }
}

/// Results as messages of the user, for templates that know no role `tool`. Those that follow each other become one message: roles
/// have to alternate in some templates.
fn results_as_messages(messages: Vec<Message>) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::new();
    let mut after_result = false;
    for message in messages {
        let is_result = message.role == "tool";
        let content = match &message.content {
            Some(Value::String(text)) => text.clone(),
            Some(value) if !value.is_null() => spaced(value),
            _ => String::new(),
        };
        let text = if is_result { format!("<tool_response>\n{content}\n</tool_response>") } else { content };
        match out.last_mut() {
            Some(Message { content: Some(Value::String(last)), .. })
                if after_result && (is_result || message.role == "user") =>
            {
                last.push('\n');
                last.push_str(&text);
            }
            _ if is_result => out.push(Message::user(text)),
            _ => out.push(message),
        }
        after_result = is_result;
    }
    out
}

/// Puts a text at the beginning of the first message of a role, which is made if the conversation does not begin with it.
fn put_first(messages: &[Message], role: &str, text: &str) -> Vec<Message> {
    let mut messages = messages.to_vec();
    match messages.first_mut().filter(|first| first.role == role) {
        Some(first) => {
            let own = first.content.as_ref().and_then(Value::as_str).unwrap_or("").to_owned();
            let own = if own.is_empty() { own } else { format!("{own}\n\n") };
            let whole = if role == "system" { format!("{own}{text}") } else { format!("{text}\n\n{own}") };
            first.content = Some(whole.trim_end().into());
        }
        None => messages.insert(0, Message::new(role, text)),
    }
    messages
}

/// Ids of nine letters and digits, which Mistral's templates insist on.
fn shorten_ids(message: &mut Message) {
    let short = |id: &mut Value| {
        if let Value::String(text) = id
            && (text.len() != 9 || !text.chars().all(|c| c.is_ascii_alphanumeric()))
        {
            // FNV-1a: the same id becomes the same short one in calls and results.
            let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            *text = format!("{:09x}", hash & 0xF_FFFF_FFFF);
        }
    };
    if let Some(Value::Array(calls)) = message.extra.get_mut("tool_calls") {
        calls.iter_mut().filter_map(|call| call.get_mut("id")).for_each(short);
    }
    message.extra.get_mut("tool_call_id").map(short);
}
