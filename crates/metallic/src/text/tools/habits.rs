//! What a chat template does with tools, found out by trying.

use serde_json::{Map, Value, json};

use super::super::TextError;
use super::super::template::ChatTemplate;

/// Where a template looks for definitions of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum Definitions {
    /// In the variable `tools`.
    Tools,
    /// In the variable `functions`, as JSON text.
    Functions,
    /// Nowhere.
    Nowhere,
}

/// How a template wants messages with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) struct CallHabit {
    /// Content is null beside calls; else an empty text.
    pub(super) null_content: bool,
    /// Arguments are JSON text; else objects.
    pub(super) text_arguments: bool,
    /// All calls of a message are written, not just the first.
    pub(super) several: bool,
}

/// What a template does with tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) struct Habits {
    pub(super) definitions: Definitions,
    /// `None` where calls of the assistant are left out.
    pub(super) calls: Option<CallHabit>,
    /// Messages of the role `tool` are written.
    pub(super) results: bool,
}

const NAME: &str = "probe_of_tools";
const SECOND: &str = "second_probe";
const KEY: &str = "probe_key";
const RESULT: &str = "result of the probe";

/// What this template does. The answer is kept by the template.
pub(super) fn of(template: &ChatTemplate) -> &Habits {
    template.habits.get_or_init(|| {
        let messages = json!([{"role": "user", "content": "Hello"}]);
        let plain = template.render_values(&messages, None, true, &Map::new());
        // A template that does not end is not tried a dozen times.
        if matches!(plain, Err(TextError::TemplateEndless { .. } | TextError::TemplateTooMuch)) {
            return Habits { definitions: Definitions::Nowhere, calls: None, results: false };
        }
        let found =
            Habits { definitions: definitions(template), calls: calls(template), results: results(template) };
        if plain.is_ok() { found } else { as_written(template, found) }
    })
}

/// What cannot be tried of a template that wants variables of its own, or raises what it is told: then what it names counts.
fn as_written(template: &ChatTemplate, found: Habits) -> Habits {
    let usual = CallHabit { null_content: false, text_arguments: false, several: true };
    let definitions = match found.definitions {
        Definitions::Nowhere if template.mentions("tools") => Definitions::Tools,
        definitions => definitions,
    };
    let calls = found.calls.or_else(|| template.mentions("tool_calls").then_some(usual));
    let results = found.results || template.mentions("'tool'") || template.mentions("\"tool\"");
    Habits { definitions, calls, results }
}

/// The definitions as a template finds them in `functions`.
pub(super) fn functions(tools: &[Value]) -> Map<String, Value> {
    let mut variables = Map::new();
    let text = super::write::spaced(&Value::from(tools.to_vec()));
    variables.insert("functions".into(), text.into());
    variables.insert("datetime".into(), super::super::template::today().into());
    variables
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {
        "name": name,
        "description": "A probe",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "A key"}},
            "required": [KEY],
        },
    }})
}

fn definitions(template: &ChatTemplate) -> Definitions {
    let tools = [tool(NAME)];
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let list = Value::from(tools.to_vec());
    let shows = |text: Result<String, _>| text.is_ok_and(|text| text.contains(NAME));
    if shows(template.render_values(&messages, Some(&list), true, &Map::new())) {
        return Definitions::Tools;
    }
    // Some leave the tools out unless there is a system message.
    let with_system =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    if shows(template.render_values(&with_system, Some(&list), true, &Map::new())) {
        return Definitions::Tools;
    }
    if shows(template.render_values(&messages, Some(&list), true, &functions(&tools))) {
        return Definitions::Functions;
    }
    Definitions::Nowhere
}

/// A conversation with calls, as a template may like it.
fn conversation(habit: CallHabit, names: &[&str]) -> Value {
    let arguments = json!({KEY: "a value"});
    let arguments =
        if habit.text_arguments { Value::from(super::write::spaced(&arguments)) } else { arguments };
    let id = |i: usize| format!("probe{i:04}");
    let calls = names.iter().enumerate().map(|(i, name)| {
        json!({"id": id(i), "type": "function", "function": {"name": name, "arguments": arguments}})
    });
    let content = if habit.null_content { Value::Null } else { "".into() };
    let mut messages = vec![
        json!({"role": "user", "content": "Hello"}),
        json!({"role": "assistant", "content": content, "tool_calls": calls.collect::<Vec<_>>()}),
    ];
    messages.extend(
        names
            .iter()
            .enumerate()
            .map(|(i, name)| json!({"role": "tool", "tool_call_id": id(i), "name": name, "content": RESULT})),
    );
    messages.into()
}

fn render(template: &ChatTemplate, messages: &Value) -> Option<String> {
    let tools = Value::from(vec![tool(NAME), tool(SECOND)]);
    let variables = functions(&[]);
    let text = template.render_values(messages, Some(&tools), true, &variables).ok()?;
    // What stands before the question are the definitions.
    Some(text.rsplit_once("Hello").map_or("", |(_, after)| after).to_owned())
}

fn calls(template: &ChatTemplate) -> Option<CallHabit> {
    // Objects are what most templates mean; some take both and write text as it stands, with its braces.
    let found = [false, true].into_iter().find_map(|text_arguments| {
        let tried = [false, true].into_iter().filter_map(|null_content| {
            let habit = CallHabit { null_content, text_arguments, several: false };
            let text = render(template, &conversation(habit, &[NAME]))?;
            let calls = text.split(RESULT).next().unwrap_or("");
            // Text that was quoted once more, content that was printed though there is none.
            let is_odd = calls.contains("\\\"") || calls.contains("None") || calls.contains("null");
            (calls.contains(NAME) && calls.contains(KEY) && !is_odd).then_some((calls.len(), habit))
        });
        // Where one of them adds an empty message beside the calls, the shorter is what the template means.
        tried.min_by_key(|(length, _)| *length)
    });
    let (_, habit) = found?;
    let both = render(template, &conversation(habit, &[NAME, SECOND]));
    let several = both.is_some_and(|text| text.contains(NAME) && text.contains(SECOND));
    Some(CallHabit { several, ..habit })
}

fn results(template: &ChatTemplate) -> bool {
    let styles = [(false, false), (true, false), (false, true)];
    styles.iter().any(|&(null_content, text_arguments)| {
        let habit = CallHabit { null_content, text_arguments, several: false };
        render(template, &conversation(habit, &[NAME])).is_some_and(|text| text.contains(RESULT))
    })
}
