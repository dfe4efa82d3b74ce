//! Model names: what may stand after `-m`.

use std::{borrow::Cow, fmt, path::PathBuf};

use strsim::levenshtein;

use super::{
    HubError,
    alias::{ALIASES, Alias},
};
use crate::escape;

/// A parsed model name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ModelName {
    /// A file or folder of the user.
    Path(PathBuf),
    /// A short name of ours.
    Alias(&'static Alias),
    /// Something on the hub.
    Hub(Reference),
}

/// `OWNER/REPO[:PICK]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reference {
    pub(super) repo: Repo,
    pub(super) pick: Pick,
}

/// `OWNER/REPO`, checked: safe in a URL and as part of a file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repo(String);

/// Which of a repository's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pick {
    /// The GGUF file we like best, else the safetensors.
    Any,
    /// A GGUF file by its path in the repository.
    File(String),
    /// A GGUF file by its quantisation, in capitals.
    Quant(String),
    /// The safetensors weights with config and tokenizer.
    Safetensors,
}

impl ModelName {
    /// Aliases first, then what exists on disk, then the shape of the name.
    pub(crate) fn parse(text: &str) -> Result<Self, HubError> {
        if text.is_empty() {
            let problem = "it is empty";
            return Err(HubError::BadName { name: String::new(), problem });
        }
        if let Some(alias) = ALIASES.iter().find(|alias| alias.name.eq_ignore_ascii_case(text)) {
            return Ok(Self::Alias(alias));
        }
        let path = PathBuf::from(text);
        if path.exists() {
            return Ok(Self::Path(path));
        }
        let is_path = !text.contains(':') && text.to_ascii_lowercase().ends_with(".gguf");
        if is_path || text.starts_with(['.', '/', '~', '\\']) || text.ends_with('/') {
            return Err(HubError::NoSuchPath { path });
        }
        if text.contains('/') {
            return Reference::parse(text).map(Self::Hub);
        }
        Err(HubError::UnknownName { name: text.to_owned(), near: nearest_alias(text) })
    }
}

impl Reference {
    pub(super) fn parse(text: &str) -> Result<Self, HubError> {
        let bad = |problem| HubError::BadName { name: text.to_owned(), problem };
        let (repo, pick) = text.split_once(':').map_or((text, None), |(repo, pick)| (repo, Some(pick)));
        let (owner, name) = repo.split_once('/').ok_or_else(|| bad("OWNER/ is missing"))?;
        if ![owner, name].into_iter().all(is_repo_part) {
            return Err(bad(
                "owner and repository are letters, digits, `-`, `_` and `.`, with one `/` between",
            ));
        }
        let pick = match pick {
            None => Pick::Any,
            Some(pick) if pick.eq_ignore_ascii_case("safetensors") => Pick::Safetensors,
            Some(pick) if pick.to_ascii_lowercase().ends_with(".gguf") => {
                if !is_safe_path(pick) {
                    return Err(bad(
                        "the file's path leaves the repository, is hidden or holds control characters",
                    ));
                }
                Pick::File(pick.to_owned())
            }
            Some(pick) if is_quant(pick) => Pick::Quant(pick.to_ascii_uppercase()),
            Some(_) => {
                return Err(bad("after `:` comes a quantisation (Q4_K_M), a FILE.gguf, or `safetensors`"));
            }
        };
        Ok(Self { repo: Repo(repo.to_owned()), pick })
    }
}

/// What was typed, or would do as well.
impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Alias(alias) => f.write_str(alias.name),
            Self::Hub(reference) => write!(f, "{reference}"),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pick {
            Pick::Any => write!(f, "{}", self.repo),
            Pick::File(pick) | Pick::Quant(pick) => write!(f, "{}:{pick}", self.repo),
            Pick::Safetensors => write!(f, "{}:safetensors", self.repo),
        }
    }
}

impl Repo {
    /// `OWNER--REPO`: the hub allows no `--` inside either part, so this can be read back.
    pub(super) fn folder(&self) -> String {
        self.0.replace('/', "--")
    }

    pub(super) fn from_folder(folder: &str) -> Option<Self> {
        let (owner, name) = folder.split_once("--")?;
        let valid = is_repo_part(owner) && is_repo_part(name);
        valid.then(|| Self(format!("{owner}/{name}")))
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_repo_part(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with(['.', '-'])
        && !part.contains("--")
        && !part.contains("..")
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_quant(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// A relative path that stays below where it starts, on every system, and that can be shown. Names that begin with a dot
/// are the cache's own.
pub(super) fn is_safe_path(path: &str) -> bool {
    !path.contains(['\\', ':'])
        && matches!(escape::line(path), Cow::Borrowed(_))
        && path.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && part.len() <= 240)
}

fn nearest_alias(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let close = |alias: &&Alias| {
        let (short, long) = (text.len().min(alias.name.len()), text.len().max(alias.name.len()));
        let begins = short >= 3 && (alias.name.starts_with(&text) || text.starts_with(alias.name));
        begins || levenshtein(&text, alias.name) * 3 <= long
    };
    ALIASES.iter().filter(close).min_by_key(|alias| levenshtein(&text, alias.name)).map(|alias| alias.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(text: &str) -> (String, Pick) {
        match ModelName::parse(text) {
            Ok(ModelName::Hub(reference)) => (reference.repo.to_string(), reference.pick),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn hub_references_take_a_file_a_quantisation_or_nothing() {
        let cases = [
            ("Qwen/Qwen2.5-0.5B", Pick::Any),
            ("Qwen/Qwen2.5-0.5B:q4_k_m", Pick::Quant("Q4_K_M".into())),
            ("Qwen/Qwen2.5-0.5B:a/b.GGUF", Pick::File("a/b.GGUF".into())),
            ("Qwen/Qwen2.5-0.5B:safetensors", Pick::Safetensors),
        ];
        for (text, pick) in cases {
            assert_eq!(hub(text), ("Qwen/Qwen2.5-0.5B".to_owned(), pick));
        }
    }

    #[test]
    fn names_that_could_leave_the_cache_or_the_url_are_refused() {
        for text in [
            "a/..",
            "a/b:../x.gguf",
            "a/b?x=1",
            "a/b/c",
            "a--x/b",
            "a/b:/etc/x.gguf",
            "a/b:.x.gguf",
            "a/b:\x1b[2Jx.gguf",
            "a/b:\u{202e}x.gguf",
            "a/b:q 4",
            "a/b:",
        ] {
            assert!(matches!(ModelName::parse(text), Err(HubError::BadName { .. })), "{text}");
        }
    }

    #[test]
    fn a_missing_file_is_a_path_error_and_not_a_hub_name() {
        for text in ["no/such.gguf", "./nothing", "/nothing/here", "nothing.gguf"] {
            assert!(matches!(ModelName::parse(text), Err(HubError::NoSuchPath { .. })), "{text}");
        }
    }

    #[test]
    fn a_misspelt_alias_gets_the_nearest_one_and_nonsense_gets_none() {
        for (text, near) in [
            ("smolm2", Some("smollm2")),
            ("qwen2.5-0.5", Some("qwen2.5-0.5b")),
            ("mistral", Some("mistral-7b")),
            ("xyzzy", None),
        ] {
            match ModelName::parse(text) {
                Err(HubError::UnknownName { near: found, .. }) => assert_eq!(found, near, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_repository_survives_the_trip_through_its_folder_name() {
        let repo = Repo("a-b_c/d.e-f".into());
        assert_eq!(Repo::from_folder(&repo.folder()), Some(repo));
    }
}
