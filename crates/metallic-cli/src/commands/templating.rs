//! Options of the chat template: which one, and what it is told besides the messages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use metallic::{Chat, ChatTemplate, Llm, Message};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::fail::Failure;

#[derive(Debug, Args)]
pub(crate) struct TemplateOptions {
    /// A file with a chat template (Jinja) to use instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
    /// Set a variable of the chat template, such as `enable_thinking=false`; may be given several times
    #[arg(long, value_name = "NAME=JSON", value_parser = parse_variable)]
    pub(crate) set: Vec<(String, Value)>,
    /// A JSON list of tools that the model may call
    #[arg(long, value_name = "FILE.json")]
    pub(crate) tools: Option<PathBuf>,
}

/// What a template is told besides the messages.
pub(crate) struct Told {
    pub(crate) variables: Map<String, Value>,
    pub(crate) tools: Vec<Value>,
}

impl TemplateOptions {
    /// Reads the files, before anything slow is done.
    pub(crate) fn read(&self) -> anyhow::Result<Told> {
        let needed = "a list of tools: [{\"type\": \"function\", \"function\": {\"name\": \"…\", …}}]";
        let tools = self.tools.as_deref().map(|path| read_json::<Vec<Map<String, Value>>>(path, needed));
        let tools = tools.transpose()?.unwrap_or_default().into_iter().map(Value::from).collect::<Vec<_>>();
        if let (Some(path), true) = (&self.tools, tools.is_empty()) {
            let reason = format!("`{}` has no tools", path.display());
            return Err(Failure::new(reason, "name at least one, or leave out `--tools`").into());
        }
        Ok(Told { variables: self.set.iter().cloned().collect(), tools })
    }

    /// What a model is told, checked against the template that it will be told to.
    pub(crate) fn told_to(&self, llm: &Llm, told: Told) -> anyhow::Result<Told> {
        if told.tools.is_empty() || self.template.is_some() {
            told.check(llm.template())?;
        } else {
            let template = llm.model().template(llm.tokenizer(), true)?;
            told.check(template.as_ref())?;
        }
        Ok(told)
    }
}

impl Told {
    /// Refuses what a template has no place for.
    pub(crate) fn check(&self, template: Option<&ChatTemplate>) -> anyhow::Result<()> {
        let tools = (!self.tools.is_empty()).then_some("tools");
        for name in self.variables.keys().map(String::as_str).chain(tools) {
            let Some(template) = template else {
                let reason = format!("the model has no chat template, so there is no place for `{name}`");
                return Err(Failure::new(reason, "leave it out, or give a `--template`").into());
            };
            if !template.mentions(name) {
                let reason = format!("the chat template has no variable `{name}`");
                let hint = "`metallic inspect MODEL --json` shows the template; `--template` takes another";
                return Err(Failure::new(reason, hint).into());
            }
        }
        Ok(())
    }

    /// A conversation with all of it. Thoughts are told from answers where the model marks them.
    pub(crate) fn chat(&self, messages: Vec<Message>) -> Chat {
        let chat = Chat::new(messages).tools(self.tools.clone()).variables(self.variables.clone());
        chat.split_reasoning(true)
    }
}

/// What the template gets from elsewhere.
const TAKEN: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

fn parse_variable(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("it is written NAME=JSON")?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !is_name {
        return Err(format!("`{name}` is not a name of a variable"));
    }
    if TAKEN.contains(&name) {
        return Err(format!("`{name}` is not set this way: the command gives it"));
    }
    let value = serde_json::from_str(value)
        .map_err(|error| format!("`{value}` is not JSON ({error}); a text is written {name}='\"text\"'"))?;
    Ok((name.to_owned(), value))
}

/// Reads a JSON file; `needed` is what it should hold.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, needed: &str) -> anyhow::Result<T> {
    let text = fs::read(path).map_err(|error| {
        let reason = format!("cannot read `{}`: {error}", path.display());
        Failure::new(reason, format!("check the path; the file holds {needed}"))
    })?;
    serde_json::from_slice(&text).map_err(|error| {
        let reason = format!("`{}` does not fit: {error}", path.display());
        Failure::new(reason, format!("the file holds {needed}")).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn variables_are_names_with_json() {
        for (text, name, value) in [
            ("enable_thinking=false", "enable_thinking", json!(false)),
            ("documents=[{\"title\": \"a=b\"}]", "documents", json!([{"title": "a=b"}])),
            ("date_string=\"26 Jul\"", "date_string", json!("26 Jul")),
        ] {
            assert_eq!(parse_variable(text), Ok((name.to_owned(), value)));
        }
        for (text, problem) in [
            ("x", "NAME=JSON"),
            ("x=yes", "`yes` is not JSON"),
            ("x=", "`` is not JSON"),
            ("1x=1", "`1x` is not a name"),
            ("messages=[]", "`messages` is not set this way"),
        ] {
            let found = parse_variable(text).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
