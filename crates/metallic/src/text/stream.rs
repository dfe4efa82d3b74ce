use super::Tokenizer;
use super::vocab::Spelling;

/// Turns tokens into text as they come, without ever giving out half a character.
///
/// The concatenation of all that [`push`](Self::push) and [`finish`](Self::finish) return is what
/// [`Tokenizer::decode`] makes of all the tokens at once.
#[derive(Debug)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    /// The next byte is the first of the text, and a space there is one the tokenizer added.
    drops_space: bool,
    /// Bytes of a character that is not complete yet: at most three.
    held: Vec<u8>,
}

impl<'t> StreamDecoder<'t> {
    /// A decoder at the beginning of a text. `skip_special` leaves control tokens out.
    pub fn new(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        let drops_space = matches!(tokenizer.vocab().spelling, Spelling::Pieces { drop_first_space: true });
        Self { tokenizer, skip_special, drops_space, held: Vec::new() }
    }

    /// A decoder in the middle of a text: a space at the beginning of the first token is a space.
    pub fn continuing(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        Self { drops_space: false, ..Self::new(tokenizer, skip_special) }
    }

    /// Takes the next token and returns the text that is certain now, which may be empty.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.push_into(id, &mut out);
        out
    }

    /// Ends the text: an incomplete character becomes `U+FFFD`.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.finish_into(&mut out);
        out
    }

    pub(super) fn push_into(&mut self, id: u32, out: &mut String) {
        if self.skip_special && self.tokenizer.is_special(id) {
            return;
        }
        let Some(bytes) = self.tokenizer.token_bytes(id) else { return };
        let mut bytes = &*bytes;
        if self.drops_space && !bytes.is_empty() {
            self.drops_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        if self.held.is_empty() {
            let rest = emit(bytes, out);
            self.held.extend_from_slice(rest);
        } else {
            self.held.extend_from_slice(bytes);
            let rest = emit(&self.held, out).len();
            self.held.drain(..self.held.len() - rest);
        }
    }

    pub(super) fn finish_into(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends the text of `bytes` and returns the beginning of a character at their end. What can never become a character
/// is replaced, exactly as [`String::from_utf8_lossy`] does.
fn emit<'b>(mut bytes: &'b [u8], out: &mut String) -> &'b [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                // Valid by the error's own word; lossy only in form.
                out.push_str(&String::from_utf8_lossy(valid));
                let Some(bad) = error.error_len() else { return rest };
                out.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[bad..];
            }
        }
    }
}
