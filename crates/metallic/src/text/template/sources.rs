use std::collections::BTreeMap;
use std::path::Path;

use metallic_formats::Metadata;
use serde_json::Value;

use super::super::TextError;
use super::super::hf::{parse, read_if_present};

/// The chat templates that come with a model: one without a name, and sometimes others for special purposes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateSources {
    /// The template for ordinary chat.
    pub default: Option<String>,
    /// Templates by name, such as `tool_use` and `rag`.
    pub named: BTreeMap<String, String>,
}

impl TemplateSources {
    const KEY: &'static str = "tokenizer.chat_template";

    /// The templates in the metadata of a GGUF file.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TextError> {
        let mut sources = Self { default: metadata.opt_str(Self::KEY)?.map(Into::into), ..Self::default() };
        for (key, _) in metadata.iter() {
            let name = key.strip_prefix(Self::KEY).and_then(|k| k.strip_prefix('.'));
            if let Some(name) = name
                && let Some(text) = metadata.opt_str(key)?
            {
                sources.named.insert(name.into(), text.into());
            }
        }
        sources.settle();
        Ok(sources)
    }

    /// The templates of a Hugging Face folder: `chat_template.jinja`, else those in `tokenizer_config.json`.
    pub fn from_hf(folder: &Path) -> Result<Self, TextError> {
        let mut sources = Self::default();
        if let Some(config) = read_if_present(&folder.join("tokenizer_config.json"))? {
            let config: Value = parse("tokenizer_config.json", &config)?;
            sources = Self::from_config(config.get("chat_template").unwrap_or(&Value::Null))?;
        }
        let path = folder.join("chat_template.jinja");
        if let Some(text) = read_if_present(&path)? {
            let text = String::from_utf8(text)
                .map_err(|e| TextError::Json { file: "chat_template.jinja".into(), reason: e.to_string() })?;
            sources.default = Some(text);
        }
        Ok(sources)
    }

    /// The templates in the field `chat_template`: a text, or a list of names and texts.
    pub fn from_config(chat_template: &Value) -> Result<Self, TextError> {
        let mut sources = Self::default();
        let bad = || TextError::Json {
            file: "tokenizer_config.json".into(),
            reason: "chat_template is neither a text nor a list of {name, template}".into(),
        };
        match chat_template {
            Value::Null => {}
            Value::String(text) => sources.default = Some(text.clone()),
            Value::Array(list) => {
                for item in list {
                    let field = |key| item.get(key).and_then(Value::as_str).map(String::from).ok_or_else(bad);
                    sources.named.insert(field("name")?, field("template")?);
                }
            }
            _ => return Err(bad()),
        }
        sources.settle();
        Ok(sources)
    }

    /// The template for a conversation, with or without tools.
    pub fn choose(&self, with_tools: bool) -> Option<&str> {
        let tools = self.named.get("tool_use").filter(|_| with_tools);
        tools.or(self.default.as_ref()).map(String::as_str)
    }

    /// A template called `default` is the default.
    fn settle(&mut self) {
        if let Some(text) = self.named.remove("default") {
            self.default.get_or_insert(text);
        }
    }
}
