//! Which of a repository's files make the model.

use std::path::Path;

use super::name::Pick;

/// Best first: what the engine runs well, a good size for its quality.
const PREFERRED: [&str; 9] = ["Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q4_1", "Q8_0", "Q6_K", "F16", "BF16"];

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

#[derive(Debug, PartialEq)]
pub(super) enum Choice<'a> {
    Gguf(&'a str),
    /// A folder of config, tokenizer and safetensors.
    Folder(Vec<&'a str>),
}

/// Why nothing could be chosen, and what there is.
#[derive(Debug, PartialEq)]
pub(super) struct NoChoice {
    pub(super) problem: String,
    pub(super) files: Vec<String>,
}

/// Chooses among the paths of a repository (or of its folder in the cache).
pub(super) fn choose<'a>(paths: &[&'a str], pick: &Pick) -> Result<Choice<'a>, NoChoice> {
    let ggufs: Vec<&str> = paths.iter().copied().filter(|path| is_model_gguf(path)).collect();
    let found = match pick {
        Pick::Any if ggufs.is_empty() => return folder(paths),
        Pick::Safetensors => return folder(paths),
        Pick::Any => favourite(&ggufs),
        Pick::Quant(quant) => by_quant(&ggufs, quant),
        Pick::File(file) => by_path(paths, file),
    };
    let Some(path) = found else {
        let problem = match pick {
            Pick::File(file) => format!("has no file `{file}`"),
            Pick::Quant(quant) => format!("has no GGUF file of type {quant}"),
            Pick::Any | Pick::Safetensors => "has several GGUF files, none of a usual type".to_owned(),
        };
        return Err(NoChoice { problem, files: ggufs.into_iter().map(str::to_owned).collect() });
    };
    if let Some(parts) = split_count(path) {
        let problem = format!("has `{path}` only split into {parts} files; fetch them and give the first");
        let whole = ggufs.into_iter().filter(|path| split_count(path).is_none());
        return Err(NoChoice { problem, files: whole.map(str::to_owned).collect() });
    }
    Ok(Choice::Gguf(path))
}

fn favourite<'a>(ggufs: &[&'a str]) -> Option<&'a str> {
    match ggufs {
        [only] => Some(only),
        _ => PREFERRED.iter().find_map(|quant| by_quant(ggufs, quant)),
    }
}

/// A whole file before a split one, then the shortest path: `x-Q4_K_M.gguf` before `draft/x-Q4_K_M.gguf`.
fn by_quant<'a>(ggufs: &[&'a str], quant: &str) -> Option<&'a str> {
    ggufs
        .iter()
        .copied()
        .filter(|path| has_quant(path, quant))
        .min_by_key(|path| (split_count(path).is_some(), path.len(), *path))
}

fn by_path<'a>(paths: &[&'a str], file: &str) -> Option<&'a str> {
    paths.iter().copied().find(|path| *path == file).or_else(|| {
        let mut same = paths.iter().copied().filter(|path| file_name(path) == file);
        same.next().filter(|_| same.next().is_none())
    })
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

/// How many files `x-00001-of-00003.gguf` is one of.
fn split_count(path: &str) -> Option<u32> {
    let name = file_name(path).to_ascii_lowercase();
    let (head, total) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (_, number) = head.rsplit_once('-')?;
    number.parse::<u32>().ok()?;
    total.parse().ok()
}

fn file_name(path: &str) -> &str {
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
    ];

    fn quant(name: &str) -> Pick {
        Pick::Quant(name.to_owned())
    }

    #[test]
    fn a_quantisation_is_found_only_as_a_whole_word() {
        assert_eq!(choose(QUANTS, &quant("Q8_0")), Ok(Choice::Gguf("M-Q8_0.gguf")));
        assert_eq!(choose(&["m.q4_k_m.gguf"], &quant("Q4_K_M")), Ok(Choice::Gguf("m.q4_k_m.gguf")));
        for absent in ["Q4_0", "Q4_K", "F16"] {
            let error = choose(QUANTS, &quant(absent)).unwrap_err();
            assert_eq!(error.problem, format!("has no GGUF file of type {absent}"));
            assert!(error.files.contains(&"M-Q8_0.gguf".to_owned()));
            assert!(!error.files.iter().any(|file| file.starts_with("mmproj")));
        }
    }

    #[test]
    fn without_a_choice_the_usual_type_wins_and_a_lone_file_always_does() {
        assert_eq!(choose(QUANTS, &Pick::Any), Ok(Choice::Gguf("M-Q4_K_M.gguf")));
        assert_eq!(choose(&["odd.gguf", "x.md"], &Pick::Any), Ok(Choice::Gguf("odd.gguf")));
        assert!(choose(&["odd.gguf", "even.gguf"], &Pick::Any).unwrap_err().problem.contains("several"));
    }

    #[test]
    fn a_split_file_is_refused_and_whole_ones_are_offered() {
        let error = choose(QUANTS, &quant("F32")).unwrap_err();
        assert!(error.problem.contains("split into 2 files"), "{}", error.problem);
        assert_eq!(error.files.len(), 4);
    }

    #[test]
    fn a_file_is_found_by_path_or_by_a_name_that_occurs_once() {
        let file = |name: &str| Pick::File(name.to_owned());
        assert_eq!(choose(QUANTS, &file("M-Q8_0.gguf")), Ok(Choice::Gguf("M-Q8_0.gguf")));
        assert_eq!(choose(&["a/m.gguf"], &file("m.gguf")), Ok(Choice::Gguf("a/m.gguf")));
        assert!(choose(&["a/m.gguf", "b/m.gguf"], &file("m.gguf")).is_err());
    }

    #[test]
    fn a_folder_takes_one_set_of_weights_and_what_stands_beside_it() {
        let single =
            ["config.json", "model.safetensors", "model-00001-of-00001.safetensors", "tokenizer.json"];
        let Ok(Choice::Folder(files)) = choose(&single, &Pick::Any) else { panic!("no folder") };
        assert_eq!(files, ["config.json", "model.safetensors", "tokenizer.json"]);

        let sharded = [
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "original/params.json",
            "pytorch_model.bin",
        ];
        let Ok(Choice::Folder(files)) = choose(&sharded, &Pick::Safetensors) else { panic!("no folder") };
        assert_eq!(files, [sharded[0], sharded[2], sharded[3], sharded[4]]);
    }

    #[test]
    fn an_incomplete_folder_says_what_is_missing() {
        for (paths, problem) in [
            (&["README.md"][..], "neither"),
            (&["model.safetensors"][..], "no config.json"),
            (&["config.json", "model-00001-of-00002.safetensors"][..], "index.json"),
        ] {
            let error = choose(paths, &Pick::Any).unwrap_err();
            assert!(error.problem.contains(problem), "{}", error.problem);
        }
    }
}
