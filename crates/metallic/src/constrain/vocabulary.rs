//! A tokenizer's tokens as a tree of bytes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::toktrie::{SimpleVob, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{ParserFactory, panic_utils};

use super::ConstrainError;
use super::error::reason;
use crate::text::Tokenizer;

/// Longer tokens are left out: the tree does not hold them, and no text needs them.
const LONGEST_TOKEN: usize = 512;
/// Lexer states one answer may use, of about 2 KB each.
const LEXER_STATES: usize = 50_000;
/// Symbols a grammar may have.
const GRAMMAR_SIZE: usize = 100_000;
/// Earley items of one row.
const ROW_ITEMS: usize = 1_000;

/// The tree, and what is known of its tokens.
pub(super) struct Vocabulary {
    pub(super) trie: TokTrie,
    /// Tokens that end an answer.
    pub(super) ends: Vec<TokenId>,
    /// Tokens that begin with white space.
    pub(super) spaces: SimpleVob,
    /// Tokens that begin with a digit.
    pub(super) digits: SimpleVob,
    /// Those of digits alone whose last is no zero.
    pub(super) last_digits: SimpleVob,
    /// Each byte of plain text is a token, so that no text has more tokens than bytes.
    pub(super) has_bytes: bool,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    /// The model chooses how text that must come is cut into tokens.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Vocabulary {
    pub(super) fn new(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<Self, ConstrainError> {
        let size = tokenizer.vocab_size();
        let words: Vec<Vec<u8>> = (0..size as u32).map(|id| word(tokenizer, id)).collect();
        let ends: Vec<u32> = end_tokens.iter().copied().filter(|id| (*id as usize) < size).collect();
        // Without an end token none is ever allowed; the engine ends the answer.
        let info = TokRxInfo::new(size as u32, ends.first().copied().unwrap_or(u32::MAX));
        let trie = panic_utils::catch_unwind(|| Ok(TokTrie::from(&info, &words)))
            .map_err(|error| ConstrainError::Vocabulary { reason: reason(&error) })?;
        let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) };
        let those = |are: fn(&[u8]) -> bool| {
            let mut set = trie.alloc_token_set();
            let found = (0..).zip(&words).filter(|(_, word)| are(word));
            found.for_each(|(id, _)| set.allow_token(id));
            set
        };
        let spaces = those(|word| word.first().is_some_and(u8::is_ascii_whitespace));
        let digits = those(|word| word.first().is_some_and(u8::is_ascii_digit));
        let last_digits = those(|word| {
            word.iter().all(u8::is_ascii_digit)
                && word.last().is_some_and(|digit| (b'1'..=b'9').contains(digit))
        });
        let has_bytes = (b' '..=b'~').all(|byte| trie.token_id(&[byte]).is_some());
        Ok(Self { trie, ends, spaces, digits, last_digits, has_bytes })
    }

    /// A text in tokens; a vocabulary may lack a byte.
    pub(super) fn tokens(&self, bytes: &[u8]) -> Option<Vec<TokenId>> {
        let tokens = self.trie.greedy_tokenize(bytes);
        (self.trie.decode_raw(&tokens) == bytes).then_some(tokens)
    }

    /// Whether a text has so many tokens at most.
    pub(super) fn fits(&self, bytes: &[u8], most: usize) -> bool {
        let plain = self.has_bytes && bytes.is_ascii();
        (plain && bytes.len() <= most) || self.tokens(bytes).is_some_and(|tokens| tokens.len() <= most)
    }

    /// What compiles grammars over these tokens, in bounded time and memory.
    pub(super) fn factory(self: &Arc<Self>) -> Result<ParserFactory, ConstrainError> {
        let environment: Arc<dyn TokenizerEnv + Sync> = Arc::clone(self) as _;
        let mut factory =
            panic_utils::catch_unwind(AssertUnwindSafe(|| ParserFactory::new_simple(&environment)))
                .map_err(|error| ConstrainError::Vocabulary { reason: reason(&error) })?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = LEXER_STATES;
        limits.max_grammar_size = GRAMMAR_SIZE;
        limits.max_items_in_row = ROW_ITEMS;
        Ok(factory)
    }
}

/// The bytes of a token. Those of a mark begin with a byte that no text has, so that only a grammar that names it gets it.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let Some(bytes) = tokenizer.token_bytes(id).filter(|bytes| bytes.len() <= LONGEST_TOKEN) else {
        return Vec::new();
    };
    let mut word = Vec::with_capacity(bytes.len() + 1);
    // A token of the byte 0xff alone would pass for the beginning of a mark.
    if tokenizer.is_special(id) {
        word.push(TokTrie::SPECIAL_TOKEN_MARKER);
    } else if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
        return Vec::new();
    }
    word.extend_from_slice(&bytes);
    word
}
