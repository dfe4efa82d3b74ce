//! Grammars that let a model write nothing but well-formed calls, in the dialect of Lark that llguidance reads.

use std::fmt::Write;

use serde_json::{Value, json};

use super::ToolChoice;
use super::families::{Attributes, Body, Family, Tagged};
use super::rules::Part::{Frame, Given};
use super::rules::Rules;
use super::schema::{Tool, Tools, properties};
use super::tagged::typed;
use super::write::quoted;
use crate::text::TextError;

/// Bytes of tools' names and schemas.
const MOST_TOOLS: usize = 1 << 20;

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
    let len = tools.len();
    if len > MOST_TOOLS {
        let reason = format!("their names and schemas have {len} bytes, the limit is {MOST_TOOLS}");
        return Err(TextError::Tools { reason });
    }
    let mut rules = Rules::new(tokens);
    rules.start(family, parallel && family.parallel);
    for (i, tool) in tools.0.iter().enumerate() {
        let call = rules.call(family, tool)?;
        rules.rule(&format!("call_{i}"), &call);
    }
    let calls: Vec<String> = (0..tools.0.len()).map(|i| format!("call_{i}")).collect();
    rules.rule("call", &calls.join(" | "));
    Ok(Some(rules.out))
}

/// Levels of nesting in arguments that are held to their schemas where the format writes them in its own way.
const LEVELS: usize = 16;

impl Rules<'_> {
    fn start(&mut self, family: &Family, parallel: bool) {
        let frame = &family.frame;
        let list = matches!(family.body, Body::Objects { list: true, .. } | Body::Python { list: true });
        let (open, close) = if list { ("[", "]") } else { ("", "") };
        // The head of the first call is in the prompt already; the mark that ends an answer ends it anyway.
        let end = if frame.end == "<|calls|>" { "" } else { frame.end };
        let first = if family.primed { "" } else { frame.head };
        let begin = self.frame(&format!("{}{open}{}{first}", frame.begin, frame.open));
        let next = self.frame(&format!("{}{}{}", frame.between, frame.open, frame.head));
        let end = self.frame(&format!("{close}{end}"));
        let more = if parallel { format!("({next} call)*") } else { String::new() };
        self.rule("start", &format!("{begin} call {more} {end}"));
    }

    /// One call, from after its head to the end of what closes it.
    fn call(&mut self, family: &Family, tool: &Tool) -> Result<String, TextError> {
        let after = self.frame(&format!("{}{}", family.frame.tail, family.frame.close));
        let (name, root) = (&tool.name, &tool.parameters);
        Ok(match &family.body {
            Body::Objects { keys: Some((name_key, key)), ids, .. } => {
                let ids =
                    if *ids { "\"{\\\"tool_call_id\\\": \\\"\" /[0-9]{1,4}/ \"\\\", \"" } else { "\"{\"" };
                let (before, behind) = (format!("\"{name_key}\": "), format!(", \"{key}\": "));
                let head = self.text(&[Frame(&before), Given(&quoted(name)), Frame(&behind)])?;
                format!("{ids} {head} {} \"}}\" {after}", self.json(root, root)?)
            }
            Body::Objects { keys: None, .. } => {
                let head = self.text(&[Frame("{"), Given(&quoted(name)), Frame(": ")])?;
                format!("{head} {} \"}}\" {after}", self.json(root, root)?)
            }
            Body::Named(named) => {
                let before = self.numbered(named.before);
                let behind = self.numbered(named.after);
                format!("{before} {} {behind} {} {after}", self.given(name)?, self.json(root, root)?)
            }
            Body::Harmony => {
                let behind = Frame("<|channel|>commentary json<|message|>");
                let head = self.text(&[Frame(" to=functions."), Given(name), behind])?;
                format!("{head} {}", self.json(root, root)?)
            }
            Body::Tagged(tagged) => format!("{} {after}", self.tagged(tagged, tool)?),
            Body::Python { .. } => {
                let mut members = Vec::new();
                for (key, schema, needed) in properties(root) {
                    let key = self.text(&[Given(key), Frame("=")])?;
                    members.push((format!("{key} {}", self.python(root, schema)?), needed));
                }
                let arguments = self.ordered(&members, ", ");
                format!("{} {arguments} \")\" {after}", self.given(&format!("{name}("))?)
            }
            Body::Braces { quote } => {
                let object = self.braces(root, root, (quote, LEVELS))?;
                format!("{} {object} {after}", self.given(name)?)
            }
            Body::Elements { prefix } => {
                let inner = self.elements(root, root, (prefix, LEVELS))?;
                format!("{} {} {after}", self.given(&format!("{name}\">"))?, inner.unwrap_or_default())
            }
        })
    }

    fn tagged(&mut self, tagged: &Tagged, tool: &Tool) -> Result<String, TextError> {
        let root = &tool.parameters;
        let mut out = format!("{} {}", self.given(&tool.name)?, self.numbered(tagged.name_end));
        let line = if tagged.lines { "\n" } else { "" };
        let end = self.frame(&format!("{line}{}", tagged.value_end));
        let after = self.frame(tagged.after);
        let properties = properties(root);
        for (key, schema, needed) in &properties {
            let kinds = self.kinds(root, schema)?;
            let is_text = kinds.is_empty() || kinds.iter().any(|kind| kind == "string");
            let mut head = vec![Frame(tagged.key), Given(key), Frame(tagged.key_end)];
            match tagged.attributes {
                Attributes::Nothing => head.push(Frame(line)),
                Attributes::IsText if is_text => head.push(Frame("string=\"true\">")),
                Attributes::IsText => head.push(Frame("string=\"false\">")),
                Attributes::Kind => {
                    // The format knows JSON's own kinds, and no integers.
                    let kind = match kinds.first().map_or("string", String::as_str) {
                        _ if is_text => "string",
                        "integer" => "number",
                        kind => kind,
                    };
                    head.extend([Frame("type=\""), Given(kind), Frame("\"<|sep|>")]);
                }
            }
            let head = self.text(&head)?;
            let listed = if is_text { self.listed(root, schema)? } else { None };
            // Where the head says that it is text, what stands there is nothing else.
            let only_text = tagged.attributes != Attributes::Nothing;
            let texts = self.texts(&listed.unwrap_or_default(), &kinds, only_text)?;
            let value = if !texts.is_empty() {
                format!("({}) {end}", texts.join(" | "))
            } else if is_text {
                // Whoever reads it takes the first mark for the end, whether it has a line of its own or not.
                self.text_until(tagged.value_end)
            } else {
                format!("{} {end}", self.json(root, schema)?)
            };
            let optional = if *needed { "" } else { "?" };
            let _ = write!(out, " ({head} {value} {after}){optional}");
        }
        if properties.is_empty() && takes_anything(root) && tagged.attributes == Attributes::Nothing {
            let (key, key_end) = (self.frame(tagged.key), self.frame(&format!("{}{line}", tagged.key_end)));
            let value = self.text_until(tagged.value_end);
            let _ = write!(out, " ({key} /[A-Za-z_][A-Za-z0-9_\\-]*/ {key_end} {value} {after})*");
        }
        Ok(out)
    }

    /// The texts of values without quotes, of those that are read as the same values again.
    fn texts(
        &mut self,
        values: &[&Value],
        kinds: &[String],
        only_text: bool,
    ) -> Result<Vec<String>, TextError> {
        let is_text = only_text || kinds.iter().all(|kind| kind == "string");
        let read = |text: &str| {
            if is_text {
                Value::from(text)
            } else {
                serde_json::from_str(&typed(text, kinds)).unwrap_or_default()
            }
        };
        let mut texts = Vec::new();
        for value in values {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let written = self.given(&text)?;
            if read(&text) == **value {
                texts.push(written);
            }
        }
        Ok(texts)
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
    fn braces(
        &mut self,
        root: &Value,
        schema: &Value,
        (quote, levels): (&str, usize),
    ) -> Result<String, TextError> {
        let text = |rules: &mut Self| format!("{} {}", rules.frame(quote), rules.text_until(quote));
        if let Some(values) = self.listed(root, schema)? {
            let mut texts = Vec::new();
            for value in values {
                texts.push(match value {
                    Value::String(text) => self.text(&[Frame(quote), Given(text), Frame(quote)])?,
                    other => self.given(&other.to_string())?,
                });
            }
            return Ok(format!("({})", texts.join(" | ")));
        }
        let any = json!({});
        let kind = self.only_kind(root, schema)?;
        Ok(match kind.as_deref() {
            Some("string") => text(self),
            Some("integer" | "number" | "boolean" | "null") => self.json(root, schema)?,
            Some("array") if levels > 0 => {
                let item = self.braces(root, schema.get("items").unwrap_or(&any), (quote, levels - 1))?;
                let item = self.add("", &item);
                format!("\"[\" ({item} (\",\" {item})*)? \"]\"")
            }
            Some("object") if levels > 0 && schema.get("properties").is_some() => {
                let mut members = Vec::new();
                for (key, schema, needed) in properties(schema) {
                    let value = self.braces(root, schema, (quote, levels - 1))?;
                    members.push((format!("{} {value}", self.text(&[Given(key), Frame(":")])?), needed));
                }
                format!("\"{{\" {} \"}}\"", self.ordered(&members, ","))
            }
            Some("object") if levels > 0 => {
                let value = self.braces(root, &any, (quote, 0))?;
                let member = self.add("", &format!("/[A-Za-z_][A-Za-z0-9_]*/ \":\" {value}"));
                format!("\"{{\" ({member} (\",\" {member})*)? \"}}\"")
            }
            _ => {
                let text = text(self);
                let plain = json!({"type": ["number", "boolean", "null"]});
                let plain = self.json(&plain, &plain)?;
                self.add("", &format!("{text} | {plain}"))
            }
        })
    }

    /// A value as elements; `None` where it is text, whose end the caller knows.
    fn elements(
        &mut self,
        root: &Value,
        schema: &Value,
        (prefix, levels): (&str, usize),
    ) -> Result<Option<String>, TextError> {
        let kind = self.only_kind(root, schema)?;
        Ok(match kind.as_deref() {
            Some("integer" | "number" | "boolean") => Some(self.json(root, schema)?),
            Some("array") if levels > 0 => {
                let any = json!({});
                let items = schema.get("items").unwrap_or(&any);
                Some(format!("({})*", self.element("item", (root, items), (prefix, levels - 1))?))
            }
            Some("object") if levels > 0 => {
                let mut out = String::new();
                for (key, schema, needed) in properties(schema) {
                    let optional = if needed { "" } else { "?" };
                    let element = self.element(key, (root, schema), (prefix, levels - 1))?;
                    let _ = write!(out, "({element}){optional} ");
                }
                Some(out)
            }
            _ => None,
        })
    }

    fn element(
        &mut self,
        tag: &str,
        (root, schema): (&Value, &Value),
        (prefix, levels): (&str, usize),
    ) -> Result<String, TextError> {
        let open = self.text(&[Frame(&format!("{prefix}<")), Given(tag), Frame(">")])?;
        let close = self.text(&[Frame(&format!("{prefix}</")), Given(tag), Frame(">")])?;
        if let Some(values) = self.listed(root, schema)? {
            let kinds = self.kinds(root, schema)?;
            let texts = self.texts(&values, &kinds, false)?;
            if !texts.is_empty() {
                return Ok(format!("{open} ({}) {close}", texts.join(" | ")));
            }
        }
        if let Some(value) = self.elements(root, schema, (prefix, levels))? {
            return Ok(format!("{open} {value} {close}"));
        }
        // The prefix is in no text, so that the first one ends it.
        let end = self.text(&[Frame("</"), Given(tag), Frame(">")])?;
        Ok(format!("{open} {} {end}", self.text_until(prefix)))
    }

    /// A value as Python writes it, as far as it differs from JSON.
    fn python(&mut self, root: &Value, schema: &Value) -> Result<String, TextError> {
        Ok(match self.only_kind(root, schema)?.as_deref() {
            Some("boolean") => "(\"True\" | \"False\")".to_owned(),
            Some("null") => "\"None\"".to_owned(),
            _ => self.json(root, schema)?,
        })
    }
}

fn takes_anything(schema: &Value) -> bool {
    schema.get("additionalProperties") != Some(&Value::Bool(false))
}
