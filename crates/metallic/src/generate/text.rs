//! From tokens to text that is certain.

use std::collections::VecDeque;
use std::ops::Range;

use crate::text::{StopMatcher, StreamDecoder, Tokenizer};

/// Makes a decoder for each request. [`Tokenizer`] implements it.
pub trait Detokenize: Send + Sync {
    /// A decoder at the beginning of an answer.
    fn decoder(&self) -> Box<dyn Decode + '_>;

    /// The name of a special token that decoders leave out, such as `<|im_end|>`: stop strings may contain it.
    fn special(&self, id: u32) -> Option<&str> {
        let _ = id;
        None
    }
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

    fn special(&self, id: u32) -> Option<&str> {
        self.token_text(id).filter(|_| self.is_special(id))
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
    text: &'t dyn Detokenize,
    decoder: Box<dyn Decode + 't>,
    stop: StopMatcher,
    stops: Vec<String>,
    /// Bytes the matcher has given back so far, and where in all it gets the names of special tokens lie: they are matched, and no
    /// text of the answer.
    given: usize,
    taken: usize,
    hidden: VecDeque<Range<usize>>,
}

impl<'t> TextStream<'t> {
    pub(super) fn new(text: &'t dyn Detokenize, stops: Vec<String>) -> Self {
        let stop = StopMatcher::new(stops.iter());
        Self { text, decoder: text.decoder(), stop, stops, given: 0, taken: 0, hidden: VecDeque::new() }
    }

    /// The text that is certain now, and the stop string that came up, after which there is no more.
    pub(super) fn push(&mut self, id: u32) -> (String, Option<String>) {
        let piece = self.decoder.push(id);
        let mut text = self.watch(&piece);
        if let Some(name) = self.named_special(id) {
            self.hidden.push_back(self.taken..self.taken + name.len());
            text.push_str(&self.watch(name));
        }
        (text, self.stop.matched().map(str::to_owned))
    }

    /// The stop string that is this special token's name.
    pub(super) fn stop_of(&self, id: u32) -> Option<String> {
        let name = self.text.special(id)?;
        self.stops.iter().find(|stop| *stop == name).cloned()
    }

    /// The name of a special token that a stop string contains. Of others it is not even looked at: text that happens to be
    /// a part of it would end the answer.
    fn named_special(&self, id: u32) -> Option<&'t str> {
        if self.stops.is_empty() {
            return None;
        }
        self.text
            .special(id)
            .filter(|name| !name.is_empty() && self.stops.iter().any(|stop| stop.contains(name)))
    }

    /// What was held back, now that no more tokens come.
    pub(super) fn finish(&mut self) -> String {
        let rest = self.decoder.finish();
        let mut text = self.watch(&rest);
        let held = self.stop.finish();
        text.push_str(&self.seen(held));
        text
    }

    /// What the matcher lets through of the text so far and this, without names of special tokens.
    fn watch(&mut self, text: &str) -> String {
        self.taken += text.len();
        let certain = self.stop.push(text);
        self.seen(certain)
    }

    fn seen(&mut self, text: String) -> String {
        let (start, end) = (self.given, self.given + text.len());
        self.given = end;
        if self.hidden.front().is_none_or(|range| range.start >= end) {
            return text;
        }
        let mut seen = String::with_capacity(text.len());
        let mut at = start;
        while let Some(range) = self.hidden.front().filter(|range| range.start < end).cloned() {
            seen.push_str(&text[at - start..range.start.max(at) - start]);
            at = range.end.min(end).max(at);
            if range.end > end {
                break;
            }
            self.hidden.pop_front();
        }
        seen.push_str(&text[at - start..]);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids below 128 are characters, 200 is a special token.
    struct Ascii;

    impl Detokenize for Ascii {
        fn decoder(&self) -> Box<dyn Decode + '_> {
            Box::new(Ascii)
        }

        fn special(&self, id: u32) -> Option<&str> {
            (id == 200).then_some("<|end|>")
        }
    }

    impl Decode for Ascii {
        fn push(&mut self, id: u32) -> String {
            char::from_u32(id).filter(char::is_ascii).map(String::from).unwrap_or_default()
        }

        fn finish(&mut self) -> String {
            String::new()
        }
    }

    /// The text of `tokens`, where `#` stands for the special token, and what stopped it.
    fn stream(tokens: &str, stops: &[&str]) -> (String, Option<String>) {
        let mut stream = TextStream::new(&Ascii, stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut text = String::new();
        for token in tokens.chars() {
            let (piece, stop) = stream.push(if token == '#' { 200 } else { token as u32 });
            text.push_str(&piece);
            if stop.is_some() {
                return (text, stop);
            }
        }
        text.push_str(&stream.finish());
        (text, None)
    }

    #[test]
    fn names_of_special_tokens_stop_and_are_no_text() {
        let stopped = |text: &str, stop: &str| (text.to_owned(), Some(stop.to_owned()));
        assert_eq!(stream("ab#cd", &["<|end|>"]), stopped("ab", "<|end|>"));
        assert_eq!(stream("ab<|end|>cd", &["<|end|>"]), stopped("ab", "<|end|>"));
        assert_eq!(stream("ab#x#yc", &["<|end|>y"]), stopped("abx", "<|end|>y"));
        assert_eq!(stream("ab#cd", &["b<|end|>c", "zz"]), stopped("a", "b<|end|>c"));
        assert_eq!(stream("ab#cd", &["b<|end|>d"]), ("abcd".to_owned(), None));
        assert_eq!(stream("ab##", &["<|end|><|end|><|end|>"]), ("ab".to_owned(), None));
        assert_eq!(stream("ab#cd", &["end", "|>"]), ("abcd".to_owned(), None), "parts of a name are no text");
        assert_eq!(stream("ab#cd", &[]), ("abcd".to_owned(), None));
        assert_eq!(
            TextStream::new(&Ascii, vec!["<|end|>".to_owned()]).stop_of(200).as_deref(),
            Some("<|end|>")
        );
    }
}
