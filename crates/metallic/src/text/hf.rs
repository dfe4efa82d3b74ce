//! Tokenizers from `tokenizer.json`, with the special tokens that the files beside it name.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::added::AddedToken;
use super::bounds::Patience;
use super::bpe::{Alphabet, Bpe};
use super::hf_pipeline::{self, DecoderJson, NormalizerJson, PreTokenizerJson, ProcessorJson};
use super::pipeline::{Step, normalized_limit};
use super::tokenizer::{Model, Parts};
use super::unigram::Unigram;
use super::vocab::{Kind, Spelling, Token, Vocab, parse_byte_token};
use super::{TextError, Tokenizer};

/// The texts of the JSON files that describe a tokenizer.
#[derive(Clone, Copy, Debug, Default)]
pub struct HfFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`: names the special tokens.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `generation_config.json`: lists the tokens that end a generation.
    pub generation_config: Option<&'a [u8]>,
    /// `config.json`: has ids of special tokens where the others have none.
    pub config: Option<&'a [u8]>,
}

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedJson>,
    normalizer: Option<NormalizerJson>,
    pre_tokenizer: Option<PreTokenizerJson>,
    post_processor: Option<ProcessorJson>,
    decoder: Option<DecoderJson>,
    model: ModelJson,
}

#[derive(Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of the file format")]
struct AddedJson {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct ModelJson {
    /// Absent in old files, which are all BPE.
    r#type: Option<String>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    /// Checked after the type: other models have other tables here.
    vocab: Value,
    #[serde(default)]
    merges: Value,
    /// The unknown token of a unigram model.
    unk_id: Option<u64>,
}

impl ModelJson {
    fn is_unigram(&self) -> bool {
        self.r#type.as_deref() == Some("Unigram")
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Joined(String),
    Pair(String, String),
}

#[derive(Default, Deserialize)]
#[allow(clippy::struct_field_names, reason = "the names of the file format")]
struct ConfigJson {
    bos_token: Option<NameJson>,
    eos_token: Option<NameJson>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
}

/// A token's name, alone or in an object with its flags.
#[derive(Deserialize)]
#[serde(untagged)]
enum NameJson {
    Name(String),
    Object { content: String },
}

impl NameJson {
    fn name(&self) -> &str {
        match self {
            Self::Name(name) | Self::Object { content: name } => name,
        }
    }
}

#[derive(Default, Deserialize)]
struct IdsJson {
    bos_token_id: Option<OneOrMany>,
    eos_token_id: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(i64),
    Many(Vec<i64>),
}

impl OneOrMany {
    /// The ids that the vocabulary has.
    fn ids(&self, vocab: &Vocab) -> Vec<u32> {
        let ids = match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        };
        let valid = |&id: &i64| u32::try_from(id).ok().filter(|&id| (id as usize) < vocab.len());
        ids.iter().filter_map(valid).collect()
    }
}

impl Tokenizer {
    /// The tokenizer in a Hugging Face folder, or the one of a `tokenizer.json` file and the files beside it.
    pub fn from_hf(path: &Path) -> Result<Self, TextError> {
        let (folder, file) = if path.is_dir() {
            (path, path.join("tokenizer.json"))
        } else {
            (path.parent().unwrap_or(Path::new("")), path.to_owned())
        };
        let tokenizer = std::fs::read(&file).map_err(|source| TextError::Io { path: file, source })?;
        let beside = |name: &str| read_if_present(&folder.join(name));
        let config = beside("tokenizer_config.json")?;
        let generation = beside("generation_config.json")?;
        let model = beside("config.json")?;
        Self::from_hf_files(HfFiles {
            tokenizer: &tokenizer,
            tokenizer_config: config.as_deref(),
            generation_config: generation.as_deref(),
            config: model.as_deref(),
        })
    }

    /// The tokenizer that `files` describe.
    pub fn from_hf_files(files: HfFiles<'_>) -> Result<Self, TextError> {
        let json: TokenizerJson = parse("tokenizer.json", files.tokenizer)?;
        let config: ConfigJson = parse_opt("tokenizer_config.json", files.tokenizer_config)?;
        let generation: IdsJson = parse_opt("generation_config.json", files.generation_config)?;
        // Only asked for two ids here; whoever reads the model checks the rest.
        let ids: IdsJson = parse_opt("config.json", files.config).unwrap_or_default();

        let spelling = hf_pipeline::spelling(json.decoder.as_ref(), json.pre_tokenizer.as_ref())?;
        check_model(&json.model)?;
        let vocab = vocab(&json, spelling)?;
        let model = if json.model.is_unigram() {
            Model::Unigram(unigram(&json.model, &vocab)?)
        } else {
            Model::Bpe(bpe(&json.model, &vocab, spelling)?)
        };
        let special = |key: &str, name: Option<&NameJson>, ids: [Option<&OneOrMany>; 2]| {
            let Some(name) = name.map(NameJson::name).filter(|name| !name.is_empty()) else {
                return Ok(ids.into_iter().flatten().find_map(|i| i.ids(&vocab).first().copied()));
            };
            vocab.id(name).map(Some).ok_or_else(|| TextError::Vocabulary {
                what: format!("`{key}` of tokenizer_config.json"),
                found: format!("`{name}`, which is no token"),
                needed: "a token of the vocabulary, or null".into(),
            })
        };
        let bos = special(
            "bos_token",
            config.bos_token.as_ref(),
            [generation.bos_token_id.as_ref(), ids.bos_token_id.as_ref()],
        )?;
        let eos = special(
            "eos_token",
            config.eos_token.as_ref(),
            [generation.eos_token_id.as_ref(), ids.eos_token_id.as_ref()],
        )?;
        let ends = [&generation.eos_token_id, &ids.eos_token_id];
        let ends = ends.into_iter().flatten().flat_map(|e| e.ids(&vocab)).collect();
        let (mut prefix, mut suffix) =
            json.post_processor.map_or(Ok(Default::default()), |p| p.surround(&vocab))?;
        // The configuration overrules the post-processor, as in the library these files are written for.
        match (config.add_bos_token, bos) {
            (Some(true), Some(bos)) if !prefix.contains(&bos) => prefix.insert(0, bos),
            (Some(false), Some(bos)) => prefix.retain(|&id| id != bos),
            _ => {}
        }
        match (config.add_eos_token, eos) {
            (Some(true), Some(eos)) if !suffix.contains(&eos) => suffix.push(eos),
            (Some(false), Some(eos)) => suffix.retain(|&id| id != eos),
            _ => {}
        }
        let mut normalizers = Vec::new();
        if let Some(normalizer) = json.normalizer {
            normalizer.flatten_into(&mut normalizers)?;
        }
        let mut steps = Vec::new();
        if let Some(pre) = json.pre_tokenizer {
            pre.flatten_into(&mut steps)?;
        }
        if steps.is_empty() && spelling != Spelling::ByteLevel && !json.model.ignore_merges {
            steps.extend(Step::words(&vocab)?);
        }
        let (added_normalized, added): (Vec<_>, Vec<_>) =
            json.added_tokens.into_iter().partition(|t| t.normalized && !normalizers.is_empty());
        let convert = |t: AddedJson| AddedToken {
            id: t.id,
            content: t.content,
            special: t.special,
            lstrip: t.lstrip,
            rstrip: t.rstrip,
            single_word: t.single_word,
        };
        let mut added_normalized: Vec<AddedToken> = added_normalized.into_iter().map(convert).collect();
        for token in &mut added_normalized {
            let limit = normalized_limit(token.content.len());
            for normalizer in &normalizers {
                let content = std::mem::take(&mut token.content);
                token.content = normalizer.apply(content.into(), limit, &Patience::default())?.into_owned();
            }
        }
        Self::new(Parts {
            vocab,
            model,
            kinds_are_certain: true,
            added: added.into_iter().map(convert).collect(),
            added_normalized,
            normalizers,
            steps,
            bos,
            eos,
            ends,
            prefix,
            suffix,
        })
    }
}

fn check_model(model: &ModelJson) -> Result<(), TextError> {
    let unsupported = |found: String| TextError::Unsupported {
        part: "the model of tokenizer.json,",
        found,
        known: "Unigram, and BPE without dropout, word prefixes or word suffixes",
    };
    if let Some(found) = model.r#type.as_ref().filter(|t| !["BPE", "Unigram"].contains(&t.as_str())) {
        return Err(unsupported(found.clone()));
    }
    if let Some(dropout) = model.dropout.filter(|&d| d != 0.0) {
        return Err(unsupported(format!("BPE with dropout {dropout}")));
    }
    for affix in [&model.continuing_subword_prefix, &model.end_of_word_suffix].into_iter().flatten() {
        if !affix.is_empty() {
            return Err(unsupported(format!("BPE with the word affix {affix}")));
        }
    }
    Ok(())
}

fn vocab(json: &TokenizerJson, spelling: Spelling) -> Result<Vocab, TextError> {
    let bad = |found: String| TextError::Json {
        file: "tokenizer.json".into(),
        reason: format!("model.vocab {found}; needed: an object from token to an id of 32 bits"),
    };
    let mut entries = Vec::new();
    let mut add = |id: u64, text: &str| {
        let byte = parse_byte_token(text).filter(|_| json.model.byte_fallback);
        let kind = byte.map_or(Kind::Normal, Kind::Byte);
        entries.push((id, Token { text: text.into(), kind }));
    };
    if json.model.is_unigram() {
        for (id, (text, _)) in (0..).zip(scored(&json.model)?) {
            add(id, text);
        }
    } else {
        let table = json.model.vocab.as_object().ok_or_else(|| bad("is not an object".into()))?;
        for (text, id) in table {
            let id = id.as_u64().filter(|&id| id < u64::from(u32::MAX));
            add(id.ok_or_else(|| bad(format!("has `{}` for `{text}`", table[text])))?, text);
        }
    }
    for added in &json.added_tokens {
        let kind = if added.special { Kind::Control } else { Kind::UserDefined };
        entries.push((u64::from(added.id), Token { text: added.content.as_str().into(), kind }));
    }
    Vocab::new(entries, spelling)
}

/// The tokens of a unigram model and their scores, in order of their ids.
fn scored(model: &ModelJson) -> Result<Vec<(&str, f64)>, TextError> {
    let bad = || TextError::Json {
        file: "tokenizer.json".into(),
        reason: "model.vocab of a Unigram model is not a list of [token, score]".into(),
    };
    let list = model.vocab.as_array().ok_or_else(bad)?;
    let entry = |e: usize| Some((list[e].get(0)?.as_str()?, list[e].get(1)?.as_f64()?));
    (0..list.len()).map(|e| entry(e).ok_or_else(bad)).collect()
}

fn unigram(model: &ModelJson, vocab: &Vocab) -> Result<Unigram, TextError> {
    let mut scores: Vec<f64> = scored(model)?.into_iter().map(|s| s.1).collect();
    let unk = model.unk_id.map(|id| {
        let valid = u32::try_from(id).ok().filter(|&id| (id as usize) < scores.len());
        valid.ok_or_else(|| TextError::Vocabulary {
            what: "`unk_id` of the model of tokenizer.json".into(),
            found: id.to_string(),
            needed: format!("an id below the number of tokens, {}", scores.len()),
        })
    });
    let unk = unk.transpose()?;
    // Added tokens behind the table are found before the model runs.
    scores.resize(vocab.len().max(scores.len()), 0.0);
    let bytes = model.byte_fallback.then(|| vocab.byte_fallback_ids());
    Unigram::new(vocab, &scores, unk, bytes)
}

fn bpe(model: &ModelJson, vocab: &Vocab, spelling: Spelling) -> Result<Bpe, TextError> {
    let merges: Vec<MergeJson> = match &model.merges {
        Value::Null => Vec::new(),
        merges => Deserialize::deserialize(merges).map_err(|_| TextError::Json {
            file: "tokenizer.json".into(),
            reason: "model.merges is not a list of `left right` or [left, right]".into(),
        })?,
    };
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in &merges {
        pairs.push(match merge {
            MergeJson::Pair(left, right) => (left.as_str(), right.as_str()),
            MergeJson::Joined(both) => both.split_once(' ').ok_or_else(|| TextError::Json {
                file: "tokenizer.json".into(),
                reason: format!(
                    "model.merges has `{both}`, which are not two tokens with a space between them"
                ),
            })?,
        });
    }
    let unk = model.unk_token.as_ref().and_then(|t| vocab.id(t));
    let alphabet = if spelling == Spelling::ByteLevel {
        Alphabet::bytes(vocab, unk)
    } else {
        let bytes = model.byte_fallback.then(|| vocab.byte_fallback_ids());
        Alphabet::Chars { bytes, unk, fuse_unk: model.fuse_unk }
    };
    Bpe::new(vocab, pairs.into_iter(), alphabet, model.ignore_merges)
}

pub(super) fn parse<'a, T: Deserialize<'a>>(file: &str, bytes: &'a [u8]) -> Result<T, TextError> {
    serde_json::from_slice(bytes).map_err(|e| TextError::Json { file: file.into(), reason: e.to_string() })
}

fn parse_opt<'a, T: Deserialize<'a> + Default>(file: &str, bytes: Option<&'a [u8]>) -> Result<T, TextError> {
    bytes.map_or_else(|| Ok(T::default()), |bytes| parse(file, bytes))
}

/// The contents of a file that need not exist.
pub(super) fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Io { path: path.to_owned(), source }),
    }
}
