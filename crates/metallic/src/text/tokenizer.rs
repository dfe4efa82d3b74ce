use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use super::TextError;
use super::added::{AddedToken, AddedTokens, Fragment};
use super::bounds::Patience;
use super::bpe::Bpe;
use super::merge::Scratch;
use super::pipeline::{Normalizer, Pieces, Step, normalized_limit};
use super::spm::Spm;
use super::stream::StreamDecoder;
use super::unigram::{Lattice, Unigram};
use super::vocab::{Kind, Vocab};

/// Tokens that end an answer in the models that have them, whatever else their files say.
const END_TOKENS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "[e~[",
];

/// Words longer than this are not remembered while a text is encoded.
const CACHED_WORD: usize = 64;

#[derive(Debug)]
pub(super) enum Model {
    Bpe(Bpe),
    Spm(Spm),
    Unigram(Unigram),
}

/// What the models write into, kept between words.
#[derive(Debug, Default)]
struct Buffers {
    merge: Scratch,
    lattice: Lattice,
    patience: Patience,
}

/// Everything a tokenizer is made of, as the readers of the two formats fill it in.
#[derive(Debug)]
pub(super) struct Parts {
    pub vocab: Vocab,
    pub model: Model,
    /// Whether a token that is not marked as special is certainly a piece of text.
    pub kinds_are_certain: bool,
    /// Found in the text as given.
    pub added: Vec<AddedToken>,
    /// Found in the normalized text.
    pub added_normalized: Vec<AddedToken>,
    pub normalizers: Vec<Normalizer>,
    pub steps: Vec<Step>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Further tokens that end a generation.
    pub ends: Vec<u32>,
    /// Put in front when special tokens are asked for.
    pub prefix: Vec<u32>,
    /// Put behind when special tokens are asked for.
    pub suffix: Vec<u32>,
}

/// Turns text into tokens and back, exactly as the model's own tokenizer does.
///
/// The work is done by our own byte-pair encoding and not by the `tokenizers` crate: one engine serves both GGUF
/// metadata and `tokenizer.json`, malformed vocabularies cannot make it allocate without bound, and it needs neither C
/// nor a thread pool. The tests hold it to the ids of the reference implementations.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    added: AddedTokens,
    added_normalized: AddedTokens,
    normalizers: Vec<Normalizer>,
    steps: Vec<Step>,
    bos: Option<u32>,
    eos: Option<u32>,
    ends: BTreeSet<u32>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pub(super) notes: Vec<String>,
}

impl Tokenizer {
    /// The most bytes one call of [`encode`](Self::encode) takes.
    const MAX_TEXT: usize = 1 << 30;

    pub(super) fn new(mut parts: Parts) -> Result<Self, TextError> {
        let mut ends: BTreeSet<u32> = parts.ends.iter().chain(&parts.eos).copied().collect();
        for text in END_TOKENS {
            let Some(id) = parts.vocab.id(text) else { continue };
            if parts.vocab.tokens[id as usize].kind == Kind::Normal {
                // `</s>` may be a piece of HTML; what looks like nothing but a mark is one that the file forgot to mark.
                let is_mark = ["<|", "<｜", "<end_of_"].iter().any(|start| text.starts_with(start));
                if parts.kinds_are_certain || !is_mark {
                    continue;
                }
                parts.vocab.tokens[id as usize].kind = Kind::Control;
                parts.added.push(AddedToken {
                    id,
                    content: (*text).to_owned(),
                    special: true,
                    lstrip: false,
                    rstrip: false,
                    single_word: false,
                });
            }
            ends.insert(id);
        }
        // Harmony and Solar end a message with `<|end|>` and go on; they end an answer with the other marks.
        let has = |text| parts.vocab.id(text).is_some();
        if (has("<|return|>") && has("<|call|>")) || (has("<|flush|>") && has("<|calls|>")) {
            let end = parts.vocab.id("<|end|>").filter(|&id| Some(id) != parts.eos);
            end.map(|id| ends.remove(&id));
        }
        Ok(Self {
            added: AddedTokens::new(parts.added)?,
            added_normalized: AddedTokens::new(parts.added_normalized)?,
            vocab: parts.vocab,
            model: parts.model,
            normalizers: parts.normalizers,
            steps: parts.steps,
            bos: parts.bos,
            eos: parts.eos,
            ends,
            prefix: parts.prefix,
            suffix: parts.suffix,
            notes: Vec::new(),
        })
    }

    /// What was guessed where its file says nothing, in words: a reason to doubt the tokens, and none to refuse the model.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The tokens of `text`.
    ///
    /// `add_special` puts the tokens around it that the model expects at the beginning and end of a text. With
    /// `parse_special`, marks such as `<|im_end|>` inside the text become their tokens; without it they are spelled
    /// out, which is what text from users needs.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, TextError> {
        self.encode_spelling(text, add_special, parse_special, &[])
    }

    /// [`encode`](Self::encode), with special tokens that reach over one of the places in `spelled` spelled out.
    fn encode_spelling(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
        spelled: &[usize],
    ) -> Result<Vec<u32>, TextError> {
        if text.len() > Self::MAX_TEXT {
            return Err(TextError::TooLong { found: text.len(), limit: Self::MAX_TEXT });
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 8);
        if add_special {
            out.extend_from_slice(&self.prefix);
        }
        let mut scratch = Buffers::default();
        for (i, fragment) in self.added.cut(text, parse_special, spelled).into_iter().enumerate() {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(text) => {
                    // Where normalization may move the places, no mark counts.
                    let parse_special = parse_special && spelled.is_empty();
                    self.encode_fragment(text, (i == 0, parse_special), &mut scratch, &mut out)?;
                }
            }
        }
        if add_special {
            out.extend_from_slice(&self.suffix);
        }
        Ok(out)
    }

    /// The tokens of a text that a chat template has written: marks count, and the text begins with exactly one
    /// [`bos`](Self::bos) if the model wants one, whether or not the template wrote it.
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode_chat_spelling(text, &[])
    }

    pub(super) fn encode_chat_spelling(&self, text: &str, spelled: &[usize]) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode_spelling(text, false, true, spelled)?;
        if self.adds_bos() && ids.first() != self.bos.as_ref() {
            ids.splice(0..0, self.bos);
        }
        Ok(ids)
    }

    fn encode_fragment(
        &self,
        text: &str,
        (first, parse_special): (bool, bool),
        scratch: &mut Buffers,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let mut text = Cow::Borrowed(text);
        let limit = normalized_limit(text.len());
        for normalizer in &self.normalizers {
            text = normalizer.apply(text, limit, &scratch.patience)?;
        }
        for (i, fragment) in self.added_normalized.cut(&text, parse_special, &[]).into_iter().enumerate() {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(text) => {
                    let mut pieces = Pieces::whole(Cow::Borrowed(text));
                    for step in &self.steps {
                        pieces.apply(step, first && i == 0, &scratch.patience)?;
                    }
                    self.encode_pieces(&pieces, scratch, out)?;
                }
            }
        }
        Ok(())
    }

    fn encode_pieces(
        &self,
        pieces: &Pieces<'_>,
        scratch: &mut Buffers,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        // Text repeats its words: the tokens of one seen before are copied from where they stand in `out`.
        let mut seen: HashMap<&str, (usize, usize)> = HashMap::new();
        for range in &pieces.ranges {
            let word = &pieces.text[range.clone()];
            if let Some(&(start, end)) = seen.get(word) {
                out.extend_from_within(start..end);
                continue;
            }
            let start = out.len();
            match &self.model {
                Model::Bpe(bpe) => bpe.encode(&self.vocab, word, &mut scratch.merge, out),
                Model::Spm(spm) => spm.encode(&self.vocab, word, &mut scratch.merge, out),
                Model::Unigram(unigram) => unigram.encode(word, &mut scratch.lattice, out)?,
            }
            if word.len() <= CACHED_WORD && pieces.ranges.len() > 1 {
                seen.insert(word, (start, out.len()));
            }
        }
        Ok(())
    }

    /// The text of `ids`. With `skip_special`, control tokens are left out. Bytes that are not UTF-8 become `U+FFFD`;
    /// ids outside the vocabulary are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut decoder = StreamDecoder::new(self, skip_special);
        let mut out = String::new();
        for &id in ids {
            decoder.push_into(id, &mut out);
        }
        decoder.finish_into(&mut out);
        out
    }

    /// The bytes that token `id` adds to a text; `None` outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.vocab.bytes(id)
    }

    /// The token as the vocabulary writes it, for example `Ġthe` or `<|im_end|>`.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.get(id).map(|t| &*t.text)
    }

    /// The token that the vocabulary writes as `text`.
    pub fn token_to_id(&self, text: &str) -> Option<u32> {
        self.vocab.id(text)
    }

    /// One more than the largest id. A model's logits may be longer (padding), never shorter.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether [`encode`](Self::encode) with `add_special` begins with [`bos`](Self::bos).
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some() && self.prefix.first() == self.bos.as_ref()
    }

    /// Whether a model that samples `id` has finished its answer: the end of the text, of the turn or of the message.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// All tokens for which [`is_end_of_generation`](Self::is_end_of_generation) holds, in ascending order.
    pub fn end_of_generation(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter().copied()
    }

    /// Whether `id` is a mark that is not part of the text, such as `<s>` or `<|im_end|>`.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocab.get(id).is_some_and(|t| matches!(t.kind, Kind::Control | Kind::Unknown))
    }

    /// Where marks that count only when they are parsed begin in `text`.
    pub(super) fn mark_places(&self, text: &str) -> Vec<usize> {
        let mut places = self.added.special_places(text);
        places.extend(self.added_normalized.special_places(text));
        places.sort_unstable();
        places.dedup();
        places
    }

    pub(super) fn vocab(&self) -> &Vocab {
        &self.vocab
    }
}
