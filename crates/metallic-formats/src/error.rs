//! What can be wrong with a model file.

use std::io;
use std::path::Path;

use metallic_core::UnknownDType;

/// A model file that cannot be used, and why.
///
/// Names taken from files are escaped and shortened before they get here, so a message is always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system refused.
    #[error("`{file}`: cannot {action}: {reason}")]
    Io {
        /// The file or folder.
        file: String,
        /// What was tried: `open`, `write`.
        action: &'static str,
        /// What the operating system said.
        reason: io::Error,
    },
    /// The first bytes belong to something else.
    #[error("`{file}` is not a {format} file: it begins with {found}, needed {needed}")]
    NotThisFormat {
        /// The file.
        file: String,
        /// The format it was read as.
        format: &'static str,
        /// Its first bytes.
        found: String,
        /// The first bytes of a file of this format.
        needed: &'static str,
    },
    /// The file ends too early.
    #[error("`{file}` ends inside {what}: {needed} bytes needed, {left} left; it is cut short or damaged")]
    Truncated {
        /// The file.
        file: String,
        /// What was being read.
        what: String,
        /// Bytes it takes.
        needed: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// A part of the file that is neither a key nor a tensor is wrong: version, counts, index.
    #[error("`{file}`: {what} is {found}, needed {needed}")]
    Header {
        /// The file or folder.
        file: String,
        /// The part.
        what: String,
        /// Its value.
        found: String,
        /// What would have been right.
        needed: String,
    },
    /// A required metadata key is absent.
    #[error("`{file}`: metadata key `{key}` is missing, needed {needed}")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The type of value needed.
        needed: &'static str,
    },
    /// A metadata key has a value of the wrong type or out of range.
    #[error("`{file}`: metadata key `{key}` is {found}, needed {needed}")]
    Key {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would have been right.
        needed: String,
    },
    /// A required tensor is absent.
    #[error("`{file}`: tensor `{tensor}` is missing")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// Shape, place or size of a tensor is wrong.
    #[error("`{file}`: tensor `{tensor}`: {what} is {found}, needed {needed}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The part of its description that is wrong.
        what: &'static str,
        /// Its value.
        found: String,
        /// What would have been right.
        needed: String,
    },
    /// The element type of a tensor is none this engine runs.
    #[error("`{file}`: tensor `{tensor}`: {reason}")]
    DType {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The type found and those supported.
        reason: UnknownDType,
    },
    /// A name that must be unique is not.
    #[error("`{file}`: {kind} `{name}` is there twice, needed once")]
    Duplicate {
        /// The file or folder.
        file: String,
        /// `metadata key` or `tensor`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Text that should be JSON of a certain form is not.
    #[error("`{file}`: {what} is not as needed: {reason}")]
    Json {
        /// The file.
        file: String,
        /// The part of the file.
        what: &'static str,
        /// Where and why.
        reason: serde_json::Error,
    },
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
        FormatError::Key {
            file: file.into(),
            key: shown(key),
            found: found.to_string(),
            needed: needed.into(),
        }
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
