//! Tokenizers from the metadata of GGUF files.

use metallic_formats::Metadata;

use super::added::AddedToken;
use super::bpe::{Alphabet, Bpe};
use super::pipeline::{Normalizer, Step};
use super::split::{Behavior, Pattern};
use super::spm::Spm;
use super::tokenizer::{Model, Parts};
use super::vocab::{Kind, SPACE_MARK, Spelling, Token, Vocab, parse_byte_token};
use super::{TextError, Tokenizer, pre};

const TOKENS: &str = "tokenizer.ggml.tokens";

impl Tokenizer {
    /// The tokenizer that a GGUF file carries in its metadata.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TextError> {
        let model = metadata.str("tokenizer.ggml.model")?;
        let parts = match model {
            "gpt2" => byte_level_bpe(metadata)?,
            "llama" => sentence_piece(metadata)?,
            _ => {
                return Err(TextError::Unsupported {
                    part: "the tokenizer (tokenizer.ggml.model)",
                    found: model.into(),
                    known: "gpt2, llama",
                });
            }
        };
        Self::new(parts)
    }
}

fn byte_level_bpe(metadata: &Metadata) -> Result<Parts, TextError> {
    let name = metadata.opt_str("tokenizer.ggml.pre")?.unwrap_or("default");
    let pre = pre::by_name(name)?;
    let vocab = vocab(metadata, Spelling::ByteLevel)?;
    let unk = special(metadata, "unknown_token_id", &vocab)?;
    // "left right", where left may itself begin with a space.
    let merges = metadata.strings("tokenizer.ggml.merges")?.iter().filter_map(|merge| {
        let (at, _) = merge.char_indices().skip(1).find(|&(_, c)| c == ' ')?;
        Some((&merge[..at], &merge[at + 1..]))
    });
    let alphabet = Alphabet::bytes(&vocab, unk);
    let bpe = Bpe::new(&vocab, merges, alphabet, pre.whole_words);
    let steps = (pre.patterns.iter())
        .map(|p| Ok(Step::Split(Pattern::regex(p)?, Behavior::Isolated, false)))
        .collect::<Result<_, TextError>>()?;
    let bos = special(metadata, "bos_token_id", &vocab)?;
    let eos = special(metadata, "eos_token_id", &vocab)?;
    let mut parts = Parts { steps, ..parts(metadata, vocab, Model::Bpe(bpe), (bos, eos))? };
    surround(metadata, &mut parts, pre.add_bos)?;
    Ok(parts)
}

fn sentence_piece(metadata: &Metadata) -> Result<Parts, TextError> {
    let prefix = metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let vocab = vocab(metadata, Spelling::Pieces { drop_first_space: prefix })?;
    // Files that do not say mean the places that SentencePiece gives these tokens.
    let or_default = |key: &str, id: u32| -> Result<Option<u32>, TextError> {
        let by_default = ((id as usize) < vocab.len()).then_some(id);
        Ok(special(metadata, key, &vocab)?.or(by_default))
    };
    let bos = or_default("bos_token_id", 1)?;
    let eos = or_default("eos_token_id", 2)?;
    let unk = or_default("unknown_token_id", 0)?;
    let scores = metadata.opt_f32s("tokenizer.ggml.scores")?.unwrap_or_default();
    if scores.len() < vocab.len() {
        return Err(lengths("tokenizer.ggml.scores", scores.len(), vocab.len()));
    }
    let spm = Spm::new(&vocab, &scores, unk);
    let mut normalizers = vec![Normalizer::Replace(Pattern::literal(" "), SPACE_MARK.to_string())];
    if prefix {
        normalizers.insert(0, Normalizer::Prepend(" ".into()));
    }
    let steps = Step::words(&vocab)?.into_iter().collect();
    let mut parts = Parts { normalizers, steps, ..parts(metadata, vocab, Model::Spm(spm), (bos, eos))? };
    surround(metadata, &mut parts, true)?;
    Ok(parts)
}

/// What both kinds of tokenizer have in common.
fn parts(
    metadata: &Metadata,
    vocab: Vocab,
    model: Model,
    (bos, eos): (Option<u32>, Option<u32>),
) -> Result<Parts, TextError> {
    let mut ends = Vec::new();
    for key in ["eot_token_id", "eom_token_id"] {
        ends.extend(special(metadata, key, &vocab)?);
    }
    // Phi-3 was trained with marks that take the whitespace after them along; its GGUF files do not say so.
    let name = metadata.opt_str("general.name")?.unwrap_or_default().to_lowercase();
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    let added = (vocab.tokens.iter().zip(0..))
        .filter(|(t, _)| matches!(t.kind, Kind::Control | Kind::UserDefined | Kind::Unknown))
        .map(|(token, id)| AddedToken {
            id,
            content: token.text.to_string(),
            special: token.kind != Kind::UserDefined,
            lstrip: false,
            rstrip: phi3 && !["<unk>", "<s>", "<|endoftext|>"].contains(&&*token.text),
            single_word: false,
        })
        .collect();
    Ok(Parts {
        vocab,
        model,
        kinds_are_certain: false,
        added,
        added_normalized: Vec::new(),
        normalizers: Vec::new(),
        steps: Vec::new(),
        bos,
        eos,
        ends,
        prefix: Vec::new(),
        suffix: Vec::new(),
    })
}

/// Fills in what goes around a text.
fn surround(metadata: &Metadata, parts: &mut Parts, bos_by_default: bool) -> Result<(), TextError> {
    let wanted = |key: &str, id: Option<u32>, by_default: bool| -> Result<Vec<u32>, TextError> {
        let asked = metadata.opt_bool(&format!("tokenizer.ggml.add_{key}_token"))?;
        match (asked.unwrap_or(by_default), id) {
            (false, _) => Ok(Vec::new()),
            (true, Some(id)) => Ok(vec![id]),
            (true, None) if asked.is_none() => Ok(Vec::new()),
            (true, None) => Err(TextError::Vocabulary {
                what: format!("tokenizer.ggml.{key}_token_id"),
                found: "missing".into(),
                needed: format!("an id, because tokenizer.ggml.add_{key}_token is true"),
            }),
        }
    };
    parts.prefix = wanted("bos", parts.bos, bos_by_default)?;
    parts.suffix = wanted("eos", parts.eos, false)?;
    Ok(())
}

fn vocab(metadata: &Metadata, spelling: Spelling) -> Result<Vocab, TextError> {
    let texts = metadata.strings(TOKENS)?;
    let kinds = metadata.opt_i32s("tokenizer.ggml.token_type")?;
    if let Some(kinds) = kinds.as_ref().filter(|k| k.len() < texts.len()) {
        return Err(lengths("tokenizer.ggml.token_type", kinds.len(), texts.len()));
    }
    let entries = texts.iter().enumerate().map(|(id, text)| {
        let kind = match kinds.as_ref().map(|k| k[id]) {
            Some(2) => Kind::Unknown,
            Some(3) => Kind::Control,
            Some(4) => Kind::UserDefined,
            Some(5) => Kind::Unused,
            Some(6) => parse_byte_token(text).map_or(Kind::Normal, Kind::Byte),
            _ => Kind::Normal,
        };
        (id as u64, Token { text: text.as_str().into(), kind })
    });
    Vocab::new(entries.collect(), spelling)
}

/// The id under `tokenizer.ggml.{key}`; the largest u32 means that there is none.
fn special(metadata: &Metadata, key: &str, vocab: &Vocab) -> Result<Option<u32>, TextError> {
    let key = format!("tokenizer.ggml.{key}");
    match metadata.opt_u32(&key)? {
        None | Some(u32::MAX) => Ok(None),
        Some(id) if (id as usize) < vocab.len() => Ok(Some(id)),
        Some(id) => Err(TextError::Vocabulary {
            what: key,
            found: id.to_string(),
            needed: format!("an id below the number of tokens, {}", vocab.len()),
        }),
    }
}

fn lengths(what: &str, found: usize, tokens: usize) -> TextError {
    TextError::Vocabulary {
        what: format!("the length of {what}"),
        found: found.to_string(),
        needed: format!("{tokens}, one for each of {TOKENS}"),
    }
}
