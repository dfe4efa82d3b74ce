//! From tokens to text that is certain.

use crate::text::{StopMatcher, StreamDecoder, Tokenizer};

/// Makes a decoder for each request. [`Tokenizer`] implements it.
pub trait Detokenize: Send + Sync {
    /// A decoder at the beginning of an answer.
    fn decoder(&self) -> Box<dyn Decode + '_>;
}

/// Turns the tokens of one answer into text.
pub trait Decode: Send {
    /// The text that became certain with this token: whole characters only.
    fn push(&mut self, id: u32) -> String;

    /// The text left at the end, if any.
    fn finish(&mut self) -> String;
}

/// An answer continues its prompt, so a space at its beginning is a space; control tokens are left out.
impl Detokenize for Tokenizer {
    fn decoder(&self) -> Box<dyn Decode + '_> {
        Box::new(StreamDecoder::continuing(self, true))
    }
}

impl Decode for StreamDecoder<'_> {
    fn push(&mut self, id: u32) -> String {
        StreamDecoder::push(self, id)
    }

    fn finish(&mut self) -> String {
        StreamDecoder::finish(self)
    }
}

/// Text of one answer: holds back what may begin a stop string and ends before one.
pub(super) struct TextStream<'t> {
    decoder: Box<dyn Decode + 't>,
    stop: StopMatcher,
}

impl<'t> TextStream<'t> {
    pub(super) fn new(text: &'t dyn Detokenize, stop: Vec<String>) -> Self {
        Self { decoder: text.decoder(), stop: StopMatcher::new(stop) }
    }

    /// The text that is certain now, and whether a stop string came up, after which there is no more.
    pub(super) fn push(&mut self, id: u32) -> (String, bool) {
        let text = self.stop.push(&self.decoder.push(id));
        (text, self.stop.is_stopped())
    }

    /// What was held back, now that no more tokens come.
    pub(super) fn finish(&mut self) -> String {
        let mut text = self.stop.push(&self.decoder.finish());
        text.push_str(&self.stop.finish());
        text
    }
}
