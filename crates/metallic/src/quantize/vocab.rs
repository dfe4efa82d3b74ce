//! The tokenizer of a Hugging Face folder as metadata of GGUF.

use std::collections::HashMap;
use std::path::Path;

use metallic_formats::{Array, Metadata};
use serde_json::Value;

use super::QuantizeError;
use crate::text::{GPT2_PATTERN, TemplateSources, TextError, Tokenizer, pre_tokenizer_name};

/// What `tokenizer.ggml.token_type` calls tokens.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

/// Writes `tokenizer.*` of the folder; nothing where it has no tokenizer. A vocabulary that is shorter than the table of
/// embeddings is filled up.
pub(super) fn write(folder: &Path, rows: usize, metadata: &mut Metadata) -> Result<(), QuantizeError> {
    let path = folder.join("tokenizer.json");
    let file = path.display().to_string();
    if !path.exists() {
        metadata.insert("tokenizer.ggml.model", "no_vocab");
        return Ok(());
    }
    let unwritable = |found: String, needed: &str| QuantizeError::Unwritable {
        file: file.clone(),
        found,
        needed: needed.to_owned(),
    };
    let text_error = |error: TextError| unwritable(error.to_string(), "a tokenizer that can be read");
    // Refuses what is broken, and knows what the files beside it say.
    let tokenizer = Tokenizer::from_hf(folder).map_err(text_error)?;
    let bytes = std::fs::read(&path).map_err(|error| unwritable(error.to_string(), "a file"))?;
    let json: Value =
        serde_json::from_slice(&bytes).map_err(|error| unwritable(error.to_string(), "JSON"))?;
    let model = &json["model"];
    let byte_fallback = model["byte_fallback"].as_bool().unwrap_or(false);
    let merges = merges(&model["merges"]);
    let Tokens { texts, kinds } = Tokens::of(&json, rows, byte_fallback);
    if texts.len() > rows {
        return Err(unwritable(format!("{} tokens for {rows} embeddings", texts.len()), "no more tokens"));
    }
    if byte_fallback {
        metadata.insert("tokenizer.ggml.model", "llama");
        metadata.insert("tokenizer.ggml.pre", "default");
        metadata.insert("tokenizer.ggml.scores", Array::F32(scores(&texts, &merges)));
        metadata.insert("tokenizer.ggml.add_space_prefix", prepends(&json));
    } else {
        let patterns = patterns(&json["pre_tokenizer"]);
        let Some(name) = pre_tokenizer_name(&patterns) else {
            let found = format!("a pre-tokenizer that splits by {patterns:?}");
            return Err(unwritable(found, "one that GGUF files have a name for"));
        };
        metadata.insert("tokenizer.ggml.model", "gpt2");
        metadata.insert("tokenizer.ggml.pre", name);
        let merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
        metadata.insert("tokenizer.ggml.merges", Array::Strings(merges));
    }
    metadata.insert("tokenizer.ggml.tokens", Array::Strings(texts));
    metadata.insert("tokenizer.ggml.token_type", Array::I32(kinds));
    for (key, id) in [("bos", tokenizer.bos()), ("eos", tokenizer.eos())] {
        if let Some(id) = id {
            metadata.insert(format!("tokenizer.ggml.{key}_token_id"), id);
        }
    }
    let unknown = model["unk_token"].as_str().and_then(|text| tokenizer.token_to_id(text));
    if let Some(id) = unknown {
        metadata.insert("tokenizer.ggml.unknown_token_id", id);
    }
    metadata.insert("tokenizer.ggml.add_bos_token", tokenizer.adds_bos());
    let templates = TemplateSources::from_hf(folder).map_err(text_error)?;
    if let Some(template) = templates.choose(false) {
        metadata.insert("tokenizer.chat_template", template);
    }
    Ok(())
}

/// Tokens by their ids.
struct Tokens {
    texts: Vec<String>,
    kinds: Vec<i32>,
}

impl Tokens {
    fn of(json: &Value, rows: usize, byte_fallback: bool) -> Tokens {
        let mut found: HashMap<usize, (String, i32)> = HashMap::new();
        let unknown = json["model"]["unk_token"].as_str();
        let id = |value: &Value| value.as_u64().and_then(|id| usize::try_from(id).ok());
        for (text, value) in json["model"]["vocab"].as_object().into_iter().flatten() {
            let is_byte = byte_fallback && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
            let kind = if is_byte { kind::BYTE } else { kind::NORMAL };
            found.extend(id(value).map(|id| (id, (text.clone(), kind))));
        }
        for added in json["added_tokens"].as_array().into_iter().flatten() {
            let text = added["content"].as_str().unwrap_or_default();
            let is_special = added["special"].as_bool().unwrap_or(false);
            let kind = match is_special {
                _ if Some(text) == unknown && byte_fallback => kind::UNKNOWN,
                true => kind::CONTROL,
                false => kind::USER_DEFINED,
            };
            found.extend(id(&added["id"]).map(|id| (id, (text.to_owned(), kind))));
        }
        let len = found.keys().max().map_or(0, |last| last + 1).max(rows);
        let entry = |id: usize| found.remove(&id).unwrap_or_else(|| (format!("[PAD{id}]"), kind::UNUSED));
        let (texts, kinds) = (0..len).map(entry).unzip();
        Tokens { texts, kinds }
    }
}

/// `left right` or `[left, right]`.
fn merges(json: &Value) -> Vec<(String, String)> {
    let pair = |merge: &Value| {
        let joined = merge.as_str().and_then(|both| both.split_once(' '));
        let (left, right) = joined.or_else(|| Some((merge[0].as_str()?, merge[1].as_str()?)))?;
        Some((left.to_owned(), right.to_owned()))
    };
    json.as_array().into_iter().flatten().filter_map(pair).collect()
}

/// SentencePiece joins the pair whose whole has the highest score: what is merged first.
fn scores(texts: &[String], merges: &[(String, String)]) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let last = merges.len() as f32;
    texts.iter().map(|text| -ranks.get(text).map_or(last, |rank| *rank as f32)).collect()
}

/// Components of a tree of sequences.
fn leaves<'a>(json: &'a Value, out: &mut Vec<&'a Value>) {
    let inner = ["pretokenizers", "normalizers"].iter().find_map(|list| json[*list].as_array());
    match inner {
        Some(children) => children.iter().for_each(|child| leaves(child, out)),
        None => out.push(json),
    }
}

/// The patterns by which a byte-level tokenizer splits words.
fn patterns(pre_tokenizer: &Value) -> Vec<String> {
    let mut components = Vec::new();
    leaves(pre_tokenizer, &mut components);
    let pattern = |component: &&Value| match component["type"].as_str()? {
        "Split" => component["pattern"]["Regex"].as_str().map(str::to_owned),
        "Digits" if component["individual_digits"].as_bool() == Some(true) => Some(r"\p{N}".to_owned()),
        "Digits" => Some(r"\p{N}+".to_owned()),
        "ByteLevel" if component["use_regex"].as_bool() != Some(false) => Some(GPT2_PATTERN.to_owned()),
        "ByteLevel" => None,
        other => Some(format!("{{{other}}}")),
    };
    components.iter().filter_map(pattern).collect()
}

/// Whether a space is put before a text.
fn prepends(json: &Value) -> bool {
    let mut components = Vec::new();
    leaves(&json["normalizer"], &mut components);
    leaves(&json["pre_tokenizer"], &mut components);
    components.iter().any(|component| match component["type"].as_str() {
        Some("Prepend") => true,
        Some("Metaspace") => {
            let scheme = component["prepend_scheme"].as_str();
            scheme.map_or(component["add_prefix_space"].as_bool() != Some(false), |scheme| scheme != "never")
        }
        _ => false,
    })
}
