use std::borrow::Cow;
use std::collections::HashMap;

use super::TextError;
use super::byte_level;

/// The character SentencePiece writes for a space.
pub(super) const SPACE_MARK: char = '\u{2581}';

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A piece of text.
    Normal,
    /// Stands for text the vocabulary cannot express.
    Unknown,
    /// A mark of the chat format or of the text's borders; users do not write it.
    Control,
    /// Text that is never split: found before the tokenizer proper runs.
    UserDefined,
    /// Not in use; decodes to nothing. Also fills the gaps between ids.
    Unused,
    /// One byte of a character the vocabulary lacks.
    Byte(u8),
}

#[derive(Debug)]
pub(super) struct Token {
    pub text: Box<str>,
    pub kind: Kind,
}

/// How token texts become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each character stands for one byte.
    ByteLevel,
    /// Text in which `▁` is a space.
    Pieces {
        /// The first space of a text was added by the tokenizer and is dropped again.
        drop_first_space: bool,
    },
}

/// The tokens by id and by text.
#[derive(Debug)]
pub(super) struct Vocab {
    pub tokens: Vec<Token>,
    ids: HashMap<Box<str>, u32>,
    pub spelling: Spelling,
}

impl Vocab {
    /// How far an id may lie beyond the number of tokens. Real vocabularies have gaps of a few thousand; a lying id must
    /// not make us allocate gigabytes.
    const MAX_GAP: usize = 1 << 18;

    /// A vocabulary from (id, token) in any order. A later token takes the id of an earlier one.
    pub(super) fn new(entries: Vec<(u64, Token)>, spelling: Spelling) -> Result<Self, TextError> {
        let limit = entries.len() + Self::MAX_GAP;
        let mut tokens = Vec::with_capacity(entries.len());
        let mut ids = HashMap::with_capacity(entries.len());
        for (id, token) in entries {
            let index = usize::try_from(id).unwrap_or(usize::MAX);
            if index >= limit {
                return Err(TextError::Vocabulary {
                    what: format!("the id of token `{}`", token.text),
                    found: id.to_string(),
                    needed: format!("less than {limit}"),
                });
            }
            if index >= tokens.len() {
                tokens.resize_with(index + 1, || Token { text: "".into(), kind: Kind::Unused });
            }
            ids.insert(token.text.clone(), index as u32);
            tokens[index] = token;
        }
        if tokens.is_empty() {
            return Err(TextError::Vocabulary {
                what: "the number of tokens".into(),
                found: "0".into(),
                needed: "at least 1".into(),
            });
        }
        Ok(Self { tokens, ids, spelling })
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub(super) fn get(&self, id: u32) -> Option<&Token> {
        self.tokens.get(id as usize)
    }

    /// The bytes token `id` adds to a text.
    pub(super) fn bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        let token = self.get(id)?;
        let text = token.text.as_bytes();
        Some(match (token.kind, self.spelling) {
            (Kind::Unused, _) => Cow::Borrowed(&[]),
            (Kind::Byte(byte), _) => Cow::Owned(vec![byte]),
            (Kind::Control | Kind::Unknown, _) | (Kind::UserDefined, Spelling::ByteLevel) => {
                Cow::Borrowed(text)
            }
            (Kind::Normal, Spelling::ByteLevel) => {
                let mut out = Vec::with_capacity(text.len());
                byte_level::decode_into(&token.text, &mut out);
                Cow::Owned(out)
            }
            (Kind::Normal | Kind::UserDefined, Spelling::Pieces { .. }) => {
                if token.text.contains(SPACE_MARK) {
                    Cow::Owned(token.text.replace(SPACE_MARK, " ").into_bytes())
                } else {
                    Cow::Borrowed(text)
                }
            }
        })
    }

    /// Whether no token reaches across the beginning of a word, so that words can be tokenized one by one.
    ///
    /// A merge makes a token; where no token has a `▁` behind another character, none can join two words.
    pub(super) fn keeps_words_apart(&self) -> bool {
        let joins = |t: &Token| t.text.trim_start_matches(SPACE_MARK).contains(SPACE_MARK);
        self.id("\u{2581}").is_some() && !self.tokens.iter().any(joins)
    }

    /// The ids of the 256 byte tokens `<0x00>` to `<0xFF>`, where the vocabulary has them.
    pub(super) fn byte_fallback_ids(&self) -> Box<[Option<u32>; 256]> {
        Box::new(std::array::from_fn(|byte| self.id(&format!("<0x{byte:02X}>"))))
    }
}

/// The byte that a token text of the form `<0xAB>` names.
pub(super) fn parse_byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}
