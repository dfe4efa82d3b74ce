//! Tokenizers from the metadata of GGUF files.

use metallic_formats::Metadata;

use super::added::AddedToken;
use super::bpe::{Alphabet, Bpe};
use super::charsmap::Charsmap;
use super::pipeline::{Normalizer, Step};
use super::pre::Letters;
use super::split::{Behavior, Pattern};
use super::spm::Spm;
use super::tokenizer::{Model, Parts};
use super::unigram::Unigram;
use super::vocab::{Kind, SPACE_MARK, Spelling, Token, Vocab, parse_byte_token};
use super::{TextError, Tokenizer, pre};

const TOKENS: &str = "tokenizer.ggml.tokens";
const PRE: &str = "tokenizer.ggml.pre";
/// What files without a name for it were made with, more often than not.
const DEFAULT_PRE: &str = "default";

impl Tokenizer {
    /// The tokenizer that a GGUF file carries in its metadata.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TextError> {
        let model = metadata.str("tokenizer.ggml.model")?;
        let pre = metadata.opt_str(PRE)?;
        let parts = match model {
            "gpt2" => bpe(metadata, pre.unwrap_or(DEFAULT_PRE))?,
            "gemma4" => bpe(metadata, "gemma4")?,
            "llama" => sentence_piece(metadata)?,
            "t5" => unigram(metadata)?,
            _ => {
                return Err(TextError::Unsupported {
                    part: "the tokenizer (tokenizer.ggml.model)",
                    found: model.into(),
                    known: "gpt2, llama, t5, gemma4",
                });
            }
        };
        let mut tokenizer = Self::new(parts)?;
        if model == "gpt2" && pre.is_none() {
            tokenizer.notes.push(format!(
                "{PRE} is missing, so words are split as by `{DEFAULT_PRE}`: the tokens may differ from those the model was trained with"
            ));
        }
        Ok(tokenizer)
    }
}

fn bpe(metadata: &Metadata, name: &str) -> Result<Parts, TextError> {
    let pre = pre::by_name(name)?;
    let spelling = match pre.letters {
        Letters::Bytes => Spelling::ByteLevel,
        Letters::Characters => Spelling::Pieces { drop_first_space: false },
    };
    let vocab = vocab(metadata, spelling)?;
    let unk = special(metadata, "unknown_token_id", &vocab)?;
    let merges = metadata.strings("tokenizer.ggml.merges")?;
    let merges: Vec<_> = merges.iter().map(|merge| halves(merge)).collect::<Result<_, _>>()?;
    let alphabet = match pre.letters {
        Letters::Bytes => Alphabet::bytes(&vocab, unk),
        Letters::Characters => {
            Alphabet::Chars { bytes: Some(vocab.byte_fallback_ids()), unk, fuse_unk: false }
        }
    };
    let bpe = Bpe::new(&vocab, merges.into_iter(), alphabet, pre.whole_words)?;
    let steps = (pre.patterns.iter())
        .map(|p| Ok(Step::Split(Pattern::regex(p)?, Behavior::Isolated, false)))
        .collect::<Result<_, TextError>>()?;
    let bos = special(metadata, "bos_token_id", &vocab)?;
    let eos = special(metadata, "eos_token_id", &vocab)?;
    let mut normalizers = Vec::new();
    if pre.composes {
        normalizers.push(Normalizer::Nfc);
    }
    if pre.letters == Letters::Characters {
        normalizers.push(Normalizer::Replace(Pattern::literal(" "), SPACE_MARK.to_string()));
    }
    let mut parts = Parts { normalizers, steps, ..parts(metadata, vocab, Model::Bpe(bpe), (bos, eos))? };
    surround(metadata, &mut parts, (pre.add_bos, false))?;
    Ok(parts)
}

/// The two sides of "left right", where left may itself begin with a space.
fn halves(merge: &str) -> Result<(&str, &str), TextError> {
    let space = merge.char_indices().skip(1).find(|&(_, c)| c == ' ');
    space.map(|(at, _)| (&merge[..at], &merge[at + 1..])).ok_or_else(|| TextError::Vocabulary {
        what: "a merge in tokenizer.ggml.merges".into(),
        found: format!("`{merge}`"),
        needed: "two tokens with a space between them".into(),
    })
}

/// SentencePiece's unigram model, as T5 has it.
fn unigram(metadata: &Metadata) -> Result<Parts, TextError> {
    let prefix = metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(false);
    let vocab = vocab(metadata, Spelling::Pieces { drop_first_space: prefix })?;
    let eos = or_default(metadata, "eos_token_id", 1, &vocab)?;
    let unk = or_default(metadata, "unknown_token_id", 2, &vocab)?;
    let bos = special(metadata, "bos_token_id", &vocab)?;
    let scores: Vec<f64> = scores(metadata, &vocab)?.into_iter().map(f64::from).collect();
    let unigram = Unigram::new(&vocab, &scores, unk, None)?;
    let mut normalizers = Vec::new();
    if let Some(blob) = metadata.opt_i32s("tokenizer.ggml.precompiled_charsmap")? {
        // Stored as signed or as unsigned bytes.
        let blob: Vec<u8> = blob.into_iter().map(|b| b as u8).collect();
        normalizers.push(Normalizer::Precompiled(Box::new(Charsmap::new(&blob)?)));
    }
    if metadata.opt_bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false) {
        normalizers.push(Normalizer::SingleSpaces);
    }
    if prefix {
        normalizers.push(Normalizer::Prepend(" ".into()));
    }
    normalizers.push(Normalizer::Replace(Pattern::literal(" "), SPACE_MARK.to_string()));
    let steps = Step::words(&vocab)?.into_iter().collect();
    let mut parts =
        Parts { normalizers, steps, ..parts(metadata, vocab, Model::Unigram(unigram), (bos, eos))? };
    surround(metadata, &mut parts, (false, true))?;
    Ok(parts)
}

/// The id under `tokenizer.ggml.{key}`, or the place that SentencePiece gives it where the file does not say.
fn or_default(metadata: &Metadata, key: &str, id: u32, vocab: &Vocab) -> Result<Option<u32>, TextError> {
    let by_default = ((id as usize) < vocab.len()).then_some(id);
    Ok(special(metadata, key, vocab)?.or(by_default))
}

fn scores(metadata: &Metadata, vocab: &Vocab) -> Result<Vec<f32>, TextError> {
    let scores = metadata.opt_f32s("tokenizer.ggml.scores")?.unwrap_or_default();
    if scores.len() < vocab.len() {
        return Err(lengths("tokenizer.ggml.scores", scores.len(), vocab.len()));
    }
    Ok(scores)
}

fn sentence_piece(metadata: &Metadata) -> Result<Parts, TextError> {
    let prefix = metadata.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let vocab = vocab(metadata, Spelling::Pieces { drop_first_space: prefix })?;
    let bos = or_default(metadata, "bos_token_id", 1, &vocab)?;
    let eos = or_default(metadata, "eos_token_id", 2, &vocab)?;
    let unk = or_default(metadata, "unknown_token_id", 0, &vocab)?;
    let scores = scores(metadata, &vocab)?;
    let spm = Spm::new(&vocab, &scores, unk);
    let mut normalizers = vec![Normalizer::Replace(Pattern::literal(" "), SPACE_MARK.to_string())];
    if prefix {
        normalizers.insert(0, Normalizer::Prepend(" ".into()));
    }
    let steps = Step::words(&vocab)?.into_iter().collect();
    let mut parts = Parts { normalizers, steps, ..parts(metadata, vocab, Model::Spm(spm), (bos, eos))? };
    surround(metadata, &mut parts, (true, false))?;
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

/// Fills in what goes around a text; `by_default` says whether a first and a last token do where the file is silent.
fn surround(metadata: &Metadata, parts: &mut Parts, by_default: (bool, bool)) -> Result<(), TextError> {
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
    parts.prefix = wanted("bos", parts.bos, by_default.0)?;
    parts.suffix = wanted("eos", parts.eos, by_default.1)?;
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
