use aho_corasick::{AhoCorasick, Input, MatchKind};
use regex_automata::meta::Regex;

use super::TextError;
use super::marks::is_spelled;

/// A token that is found in the text as a whole, before anything is split.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the flags of the file format")]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    /// A mark that only counts when the caller parses special tokens.
    pub special: bool,
    /// Takes the whitespace before it along.
    pub lstrip: bool,
    /// Takes the whitespace after it along.
    pub rstrip: bool,
    /// Only between non-word characters.
    pub single_word: bool,
}

/// A part of a text: an added token, or text still to be tokenized.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Token(u32),
    Text(&'a str),
}

/// Finds added tokens: the leftmost first, the longest of those that begin together.
#[derive(Debug)]
pub(super) struct AddedTokens {
    tokens: Vec<AddedToken>,
    all: Option<AhoCorasick>,
    /// Those that are not special, and their places in `tokens`.
    plain: Option<(AhoCorasick, Vec<usize>)>,
    /// Matches a character that is part of a word, where a token asks to stand alone.
    word: Option<Regex>,
}

impl AddedTokens {
    pub(super) fn new(tokens: Vec<AddedToken>) -> Result<Self, TextError> {
        let tokens: Vec<_> = tokens.into_iter().filter(|t| !t.content.is_empty()).collect();
        let plain: Vec<usize> = (0..tokens.len()).filter(|&i| !tokens[i].special).collect();
        let all = finder(tokens.iter().map(|t| &t.content))?;
        let plain = finder(plain.iter().map(|&i| &tokens[i].content))?.map(|f| (f, plain));
        let mut word = None;
        if tokens.iter().any(|t| t.single_word) {
            let regex = Regex::new(r"\w");
            word =
                Some(regex.map_err(|e| TextError::Pattern { pattern: r"\w".into(), reason: e.to_string() })?);
        }
        Ok(Self { tokens, all, plain, word })
    }

    /// Where special tokens begin in `text`, and where something begins that its end may be the first part of.
    pub(super) fn special_places(&self, text: &str) -> Vec<usize> {
        let mut places = Vec::new();
        let Some(all) = &self.all else { return places };
        let mut at = 0;
        while let Some(found) = all.find(Input::new(text).span(at..text.len())) {
            if self.tokens[found.pattern().as_usize()].special {
                places.push(found.start());
            }
            at = found.start() + text[found.start()..].chars().next().map_or(1, char::len_utf8);
        }
        let specials = || self.tokens.iter().filter(|t| t.special);
        let longest = specials().map(|t| t.content.len()).max().unwrap_or(0);
        let tail = text.char_indices().rev().take_while(|(at, _)| text.len() - at < longest);
        let tail: Vec<usize> = tail.map(|(at, _)| at).collect();
        for &at in tail.iter().rev() {
            if specials().any(|t| t.content.starts_with(&text[at..])) {
                places.push(at);
            }
        }
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Cuts `text` at the added tokens. Special ones that reach over one of the places in `spelled` are text.
    pub(super) fn cut<'a>(&self, text: &'a str, parse_special: bool, spelled: &[usize]) -> Vec<Fragment<'a>> {
        let (finder, index) = match (&self.all, &self.plain) {
            (Some(all), _) if parse_special => (all, None),
            (_, Some((plain, index))) if !parse_special => (plain, Some(index)),
            _ if text.is_empty() => return Vec::new(),
            _ => return vec![Fragment::Text(text)],
        };
        let mut out = Vec::new();
        let mut done = 0;
        for found in finder.find_iter(text) {
            let place = found.pattern().as_usize();
            let token = &self.tokens[index.map_or(place, |i| i[place])];
            let (mut start, mut end) = (found.start(), found.end());
            if token.special && is_spelled(spelled, start, end) {
                continue;
            }
            if start < done || (token.single_word && !self.stands_alone(text, start, end)) {
                continue;
            }
            if token.lstrip {
                start = done + text[done..start].trim_end().len();
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                out.push(Fragment::Text(&text[done..start]));
            }
            out.push(Fragment::Token(token.id));
            done = end;
        }
        if done < text.len() {
            out.push(Fragment::Text(&text[done..]));
        }
        out
    }

    fn stands_alone(&self, text: &str, start: usize, end: usize) -> bool {
        let is_word =
            |c: char| self.word.as_ref().is_some_and(|w| w.is_match(c.encode_utf8(&mut [0; 4]).as_bytes()));
        !text[..start].chars().next_back().is_some_and(is_word)
            && !text[end..].chars().next().is_some_and(is_word)
    }
}

fn finder<'a>(texts: impl Iterator<Item = &'a String>) -> Result<Option<AhoCorasick>, TextError> {
    let texts: Vec<&String> = texts.collect();
    if texts.is_empty() {
        return Ok(None);
    }
    AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts).map(Some).map_err(|e| {
        TextError::Vocabulary {
            what: "the list of added tokens".into(),
            found: e.to_string(),
            needed: "a list that fits into memory".into(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str, special: bool) -> AddedToken {
        let content = content.into();
        AddedToken { id, content, special, lstrip: false, rstrip: false, single_word: false }
    }

    #[test]
    fn the_longest_token_wins_and_special_ones_only_count_when_parsed() {
        let added =
            AddedTokens::new(vec![token(0, "<a>", true), token(1, "\n", false), token(2, "\n\n", false)])
                .unwrap();
        assert_eq!(
            added.cut("x<a>\n\n\ny", true, &[]),
            [
                Fragment::Text("x"),
                Fragment::Token(0),
                Fragment::Token(2),
                Fragment::Token(1),
                Fragment::Text("y")
            ]
        );
        assert_eq!(added.cut("x<a>\n", false, &[]), [Fragment::Text("x<a>"), Fragment::Token(1)]);
        assert!(added.cut("", true, &[]).is_empty());
    }

    #[test]
    fn stripping_tokens_take_the_whitespace_along() {
        let mut t = token(7, "<m>", true);
        (t.lstrip, t.rstrip, t.single_word) = (true, true, true);
        let added = AddedTokens::new(vec![t]).unwrap();
        assert_eq!(
            added.cut("a  <m>\n b", true, &[]),
            [Fragment::Text("a"), Fragment::Token(7), Fragment::Text("b")]
        );
        assert_eq!(added.cut("a<m>b", true, &[]), [Fragment::Text("a<m>b")]);
    }
}
