//! Byte-pair encoding: merges with ranks, over bytes (GPT-2 and its heirs) or over characters with byte fallback
//! (Llama 2 and Gemma, as `tokenizer.json` writes them).

use std::collections::HashMap;

use super::TextError;
use super::byte_level::byte_to_char;
use super::merge::{Scratch, Symbol};
use super::vocab::Vocab;

/// What a word is made of before the first merge.
#[derive(Debug)]
pub(super) enum Alphabet {
    /// One token per byte; a byte without a token becomes `unk`.
    Bytes { ids: Box<[Option<u32>; 256]>, unk: Option<u32> },
    /// One token per character; a character without a token becomes its bytes, or `unk`.
    Chars {
        bytes: Option<Box<[Option<u32>; 256]>>,
        unk: Option<u32>,
        /// Neighbouring unknown characters become one `unk`.
        fuse_unk: bool,
    },
}

impl Alphabet {
    pub(super) fn bytes(vocab: &Vocab, unk: Option<u32>) -> Self {
        let mut utf8 = [0; 4];
        let ids = std::array::from_fn(|b| vocab.id(byte_to_char(b as u8).encode_utf8(&mut utf8)));
        Self::Bytes { ids: Box::new(ids), unk }
    }
}

#[derive(Debug)]
pub(super) struct Bpe {
    /// (left, right) → (rank, joined).
    merges: HashMap<(u32, u32), (u32, u32)>,
    alphabet: Alphabet,
    /// A word that is a token is that token, whatever the merges would make of it.
    whole_words: bool,
}

impl Bpe {
    /// `merges` in order of rank. Each must join two tokens to a third.
    pub(super) fn new<'a>(
        vocab: &Vocab,
        merges: impl Iterator<Item = (&'a str, &'a str)>,
        alphabet: Alphabet,
        whole_words: bool,
    ) -> Result<Self, TextError> {
        let mut table = HashMap::with_capacity(merges.size_hint().0);
        let mut joined = String::new();
        for (rank, (left, right)) in merges.enumerate() {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let id = |text: &str| {
                vocab.id(text).ok_or_else(|| TextError::Vocabulary {
                    what: format!("merge {rank} (`{left}` and `{right}`)"),
                    found: format!("about `{text}`, which is no token"),
                    needed: "merges of tokens that make a token".into(),
                })
            };
            table.entry((id(left)?, id(right)?)).or_insert((rank as u32, id(&joined)?));
        }
        Ok(Self { merges: table, alphabet, whole_words })
    }

    /// Appends the tokens of one word.
    pub(super) fn encode(&self, vocab: &Vocab, word: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        if self.whole_words {
            let id = match self.alphabet {
                Alphabet::Bytes { .. } => vocab.id(&word.bytes().map(byte_to_char).collect::<String>()),
                Alphabet::Chars { .. } => vocab.id(word),
            };
            if let Some(id) = id {
                out.push(id);
                return;
            }
        }
        scratch.symbols.clear();
        match &self.alphabet {
            Alphabet::Bytes { ids, unk } => {
                let symbols = word.bytes().enumerate().filter_map(|(at, byte)| {
                    ids[usize::from(byte)].or(*unk).map(|id| Symbol::new(id, at, 1))
                });
                scratch.symbols.extend(symbols);
            }
            Alphabet::Chars { bytes, unk, fuse_unk } => {
                let mut utf8 = [0; 4];
                for (at, c) in word.char_indices() {
                    let piece: &str = c.encode_utf8(&mut utf8);
                    if let Some(id) = vocab.id(piece) {
                        scratch.symbols.push(Symbol::new(id, at, piece.len()));
                        continue;
                    }
                    let fallback =
                        bytes.as_ref().filter(|ids| piece.bytes().all(|b| ids[usize::from(b)].is_some()));
                    if let Some(ids) = fallback {
                        let spelled = piece
                            .bytes()
                            .enumerate()
                            .filter_map(|(i, b)| ids[usize::from(b)].map(|id| Symbol::new(id, at + i, 1)));
                        scratch.symbols.extend(spelled);
                        continue;
                    }
                    let Some(unk) = *unk else { continue };
                    match scratch.symbols.last_mut() {
                        Some(last) if *fuse_unk && last.id == unk => last.len += piece.len() as u32,
                        _ => scratch.symbols.push(Symbol::new(unk, at, piece.len())),
                    }
                }
            }
        }
        scratch.merge(|l, r| self.merges.get(&(l.id, r.id)).copied());
        out.extend(scratch.symbols.iter().map(|s| s.id));
    }
}
