//! Which of a repository's files make the model.

use std::path::Path;

use super::{
    fit::{Fit, best},
    name::Pick,
    split::{Model, Part, models},
};

/// What stands beside the weights in a model folder.
const SIDE_FILES: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

const SHARD_INDEX: &str = "model.safetensors.index.json";

/// A file of a repository, or of its folder in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offer<'a> {
    pub(super) path: &'a str,
    pub(super) bytes: Option<u64>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Choice<'a> {
    /// A GGUF model: its file, or its files in order; and why this one, where there was a choice.
    Gguf { files: Vec<&'a str>, why: Option<Fit> },
    /// A folder of config, tokenizer and safetensors.
    Folder(Vec<&'a str>),
}

/// Why nothing could be chosen, and what there is.
#[derive(Debug, PartialEq)]
pub(super) struct NoChoice {
    pub(super) problem: String,
    pub(super) files: Vec<String>,
}

/// Chooses among the files of a repository (or of its folder in the cache), for so many bytes of memory.
pub(super) fn choose<'a>(
    offers: &[Offer<'a>],
    pick: &Pick,
    memory: Option<u64>,
) -> Result<Choice<'a>, NoChoice> {
    let paths: Vec<&str> = offers.iter().map(|offer| offer.path).collect();
    let all = models(offers.iter().filter(|offer| is_model_gguf(offer.path)));
    let (whole, torn): (Vec<_>, Vec<_>) = all.into_iter().partition(Model::is_whole);
    let none = |problem: String| {
        let files = whole.iter().map(|model| model.path().to_owned()).collect();
        Err(NoChoice { problem, files })
    };
    let found = match pick {
        Pick::Any if whole.is_empty() && torn.is_empty() => return folder(&paths),
        Pick::Safetensors => return folder(&paths),
        Pick::Any => match best(&whole, memory) {
            Ok((model, why)) => Some((model, why)),
            Err(problem) if torn.is_empty() => return none(problem),
            Err(_) => None,
        },
        Pick::Quant(quant) => by_quant(&whole, quant).map(|model| (model, None)),
        Pick::File(file) => match by_path(&whole, file) {
            None if is_alone(&paths, file) => {
                return Ok(Choice::Gguf { files: by_name(&paths, file), why: None });
            }
            found => found.map(|model| (model, None)),
        },
    };
    if let Some((model, why)) = found {
        return Ok(Choice::Gguf { files: model.files(), why });
    }
    let torn = match pick {
        Pick::Any | Pick::Safetensors => torn.first(),
        Pick::Quant(quant) => torn.iter().find(|model| has_quant(model.path(), quant)),
        Pick::File(file) => by_path(&torn, file),
    };
    none(match (torn, pick) {
        (Some(torn), _) => {
            format!("has only {} of the {} parts of `{}`", torn.found(), torn.total(), torn.path())
        }
        (None, Pick::File(file)) => format!("has no file `{file}`"),
        (None, Pick::Quant(quant)) => format!("has no GGUF file of type {quant}"),
        (None, Pick::Any | Pick::Safetensors) => "has no GGUF file that could be taken".to_owned(),
    })
}

/// Whether `path`, a GGUF file, is what a pick asks for.
pub(super) fn is_picked(path: &str, pick: &Pick) -> bool {
    match pick {
        Pick::Any => true,
        Pick::Safetensors => false,
        Pick::Quant(quant) => has_quant(path, quant),
        Pick::File(file) => {
            path == file
                || file_name(path) == file
                || Part::of(path).is_some_and(|part| part.belongs_with(file))
        }
    }
}

/// A whole file before a split one, then the shortest path: `x-Q4_K_M.gguf` before `draft/x-Q4_K_M.gguf`.
pub(super) fn by_quant<'m, 'a>(models: &'m [Model<'a>], quant: &str) -> Option<&'m Model<'a>> {
    models
        .iter()
        .filter(|model| has_quant(model.path(), quant))
        .min_by_key(|model| (model.total() > 1, model.path().len(), model.path()))
}

fn by_path<'m, 'a>(models: &'m [Model<'a>], file: &str) -> Option<&'m Model<'a>> {
    let has =
        |model: &&Model<'a>, same: fn(&str) -> &str| model.files().iter().any(|path| same(path) == file);
    models.iter().find(|model| has(model, |path| path)).or_else(|| {
        let mut named = models.iter().filter(|model| has(model, file_name));
        named.next().filter(|_| named.next().is_none())
    })
}

/// A file that is no model by its name, such as an importance matrix, when it is named itself.
fn by_name<'a>(paths: &[&'a str], file: &str) -> Vec<&'a str> {
    let exact: Vec<&str> = paths.iter().copied().filter(|path| *path == file).take(1).collect();
    if exact.is_empty() {
        paths.iter().copied().filter(|path| file_name(path) == file).collect()
    } else {
        exact
    }
}

fn is_alone(paths: &[&str], file: &str) -> bool {
    let found = by_name(paths, file);
    found.len() == 1 && !is_model_gguf(found[0])
}

fn folder<'a>(paths: &[&'a str]) -> Result<Choice<'a>, NoChoice> {
    let has = |name: &str| paths.contains(&name);
    let missing = |problem: &str| Err(NoChoice { problem: problem.to_owned(), files: Vec::new() });
    if !paths.iter().any(|path| is_weight(path)) {
        return missing("has neither a GGUF file nor model.safetensors");
    }
    if !has("config.json") {
        return missing("has safetensors but no config.json");
    }
    let whole = has("model.safetensors");
    if !whole && !has(SHARD_INDEX) {
        return missing("has safetensors shards but no model.safetensors.index.json");
    }
    let wanted = |path: &&&str| match **path {
        "model.safetensors" => true,
        SHARD_INDEX => !whole,
        path => SIDE_FILES.contains(&path) || (!whole && is_weight(path)),
    };
    Ok(Choice::Folder(paths.iter().filter(wanted).copied().collect()))
}

/// `model.safetensors` or `model-00001-of-00002.safetensors`, at the top of the repository.
fn is_weight(path: &str) -> bool {
    path == "model.safetensors"
        || path
            .strip_prefix("model-")
            .and_then(|rest| rest.strip_suffix(".safetensors"))
            .is_some_and(|middle| !middle.contains('/') && middle.contains("-of-"))
}

/// Vision projectors and importance matrices are GGUF files too, but not models.
fn is_model_gguf(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    is_gguf(&name) && !name.starts_with("mmproj") && !name.contains("imatrix")
}

pub(super) fn is_gguf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|ext| ext.eq_ignore_ascii_case("gguf"))
}

/// `quant` stands in the name after a separator, and what follows does not continue it: `Q4_K` is
/// not in `x-Q4_K_M.gguf`.
fn has_quant(path: &str, quant: &str) -> bool {
    let name = file_name(path).to_ascii_uppercase();
    let stem = name.strip_suffix(".GGUF").unwrap_or(&name);
    stem.match_indices(quant).any(|(at, _)| {
        let before = stem[..at].chars().next_back();
        let after = stem[at + quant.len()..].chars().next();
        before.is_none_or(|c| !c.is_alphanumeric()) && after.is_none_or(|c| c == '-' || c == '.')
    })
}

pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTS: &[&str] = &[
        "README.md",
        "M-Q4_K_M.gguf",
        "M-Q4_K_S.gguf",
        "M-Q8_0.gguf",
        "M-Q4_0_4_4.gguf",
        "mmproj-M-F16.gguf",
        "F32/M-F32-00001-of-00002.gguf",
        "F32/M-F32-00002-of-00002.gguf",
        "M-Q6_K-00002-of-00003.gguf",
    ];

    fn of<'a>(paths: &[&'a str], pick: &Pick) -> Result<Vec<&'a str>, NoChoice> {
        let offers: Vec<Offer<'_>> = paths.iter().map(|path| Offer { path, bytes: None }).collect();
        choose(&offers, pick, Some(1 << 30)).map(|choice| match choice {
            Choice::Gguf { files, .. } | Choice::Folder(files) => files,
        })
    }

    fn quant(name: &str) -> Pick {
        Pick::Quant(name.to_owned())
    }

    #[test]
    fn a_quantisation_is_found_only_as_a_whole_word() {
        assert_eq!(of(QUANTS, &quant("Q8_0")).unwrap(), ["M-Q8_0.gguf"]);
        assert_eq!(of(&["m.q4_k_m.gguf"], &quant("Q4_K_M")).unwrap(), ["m.q4_k_m.gguf"]);
        for absent in ["Q4_0", "Q4_K", "F16"] {
            let error = of(QUANTS, &quant(absent)).unwrap_err();
            assert_eq!(error.problem, format!("has no GGUF file of type {absent}"));
            assert!(error.files.contains(&"M-Q8_0.gguf".to_owned()));
            assert!(!error.files.iter().any(|file| file.starts_with("mmproj")));
        }
    }

    #[test]
    fn a_split_model_is_taken_whole_or_not_at_all() {
        let parts = ["F32/M-F32-00001-of-00002.gguf", "F32/M-F32-00002-of-00002.gguf"];
        assert_eq!(of(QUANTS, &quant("F32")).unwrap(), parts);
        for named in [parts[0], parts[1], "M-F32-00002-of-00002.gguf"] {
            assert_eq!(of(QUANTS, &Pick::File(named.to_owned())).unwrap(), parts);
            assert!(is_picked(parts[0], &Pick::File(named.to_owned())), "{named}");
        }
        for pick in [quant("Q6_K"), Pick::File("M-Q6_K-00002-of-00003.gguf".to_owned())] {
            let error = of(QUANTS, &pick).unwrap_err();
            assert_eq!(error.problem, "has only 1 of the 3 parts of `M-Q6_K-00002-of-00003.gguf`");
        }
        assert!(of(&QUANTS[8..], &Pick::Any).unwrap_err().problem.contains("only 1 of the 3 parts"));
    }

    #[test]
    fn a_file_is_found_by_path_or_by_a_name_that_occurs_once() {
        let file = |name: &str| Pick::File(name.to_owned());
        assert_eq!(of(QUANTS, &file("M-Q8_0.gguf")).unwrap(), ["M-Q8_0.gguf"]);
        assert_eq!(of(QUANTS, &file("mmproj-M-F16.gguf")).unwrap(), ["mmproj-M-F16.gguf"]);
        assert_eq!(of(&["a/m.gguf"], &file("m.gguf")).unwrap(), ["a/m.gguf"]);
        assert!(of(&["a/m.gguf", "b/m.gguf"], &file("m.gguf")).is_err());
    }

    #[test]
    fn a_folder_takes_one_set_of_weights_and_what_stands_beside_it() {
        let single =
            ["config.json", "model.safetensors", "model-00001-of-00001.safetensors", "tokenizer.json"];
        assert_eq!(of(&single, &Pick::Any).unwrap(), ["config.json", "model.safetensors", "tokenizer.json"]);

        let sharded = [
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "original/model.safetensors",
        ];
        assert_eq!(
            of(&sharded, &Pick::Safetensors).unwrap(),
            [
                "config.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
                "model.safetensors.index.json"
            ]
        );
    }

    #[test]
    fn an_incomplete_folder_says_what_is_missing() {
        for (paths, problem) in [
            (&["README.md"][..], "neither"),
            (&["model.safetensors"][..], "no config.json"),
            (&["config.json", "model-00001-of-00002.safetensors"][..], "index.json"),
        ] {
            let error = of(paths, &Pick::Any).unwrap_err();
            assert!(error.problem.contains(problem), "{}", error.problem);
        }
    }
}
