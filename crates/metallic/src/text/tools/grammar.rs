//! Grammars that let a model write nothing but well-formed calls, in the dialect of Lark that llguidance reads.

use std::fmt::Write;

use serde_json::{Value, json};

use super::ToolChoice;
use super::families::{Attributes, Body, Family, Tagged};
use super::schema::{Tool, Tools, add_kinds};
use super::tagged::typed;
use super::write::quoted;
use crate::text::TextError;

/// The grammar for a choice; `None` where nothing is forced.
pub(super) fn grammar(
    family: &Family,
    tokens: &[(u32, String)],
    tools: &[Value],
    (choice, parallel): (&ToolChoice, bool),
) -> Result<Option<String>, TextError> {
    let mut tools = Tools::checked(tools)?;
    match choice {
        ToolChoice::Auto | ToolChoice::None => return Ok(None),
        ToolChoice::Required => {}
        ToolChoice::Named(name) => {
            if tools.get(name).is_none() {
                let reason = format!("`{name}` is to be called and is not among the tools");
                return Err(TextError::Tools { reason });
            }
            tools.0.retain(|tool| tool.name == *name);
        }
    }
    if tools.0.is_empty() {
        return Err(TextError::Tools { reason: "a call is required and there are no tools".to_owned() });
    }
    let mut rules = Rules { out: String::new(), tokens, count: 0 };
    rules.start(family, parallel && family.parallel);
    for (i, tool) in tools.0.iter().enumerate() {
        let call = rules.call(family, tool);
        rules.rule(&format!("call_{i}"), &call);
    }
    let calls: Vec<String> = (0..tools.0.len()).map(|i| format!("call_{i}")).collect();
    rules.rule("call", &calls.join(" | "));
    Ok(Some(rules.out))
}

struct Rules<'a> {
    out: String,
    tokens: &'a [(u32, String)],
    count: usize,
}

/// How far references and alternatives are followed to find what a value may be.
const LEVELS: usize = 8;
/// Any text, also across lines.
const TEXT: &str = "/(.|\\n)*/";

impl Rules<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.out, "{name}: {body}");
    }

    /// A rule with a name of its own.
    fn add(&mut self, attributes: &str, body: &str) -> String {
        let name = format!("r{}", self.count);
        self.count += 1;
        self.rule(&format!("{name}{attributes}"), body);
        name
    }

    fn start(&mut self, family: &Family, parallel: bool) {
        let frame = &family.frame;
        let list = matches!(family.body, Body::Objects { list: true, .. } | Body::Python { list: true });
        let (open, close) = if list { ("[", "]") } else { ("", "") };
        // The head of the first call is in the prompt already; the mark that ends an answer ends it anyway.
        let end = if frame.end == "<|calls|>" { "" } else { frame.end };
        let first = if family.primed { "" } else { frame.head };
        let begin = self.text(&format!("{}{open}{}{first}", frame.begin, frame.open));
        let next = self.text(&format!("{}{}{}", frame.between, frame.open, frame.head));
        let end = self.text(&format!("{close}{end}"));
        let more = if parallel { format!("({next} call)*") } else { String::new() };
        self.rule("start", &format!("{begin} call {more} {end}"));
    }

    /// A text with marks that are tokens written as such.
    fn text(&self, text: &str) -> String {
        let found = self.tokens.iter().filter_map(|(id, mark)| {
            let at = text.find(mark.as_str())?;
            Some((at, std::cmp::Reverse(mark.len()), *id))
        });
        let Some((at, std::cmp::Reverse(len), id)) = found.min() else {
            return if text.is_empty() { String::new() } else { quoted(text) };
        };
        let before = if at == 0 { String::new() } else { quoted(&text[..at]) };
        format!("{before} <[{id}]> {}", self.text(&text[at + len..])).trim().to_owned()
    }

    /// A text with a running number in it.
    fn numbered(&self, text: &str) -> String {
        let parts: Vec<String> = text.split('#').map(|part| self.text(part)).collect();
        parts.join(" /[0-9]{1,4}/ ")
    }

    /// Any text, and what ends it.
    fn text_until(&mut self, end: &str) -> String {
        let end = self.text(end);
        if end.starts_with('<') {
            // No text contains a special token.
            return format!("({TEXT} {end})");
        }
        // The end up to the first special token belongs to the lexeme, which is as short as can be.
        let (first, rest) =
            end.split_once(" <[").map_or((&*end, String::new()), |(a, b)| (a, format!(" <[{b}")));
        let name = self.add("[lazy]", &format!("{TEXT} {first}"));
        format!("({name}{rest})")
    }

    /// One call, from after its head to the end of what closes it.
    fn call(&mut self, family: &Family, tool: &Tool) -> String {
        let after = self.text(&format!("{}{}", family.frame.tail, family.frame.close));
        let name = &tool.name;
        match &family.body {
            Body::Objects { keys: Some((name_key, key)), ids, .. } => {
                let ids =
                    if *ids { "\"{\\\"tool_call_id\\\": \\\"\" /[0-9]{1,4}/ \"\\\", \"" } else { "\"{\"" };
                let head = self.text(&format!("\"{name_key}\": {}, \"{key}\": ", quoted(name)));
                format!("{ids} {head} {} \"}}\" {after}", json_of(&tool.parameters))
            }
            Body::Objects { keys: None, .. } => {
                let head = self.text(&format!("{{{}: ", quoted(name)));
                format!("{head} {} \"}}\" {after}", json_of(&tool.parameters))
            }
            Body::Named(named) => {
                let before = self.numbered(named.before);
                let behind = self.numbered(named.after);
                format!("{before} {} {behind} {} {after}", quoted(name), json_of(&tool.parameters))
            }
            Body::Harmony => {
                let head = format!(" to=functions.{name}<|channel|>commentary json<|message|>");
                format!("{} {}", self.text(&head), json_of(&tool.parameters))
            }
            Body::Tagged(tagged) => format!("{} {after}", self.tagged(tagged, tool)),
            Body::Python { .. } => {
                let members = tool.properties().into_iter().map(|(key, schema, needed)| {
                    (
                        format!("{} {}", self.text(&format!("{key}=")), python(&schema, &tool.parameters)),
                        needed,
                    )
                });
                let members: Vec<(String, bool)> = members.collect();
                let arguments = self.ordered(&members, ", ");
                format!("{} {arguments} \")\" {after}", quoted(&format!("{name}(")))
            }
            Body::Braces { quote } => {
                let object = self.braces(&tool.parameters, &tool.parameters, (quote, 16));
                format!("{} {object} {after}", quoted(name))
            }
            Body::Elements { prefix } => {
                let inner = self.elements(&tool.parameters, &tool.parameters, (prefix, 16));
                format!("{} {} {after}", quoted(&format!("{name}\">")), inner.unwrap_or_default())
            }
        }
    }

    fn tagged(&mut self, tagged: &Tagged, tool: &Tool) -> String {
        let mut out = format!("{} {}", quoted(&tool.name), self.numbered(tagged.name_end));
        let line = if tagged.lines { "\n" } else { "" };
        let end = format!("{line}{}", tagged.value_end);
        let after = self.text(tagged.after);
        let properties = tool.properties();
        for (key, schema, needed) in &properties {
            let head = format!("{}{key}{}", tagged.key, tagged.key_end);
            let mut kinds = Vec::new();
            add_kinds(&tool.parameters, schema, 8, &mut kinds);
            let is_text = kinds.is_empty() || kinds.iter().any(|kind| kind == "string");
            let attribute = match tagged.attributes {
                Attributes::Nothing => line.to_owned(),
                Attributes::IsText => format!("string=\"{is_text}\">"),
                Attributes::Kind => {
                    // The format knows JSON's own kinds, and no integers.
                    let kind = match kinds.first().map_or("string", String::as_str) {
                        "integer" => "number",
                        kind => kind,
                    };
                    format!("type=\"{}\"<|sep|>", if is_text { "string" } else { kind })
                }
            };
            let head = self.text(&format!("{head}{attribute}"));
            let listed = listed(schema, &tool.parameters, LEVELS).filter(|_| is_text);
            // Where the head says that it is text, what stands there is nothing else.
            let only_text = tagged.attributes != Attributes::Nothing;
            let texts = listed.map(|values| self.texts(&values, &kinds, only_text)).unwrap_or_default();
            let value = if !texts.is_empty() {
                format!("({}) {}", texts.join(" | "), self.text(&end))
            } else if is_text {
                // Whoever reads it takes the first mark for the end, whether it has a line of its own or not.
                self.text_until(tagged.value_end)
            } else {
                format!("{} {}", json_of(schema), self.text(&end))
            };
            let optional = if *needed { "" } else { "?" };
            let _ = write!(out, " ({head} {value} {after}){optional}");
        }
        if properties.is_empty()
            && takes_anything(&tool.parameters)
            && tagged.attributes == Attributes::Nothing
        {
            let (key, key_end) = (self.text(tagged.key), self.text(&format!("{}{line}", tagged.key_end)));
            let value = self.text_until(tagged.value_end);
            let _ = write!(out, " ({key} /[A-Za-z_][A-Za-z0-9_\\-]*/ {key_end} {value} {after})*");
        }
        out
    }

    /// The texts of values without quotes, of those that are read as the same values again.
    fn texts(&self, values: &[Value], kinds: &[String], only_text: bool) -> Vec<String> {
        let read = |text: &str| {
            let is_text = only_text || kinds.iter().all(|kind| kind == "string");
            if is_text {
                Value::from(text)
            } else {
                serde_json::from_str(&typed(text, kinds)).unwrap_or_default()
            }
        };
        let texts = values.iter().filter_map(|value| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let written = if text.is_empty() { "\"\"".to_owned() } else { self.text(&text) };
            (read(&text) == *value).then_some(written)
        });
        texts.collect()
    }

    /// Members in their order with a separator between those that are there; those that are not needed may be missing.
    fn ordered(&mut self, members: &[(String, bool)], separator: &str) -> String {
        // For each place: what may follow when nothing, or something, stands before.
        let (mut first, mut further) = ("\"\"".to_owned(), "\"\"".to_owned());
        for (member, needed) in members.iter().rev() {
            let with = format!("{member} {further}");
            let after = format!("{} {with}", quoted(separator));
            let (alone, behind) = if *needed {
                (with, after)
            } else {
                (format!("{with} | {first}"), format!("{after} | {further}"))
            };
            first = self.add("", &alone);
            further = self.add("", &behind);
        }
        first
    }

    /// A value in braces and quotes of its own.
    fn braces(&mut self, schema: &Value, root: &Value, (quote, levels): (&str, usize)) -> String {
        let text = |rules: &mut Self| format!("{} {}", rules.text(quote), rules.text_until(quote));
        if let Some(values) = listed(schema, root, LEVELS) {
            let text = |value: &Value| match value {
                Value::String(text) => self.text(&format!("{quote}{text}{quote}")),
                other => quoted(&other.to_string()),
            };
            let texts: Vec<String> = values.iter().map(text).collect();
            return format!("({})", texts.join(" | "));
        }
        let kind = only_kind(schema, root);
        match kind.as_deref() {
            Some("string") => text(self),
            Some("integer" | "number" | "boolean" | "null") => json_of(schema),
            Some("array") if levels > 0 => {
                let any = json!({});
                let item = self.braces(schema.get("items").unwrap_or(&any), root, (quote, levels - 1));
                let item = self.add("", &item);
                format!("\"[\" ({item} (\",\" {item})*)? \"]\"")
            }
            Some("object") if levels > 0 && schema.get("properties").is_some() => {
                let tool = Tool { name: String::new(), parameters: schema.clone() };
                let mut members = Vec::new();
                for (key, schema, needed) in tool.properties() {
                    let value = self.braces(&schema, root, (quote, levels - 1));
                    members.push((format!("{} {value}", self.text(&format!("{key}:"))), needed));
                }
                format!("\"{{\" {} \"}}\"", self.ordered(&members, ","))
            }
            Some("object") if levels > 0 => {
                let value = self.braces(&json!({}), root, (quote, 0));
                let member = self.add("", &format!("/[A-Za-z_][A-Za-z0-9_]*/ \":\" {value}"));
                format!("\"{{\" ({member} (\",\" {member})*)? \"}}\"")
            }
            _ => {
                let text = text(self);
                self.add(
                    "",
                    &format!("{text} | {}", json_of(&json!({"type": ["number", "boolean", "null"]}))),
                )
            }
        }
    }

    /// A value as elements; `None` where it is text, whose end the caller knows.
    fn elements(&mut self, schema: &Value, root: &Value, (prefix, levels): (&str, usize)) -> Option<String> {
        let kind = only_kind(schema, root);
        let any = json!({});
        match kind.as_deref() {
            Some("integer" | "number" | "boolean") => Some(json_of(schema)),
            Some("array") if levels > 0 => {
                let items = schema.get("items").unwrap_or(&any);
                Some(format!("({})*", self.element("item", items, root, (prefix, levels - 1))))
            }
            Some("object") if levels > 0 => {
                let tool = Tool { name: String::new(), parameters: schema.clone() };
                let mut out = String::new();
                for (key, schema, needed) in tool.properties() {
                    let optional = if needed { "" } else { "?" };
                    let element = self.element(key, &schema, root, (prefix, levels - 1));
                    let _ = write!(out, "({element}){optional} ");
                }
                Some(out)
            }
            _ => None,
        }
    }

    fn element(
        &mut self,
        tag: &str,
        schema: &Value,
        root: &Value,
        (prefix, levels): (&str, usize),
    ) -> String {
        let (open, close) = (self.text(&format!("{prefix}<{tag}>")), format!("{prefix}</{tag}>"));
        if let Some(values) = listed(schema, root, LEVELS) {
            let mut kinds = Vec::new();
            add_kinds(root, schema, LEVELS, &mut kinds);
            let texts = self.texts(&values, &kinds, false);
            if !texts.is_empty() {
                return format!("{open} ({}) {}", texts.join(" | "), self.text(&close));
            }
        }
        match self.elements(schema, root, (prefix, levels)) {
            Some(value) => format!("{open} {value} {}", self.text(&close)),
            // The prefix is in no text, so that the first one ends it.
            None => format!("{open} {} {}", self.text_until(prefix), self.text(&format!("</{tag}>"))),
        }
    }
}

/// JSON of a schema.
fn json_of(schema: &Value) -> String {
    format!("%json {schema}")
}

/// A value as Python writes it, as far as it differs from JSON.
fn python(schema: &Value, root: &Value) -> String {
    match only_kind(schema, root).as_deref() {
        Some("boolean") => "(\"True\" | \"False\")".to_owned(),
        Some("null") => "\"None\"".to_owned(),
        _ => json_of(schema),
    }
}

/// The kind of a schema that allows but one.
fn only_kind(schema: &Value, root: &Value) -> Option<String> {
    let mut kinds = Vec::new();
    add_kinds(root, schema, 8, &mut kinds);
    kinds.dedup();
    match <[String; 1]>::try_from(kinds) {
        Ok([kind]) => Some(kind),
        Err(_) => None,
    }
}

/// The values a schema allows, where it lists them and none of them has parts.
fn listed(schema: &Value, root: &Value, levels: usize) -> Option<Vec<Value>> {
    let levels = levels.checked_sub(1)?;
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
    let values = if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        values.clone()
    } else if let Some(value) = schema.get("const") {
        vec![value.clone()]
    } else if let Some(options) = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(key)?.as_array()) {
        let options: Option<Vec<_>> = options.iter().map(|option| listed(option, root, levels)).collect();
        options?.concat()
    } else if let Some(target) = target {
        listed(root.pointer(target)?, root, levels)?
    } else if schema.get("type").is_some_and(|kind| kind == "null") {
        vec![Value::Null]
    } else {
        return None;
    };
    let plain = values.iter().all(|value| !value.is_array() && !value.is_object());
    Some(values).filter(|values| plain && !values.is_empty())
}

fn takes_anything(schema: &Value) -> bool {
    schema.get("additionalProperties") != Some(&Value::Bool(false))
}
