//! The normalizers, pre-tokenizers, post-processors and decoders of `tokenizer.json`.
//!
//! Each is read by its `type`; one that is not implemented is refused by name.

use serde_json::{Map, Value};

use super::TextError;
use super::charsmap::Charsmap;
use super::pipeline::{Normalizer, PrependScheme, Step};
use super::pre;
use super::split::{Behavior, Pattern};
use super::vocab::{SPACE_MARK, Spelling, Vocab};

/// One component as it stands in the file.
type Component = Map<String, Value>;

/// `normalizer` of `tokenizer.json`.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(super) struct NormalizerJson(Component);

/// `pre_tokenizer` of `tokenizer.json`.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(super) struct PreTokenizerJson(Component);

/// `post_processor` of `tokenizer.json`.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(super) struct ProcessorJson(Component);

/// `decoder` of `tokenizer.json`.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(super) struct DecoderJson(Component);

/// Sequences in sequences are flattened no deeper than this.
const MAX_DEPTH: usize = 16;
/// Components of one kind. Real files have less than ten.
const MAX_COMPONENTS: usize = 64;

/// All components of a tree of `Sequence`s, in order.
fn leaves<'a>(
    root: &'a Component,
    list: &str,
    depth: usize,
    out: &mut Vec<&'a Component>,
) -> Result<(), TextError> {
    if out.len() >= MAX_COMPONENTS {
        return Err(TextError::Json {
            file: "tokenizer.json".into(),
            reason: format!("more than {MAX_COMPONENTS} {list}"),
        });
    }
    if kind(root) != "Sequence" {
        out.push(root);
        return Ok(());
    }
    let children = root.get(list).and_then(Value::as_array);
    let children = children.filter(|_| depth < MAX_DEPTH).ok_or_else(|| malformed(root, list))?;
    for child in children {
        leaves(child.as_object().ok_or_else(|| malformed(root, list))?, list, depth + 1, out)?;
    }
    Ok(())
}

fn kind(component: &Component) -> &str {
    component.get("type").and_then(Value::as_str).unwrap_or("without a type")
}

fn text<'a>(component: &'a Component, key: &str) -> Result<&'a str, TextError> {
    component.get(key).and_then(Value::as_str).ok_or_else(|| malformed(component, key))
}

fn flag(component: &Component, key: &str, by_default: bool) -> bool {
    component.get(key).and_then(Value::as_bool).unwrap_or(by_default)
}

fn malformed(component: &Component, key: &str) -> TextError {
    TextError::Json {
        file: "tokenizer.json".into(),
        reason: format!("`{key}` of the component `{}` is missing or of another type", kind(component)),
    }
}

/// `{"String": …}` or `{"Regex": …}`.
fn pattern(component: &Component) -> Result<Pattern, TextError> {
    let pattern = component.get("pattern").ok_or_else(|| malformed(component, "pattern"))?;
    if let Some(literal) = pattern.get("String").and_then(Value::as_str).or(pattern.as_str()) {
        Ok(Pattern::literal(literal))
    } else if let Some(regex) = pattern.get("Regex").and_then(Value::as_str) {
        Pattern::regex(regex)
    } else {
        Err(malformed(component, "pattern"))
    }
}

impl NormalizerJson {
    pub(super) fn flatten_into(&self, out: &mut Vec<Normalizer>) -> Result<(), TextError> {
        let mut components = Vec::new();
        leaves(&self.0, "normalizers", 0, &mut components)?;
        for c in components {
            out.push(match kind(c) {
                "NFC" => Normalizer::Nfc,
                "NFD" => Normalizer::Nfd,
                "NFKC" => Normalizer::Nfkc,
                "NFKD" => Normalizer::Nfkd,
                "Lowercase" => Normalizer::Lowercase,
                "Prepend" => Normalizer::Prepend(text(c, "prepend")?.into()),
                "Replace" => Normalizer::Replace(pattern(c)?, text(c, "content")?.into()),
                "Precompiled" => {
                    let blob = base64(text(c, "precompiled_charsmap")?);
                    let blob = blob.ok_or_else(|| malformed(c, "precompiled_charsmap"))?;
                    Normalizer::Precompiled(Box::new(Charsmap::new(&blob)?))
                }
                "Strip" => Normalizer::Strip(flag(c, "strip_left", true), flag(c, "strip_right", true)),
                found => {
                    return Err(TextError::Unsupported {
                        part: "the normalizer of tokenizer.json,",
                        found: found.into(),
                        known: "NFC, NFD, NFKC, NFKD, Lowercase, Precompiled, Prepend, Replace, Strip, Sequence",
                    });
                }
            });
        }
        Ok(())
    }
}

impl PreTokenizerJson {
    pub(super) fn flatten_into(&self, out: &mut Vec<Step>) -> Result<(), TextError> {
        let mut components = Vec::new();
        leaves(&self.0, "pretokenizers", 0, &mut components)?;
        for c in components {
            match kind(c) {
                "ByteLevel" => {
                    if flag(c, "add_prefix_space", true) {
                        out.push(Step::PrefixSpace);
                    }
                    if flag(c, "use_regex", true) {
                        out.push(Step::Split(pre::gpt2()?, Behavior::Isolated, false));
                    }
                }
                "Split" => out.push(Step::Split(pattern(c)?, behavior(c)?, flag(c, "invert", false))),
                "Digits" => {
                    let digits = if flag(c, "individual_digits", false) { r"\p{N}" } else { r"\p{N}+" };
                    out.push(Step::Split(Pattern::regex(digits)?, Behavior::Isolated, false));
                }
                "Punctuation" => {
                    // ASCII symbols count as punctuation here.
                    let marks = Pattern::regex(r"[\p{P}!-/:-@\[-`{-~]")?;
                    let behavior = if c.contains_key("behavior") { behavior(c)? } else { Behavior::Isolated };
                    out.push(Step::Split(marks, behavior, false));
                }
                "Whitespace" => {
                    out.push(Step::Split(Pattern::regex(r"\w+|[^\w\s]+")?, Behavior::Removed, true));
                }
                "WhitespaceSplit" => {
                    out.push(Step::Split(Pattern::regex(r"\s")?, Behavior::Removed, false));
                }
                "Metaspace" => out.push(metaspace(c)?),
                found => {
                    return Err(TextError::Unsupported {
                        part: "the pre-tokenizer of tokenizer.json,",
                        found: found.into(),
                        known: "ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace, Sequence",
                    });
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a text in base64.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

fn behavior(component: &Component) -> Result<Behavior, TextError> {
    Ok(match text(component, "behavior")? {
        "Removed" => Behavior::Removed,
        "Isolated" => Behavior::Isolated,
        "MergedWithPrevious" => Behavior::MergedWithPrevious,
        "MergedWithNext" => Behavior::MergedWithNext,
        "Contiguous" => Behavior::Contiguous,
        found => {
            return Err(TextError::Unsupported {
                part: "the split behavior",
                found: found.into(),
                known: "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
            });
        }
    })
}

fn metaspace(component: &Component) -> Result<Step, TextError> {
    let mut mark = text(component, "replacement")?.chars();
    let (Some(mark), None) = (mark.next(), mark.next()) else {
        return Err(malformed(component, "replacement"));
    };
    let split = flag(component, "split", true);
    Ok(Step::Metaspace { mark, prepend: prepend_scheme(component)?, split })
}

fn prepend_scheme(component: &Component) -> Result<PrependScheme, TextError> {
    Ok(match component.get("prepend_scheme").and_then(Value::as_str) {
        Some("always") => PrependScheme::Always,
        Some("first") => PrependScheme::First,
        None if flag(component, "add_prefix_space", true) => PrependScheme::Always,
        Some("never") | None => PrependScheme::Never,
        Some(_) => return Err(malformed(component, "prepend_scheme")),
    })
}

/// Tokens before a text, tokens behind it.
type Surround = (Vec<u32>, Vec<u32>);

impl ProcessorJson {
    /// What goes around a single text.
    pub(super) fn surround(&self, vocab: &Vocab) -> Result<Surround, TextError> {
        let mut components = Vec::new();
        leaves(&self.0, "processors", 0, &mut components)?;
        let mut around = (Vec::new(), Vec::new());
        for c in components {
            match kind(c) {
                // Only moves offsets, which we do not have.
                "ByteLevel" => {}
                "TemplateProcessing" => template(c, vocab, &mut around)?,
                found => {
                    return Err(TextError::Unsupported {
                        part: "the post-processor of tokenizer.json,",
                        found: found.into(),
                        known: "ByteLevel, TemplateProcessing, Sequence",
                    });
                }
            }
        }
        Ok(around)
    }
}

fn template(c: &Component, vocab: &Vocab, around: &mut Surround) -> Result<(), TextError> {
    let single = c.get("single").and_then(Value::as_array).ok_or_else(|| malformed(c, "single"))?;
    let mut before = Vec::new();
    let mut seen_text = false;
    for item in single {
        let Some(token) = item.get("SpecialToken") else {
            seen_text = true;
            continue;
        };
        let name = token.get("id").and_then(Value::as_str).ok_or_else(|| malformed(c, "single"))?;
        let ids = c.get("special_tokens").and_then(|s| s.get(name)?.get("ids")?.as_array());
        for id in ids.ok_or_else(|| malformed(c, "special_tokens"))? {
            let id =
                id.as_u64().filter(|&id| id < vocab.len() as u64).ok_or_else(|| TextError::Vocabulary {
                    what: format!("the id of `{name}` in the post-processor"),
                    found: id.to_string(),
                    needed: format!("less than the number of tokens, {}", vocab.len()),
                })?;
            if seen_text { around.1.push(id as u32) } else { before.push(id as u32) }
        }
    }
    around.0.splice(0..0, before);
    Ok(())
}

/// How token texts become bytes, from the decoder and, where there is none, from the pre-tokenizer.
pub(super) fn spelling(
    decoder: Option<&DecoderJson>,
    pre_tokenizer: Option<&PreTokenizerJson>,
) -> Result<Spelling, TextError> {
    let unsupported = |found: &str| TextError::Unsupported {
        part: "the decoder of tokenizer.json,",
        found: found.into(),
        known: "ByteLevel, Metaspace, and Sequence of Replace ▁, ByteFallback, Fuse, Strip",
    };
    let mut components = Vec::new();
    let Some(decoder) = decoder else {
        if let Some(pre) = pre_tokenizer {
            leaves(&pre.0, "pretokenizers", 0, &mut components)?;
        }
        return if components.iter().any(|c| kind(c) == "ByteLevel") {
            Ok(Spelling::ByteLevel)
        } else {
            Err(unsupported("null"))
        };
    };
    leaves(&decoder.0, "decoders", 0, &mut components)?;
    let mut drop_first_space = false;
    for c in &components {
        match kind(c) {
            "ByteLevel" => return Ok(Spelling::ByteLevel),
            "Metaspace" => drop_first_space |= prepend_scheme(c)? != PrependScheme::Never,
            "Replace" => {
                let from = c.get("pattern").and_then(|p| p.get("String")?.as_str());
                if from != Some(&SPACE_MARK.to_string()) || text(c, "content")? != " " {
                    return Err(unsupported("Replace of something else than ▁ by a space"));
                }
            }
            "ByteFallback" | "Fuse" => {}
            "Strip" => {
                let count = |key| c.get(key).and_then(Value::as_u64).unwrap_or(0);
                match (text(c, "content")?, count("start"), count("stop")) {
                    (_, 0, 0) => {}
                    (" ", 1, 0) => drop_first_space = true,
                    _ => return Err(unsupported("Strip of something else than one space at the beginning")),
                }
            }
            found => return Err(unsupported(found)),
        }
    }
    Ok(Spelling::Pieces { drop_first_space })
}
