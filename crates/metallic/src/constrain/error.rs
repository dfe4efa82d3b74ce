//! Why a format was refused.

/// What is wrong with a [`Format`](super::Format), or why no answer can be held to one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstrainError {
    /// A schema says something that answers cannot be held to.
    #[error("the schema has `{keyword}` at `{pointer}`, which cannot be enforced")]
    Unsupported {
        /// Where, as a JSON pointer into the schema.
        pointer: String,
        /// The keyword.
        keyword: String,
    },
    /// A keyword has a value that it cannot have.
    #[error("`{pointer}` of the schema is {found}, it must be {needed}")]
    Invalid {
        /// Where, as a JSON pointer into the schema.
        pointer: String,
        /// The value, cut short.
        found: String,
        /// What is allowed.
        needed: &'static str,
    },
    /// The format would cost too much time or memory.
    #[error("the {what} is {found}, the limit is {limit}")]
    TooLarge {
        /// What was measured.
        what: &'static str,
        /// How much of it there is.
        found: usize,
        /// How much there may be.
        limit: usize,
    },
    /// The grammar, or what a schema or an expression became, is none.
    #[error("the {kind} cannot be used: {reason}")]
    Grammar {
        /// What the caller gave: `JSON schema`, `regular expression`, `grammar` or `choice`.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The vocabulary cannot be made into a tree of tokens.
    #[error("the vocabulary cannot be used for structured answers: {reason}")]
    Vocabulary {
        /// What is wrong with it.
        reason: String,
    },
    /// The matcher gave up in the middle of an answer.
    #[error("the answer could not be held to its format: {reason}")]
    Matcher {
        /// What it said.
        reason: String,
    },
}

/// The first line of what the matcher said: the rest is for its own developers.
pub(super) fn reason(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(400).collect()
}
