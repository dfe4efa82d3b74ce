//! What happens to a text before it is tokenized: normalization, then splitting into words.

use std::borrow::Cow;
use std::ops::Range;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfkc_quick};

use super::TextError;
use super::bounds::Patience;
use super::charsmap::Charsmap;
use super::split::{Behavior, Pattern, Rule};
use super::vocab::Vocab;

/// One step of normalization.
#[derive(Debug)]
pub(super) enum Normalizer {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    /// What SentencePiece compiled into the model.
    Precompiled(Box<Charsmap>),
    /// Trims spaces at both ends and leaves one of each run.
    SingleSpaces,
    /// Puts a text in front of what is not empty.
    Prepend(String),
    Replace(Pattern, String),
    /// Trims whitespace at the left, at the right.
    Strip(bool, bool),
}

/// The most bytes that normalizers may make of a text of so many. One character becomes 18 bytes at worst by Unicode's rules.
pub(super) fn normalized_limit(bytes: usize) -> usize {
    bytes.saturating_mul(32).saturating_add(1 << 16)
}

impl Normalizer {
    /// Applies one step, which may make no more than `limit` bytes.
    pub(super) fn apply<'a>(
        &self,
        text: Cow<'a, str>,
        limit: usize,
        patience: &Patience,
    ) -> Result<Cow<'a, str>, TextError> {
        let too_long = || TextError::Grows { limit };
        let out = match self {
            Self::Nfc if is_nfc_quick(text.chars()) == IsNormalized::Yes => text,
            Self::Nfkc if is_nfkc_quick(text.chars()) == IsNormalized::Yes => text,
            Self::Nfc => text.nfc().collect(),
            Self::Nfd => text.nfd().collect(),
            Self::Nfkc => text.nfkc().collect(),
            Self::Nfkd => text.nfkd().collect(),
            Self::Lowercase => text.to_lowercase().into(),
            Self::Precompiled(map) => map.apply(text, limit).ok_or_else(too_long)?,
            Self::SingleSpaces => {
                let words: Vec<&str> = text.split(' ').filter(|w| !w.is_empty()).collect();
                words.join(" ").into()
            }
            Self::Prepend(_) if text.is_empty() => text,
            Self::Prepend(prefix) if prefix.len() > limit => return Err(too_long()),
            Self::Prepend(prefix) => format!("{prefix}{text}").into(),
            Self::Replace(pattern, with) => {
                pattern.replace(&text, with, limit, patience)?.ok_or_else(too_long)?.into()
            }
            Self::Strip(left, right) => {
                let mut kept: &str = &text;
                if *left {
                    kept = kept.trim_start();
                }
                if *right {
                    kept = kept.trim_end();
                }
                kept.to_owned().into()
            }
        };
        if out.len() > limit { Err(too_long()) } else { Ok(out) }
    }
}

/// Where Metaspace puts its mark in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrependScheme {
    Always,
    First,
    Never,
}

/// One step of splitting.
#[derive(Debug)]
pub(super) enum Step {
    Split(Pattern, Behavior, bool),
    /// Puts a space in front of each piece that does not begin with one.
    PrefixSpace,
    /// Writes spaces as a mark, and splits before each mark.
    Metaspace {
        mark: char,
        prepend: PrependScheme,
        split: bool,
    },
}

impl Step {
    /// A split into words for tokenizers that have none and need none, where it cannot change the tokens: short words are
    /// quicker than one long text, and repeat.
    pub(super) fn words(vocab: &Vocab) -> Result<Option<Self>, TextError> {
        if !vocab.keeps_words_apart() {
            return Ok(None);
        }
        Ok(Some(Self::Split(
            Pattern::regex("\u{2581}+[^\u{2581}]*|[^\u{2581}]+")?,
            Behavior::Isolated,
            false,
        )))
    }
}

/// A text and its pieces.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    pub text: Cow<'a, str>,
    pub ranges: Vec<Range<usize>>,
}

impl<'a> Pieces<'a> {
    pub(super) fn whole(text: Cow<'a, str>) -> Self {
        let ranges = std::iter::once(0..text.len()).filter(|r| !r.is_empty()).collect();
        Self { text, ranges }
    }

    /// Applies one step. `first` says that the text is the beginning of what was given to the tokenizer.
    pub(super) fn apply(&mut self, step: &Step, first: bool, patience: &Patience) -> Result<(), TextError> {
        match step {
            Step::Split(pattern, behavior, invert) => {
                let mut out = Vec::with_capacity(self.ranges.len());
                for range in &self.ranges {
                    let rule = Rule { behavior: *behavior, invert: *invert, patience };
                    pattern.split(&self.text, range.clone(), rule, &mut out)?;
                }
                self.ranges = out;
            }
            Step::PrefixSpace => self.rewrite(|_, piece, out| {
                if !piece.starts_with(' ') {
                    out.push(' ');
                }
                out.push_str(piece);
            }),
            Step::Metaspace { mark, prepend, split } => {
                self.rewrite(|at, piece, out| {
                    let wanted = match prepend {
                        PrependScheme::Always => true,
                        PrependScheme::First => first && at == 0,
                        PrependScheme::Never => false,
                    };
                    if wanted && !piece.starts_with([*mark, ' ']) {
                        out.push(*mark);
                    }
                    out.extend(piece.chars().map(|c| if c == ' ' { *mark } else { c }));
                });
                if *split {
                    let pattern = Pattern::literal(mark.encode_utf8(&mut [0; 4]));
                    let step = Step::Split(pattern, Behavior::MergedWithNext, false);
                    self.apply(&step, first, patience)?;
                }
            }
        }
        Ok(())
    }

    /// Writes every piece anew; `write` gets where the piece began, the piece, and where to write.
    fn rewrite(&mut self, write: impl Fn(usize, &str, &mut String)) {
        let mut text = String::with_capacity(self.text.len() + self.ranges.len());
        for range in &mut self.ranges {
            let start = text.len();
            write(range.start, &self.text[range.clone()], &mut text);
            *range = start..text.len();
        }
        self.text = text.into();
    }
}
