//! The format an answer must have.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use metallic::{
    Llm,
    constrain::{ConstrainError, Format},
    generate::Request,
};

use crate::fail::Failure;

/// What the answer is held to; one of these at most.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct FormatOptions {
    /// The answer is a JSON object
    #[arg(long)]
    json_object: bool,
    /// The answer is JSON that is valid by the schema in this file. A keyword that cannot be enforced is an error
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// The answer matches this expression from beginning to end, in Rust's syntax: `[0-9]{4}-[0-9]{2}`
    #[arg(long, value_name = "EXPRESSION")]
    regex: Option<String>,
    /// The answer is a text of the grammar in this file, in llguidance's variant of Lark
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
    /// The answer is this text, or one of them: give it several times
    #[arg(long, value_name = "TEXT")]
    choice: Vec<String>,
}

impl FormatOptions {
    /// The format, read and checked before the model is loaded: a mistake in it shows at once.
    pub(crate) fn read(&self) -> anyhow::Result<Option<Format>> {
        let format = match self {
            FormatOptions { json_object: true, .. } => Format::JsonObject,
            FormatOptions { json_schema: Some(path), .. } => {
                Format::json_schema(&text(path)?).map_err(|error| refused(&error))?
            }
            FormatOptions { regex: Some(expression), .. } => Format::Regex(expression.clone()),
            FormatOptions { grammar: Some(path), .. } => Format::Lark(text(path)?),
            FormatOptions { choice, .. } if !choice.is_empty() => Format::Choice(choice.clone()),
            _ => return Ok(None),
        };
        format.check().map_err(|error| refused(&error))?;
        Ok(Some(format))
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let hint = "give the path of a text file";
    let failed = |error| Failure::new(format!("cannot read `{}`: {error}", path.display()), hint);
    Ok(fs::read_to_string(path).map_err(failed)?)
}

fn refused(error: &ConstrainError) -> Failure {
    Failure::new(error.to_string(), "docs/structured-output.md says what answers can be held to")
}

/// Holds the answer to a request to a format, where there is one.
pub(crate) fn hold(request: Request, format: Option<&Format>, llm: &Llm) -> anyhow::Result<Request> {
    let Some(format) = format else { return Ok(request) };
    Ok(request.constraint(llm.constrainer()?.constraint(format).map_err(|error| refused(&error))?))
}
