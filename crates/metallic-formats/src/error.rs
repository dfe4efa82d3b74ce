//! What can be wrong with a model file.

use std::io;
use std::path::Path;

use metallic_core::{BytesLost, UnknownDType};

/// A model file that cannot be used, and why.
///
/// Names taken from files are escaped and shortened before they get here, so a message is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum FormatError {
    /// The operating system refused.
    #[error("`{file}`: cannot {action}: {reason}")]
    Io { file: String, action: &'static str, reason: io::Error },
    /// Bytes of the file cannot be had (any more).
    #[error(transparent)]
    Lost(#[from] BytesLost),
    /// The first bytes belong to something else.
    #[error("`{file}` is not a {format} file: it begins with {found}, needed {needed}")]
    NotThisFormat { file: String, format: &'static str, found: String, needed: &'static str },
    /// The file ends too early.
    #[error("`{file}` ends inside {what}: {needed} bytes needed, {left} left; it is cut short or damaged")]
    Truncated { file: String, what: String, needed: u64, left: u64 },
    /// A part of the file that is neither a key nor a tensor is wrong: version, counts, index.
    #[error("`{file}`: {what} is {found}, needed {needed}")]
    Header { file: String, what: String, found: String, needed: String },
    /// A required metadata key is absent.
    #[error("`{file}`: metadata key `{key}` is missing, needed {needed}")]
    MissingKey { file: String, key: String, needed: &'static str },
    /// A metadata key has a value of the wrong type or out of range.
    #[error("`{file}`: metadata key `{key}` is {found}, needed {needed}")]
    Key { file: String, key: String, found: String, needed: String },
    /// A required tensor is absent.
    #[error("`{file}`: tensor `{tensor}` is missing")]
    MissingTensor { file: String, tensor: String },
    /// Shape, place or size of a tensor is wrong.
    #[error("`{file}`: tensor `{tensor}`: {what} is {found}, needed {needed}")]
    Tensor { file: String, tensor: String, what: &'static str, found: String, needed: String },
    /// The element type of a tensor is none this engine runs.
    #[error("`{file}`: tensor `{tensor}`: {reason}")]
    DType { file: String, tensor: String, reason: UnknownDType },
    /// A name that must be unique is not.
    #[error("`{file}`: {kind} `{name}` is there twice, needed once")]
    Duplicate { file: String, kind: &'static str, name: String },
    /// Text that should be JSON of a certain form is not.
    #[error("`{file}`: {what} is not as needed: {reason}")]
    Json { file: String, what: &'static str, reason: serde_json::Error },
}

#[allow(clippy::needless_pass_by_value, reason = "numbers and texts are both given as they are")]
impl FormatError {
    pub(crate) fn io(path: &Path, action: &'static str, reason: io::Error) -> FormatError {
        FormatError::Io { file: path.display().to_string(), action, reason }
    }

    pub(crate) fn header(
        file: &str,
        what: impl Into<String>,
        found: impl ToString,
        needed: impl Into<String>,
    ) -> FormatError {
        let (what, needed) = (what.into(), needed.into());
        FormatError::Header { file: file.into(), what, found: found.to_string(), needed }
    }

    pub(crate) fn key(file: &str, key: &str, found: impl ToString, needed: impl Into<String>) -> FormatError {
        let (key, needed) = (shown(key), needed.into());
        FormatError::Key { file: file.into(), key, found: found.to_string(), needed }
    }

    pub(crate) fn duplicate(file: &str, kind: &'static str, name: &str) -> FormatError {
        FormatError::Duplicate { file: file.into(), kind, name: shown(name) }
    }

    pub(crate) fn tensor(
        file: &str,
        tensor: &str,
        what: &'static str,
        found: impl ToString,
        needed: impl Into<String>,
    ) -> FormatError {
        let (tensor, needed) = (shown(tensor), needed.into());
        FormatError::Tensor { file: file.into(), tensor, what, found: found.to_string(), needed }
    }
}

/// A name from a file made fit for a message: escaped, and cut after 80 characters.
pub(crate) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    if name.chars().nth(80).is_some() {
        text.push('…');
    }
    text
}
