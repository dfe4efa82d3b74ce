//! Tokenizer and templates of a model whose weights are not needed, or not there.

use std::path::Path;

use anyhow::Context;
use clap::Args;
use metallic::{
    ChatTemplate, Tokenizer,
    formats::Gguf,
    text::{TemplateSources, TextError},
};

use crate::{fail::Failure, hub::DEFAULT_MODEL, load, term::Ui};

/// Whose tokenizer.
#[derive(Debug, Args)]
pub(super) struct TextOptions {
    /// A model, or a tokenizer.json
    #[arg(short, long, value_name = "MODEL_OR_TOKENIZER_JSON", default_value = DEFAULT_MODEL)]
    model: String,
}

/// What turns text into tokens, and conversations into text.
pub(super) struct Text {
    pub(super) tokenizer: Tokenizer,
    templates: Result<TemplateSources, TextError>,
}

impl TextOptions {
    /// Reads a GGUF file (with or without weights), a folder, or a `tokenizer.json` with the files beside it.
    pub(super) fn open(&self, ui: Ui) -> anyhow::Result<Text> {
        let path = load::path(&self.model, ui)?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        if path.is_dir() || is_json {
            let folder = if is_json { path.parent().unwrap_or(Path::new("")) } else { &path };
            let tokenizer = Tokenizer::from_hf(&path);
            let tokenizer = tokenizer.with_context(|| format!("`{}`", path.display()))?;
            return Ok(Text { tokenizer, templates: TemplateSources::from_hf(folder) });
        }
        let file = Gguf::open(&path).map_err(|error| load::repairable(&self.model, error.into()))?;
        let tokenizer = Tokenizer::from_gguf(&file.metadata);
        // Errors of the metadata name the file themselves.
        let tokenizer = tokenizer.map_err(|error| match error {
            TextError::Metadata(error) => anyhow::Error::from(error),
            other => anyhow::Error::from(other).context(format!("`{}`", path.display())),
        })?;
        load::doubts(&tokenizer, ui);
        Ok(Text { tokenizer, templates: TemplateSources::from_gguf(&file.metadata) })
    }
}

impl Text {
    /// The template for a conversation, with or without tools: that of a file, else the model's own.
    pub(super) fn template(self, file: Option<&Path>, with_tools: bool) -> anyhow::Result<ChatTemplate> {
        if let Some(file) = file {
            return Ok(ChatTemplate::from_file(file, &self.tokenizer)?);
        }
        let templates = self.templates?;
        let source = templates.choose(with_tools).ok_or_else(|| {
            Failure::new("the model has no chat template", "take an instruct model, or give a `--template`")
        })?;
        Ok(ChatTemplate::for_tokenizer(source, &self.tokenizer)?)
    }
}
