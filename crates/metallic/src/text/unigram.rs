//! SentencePiece's unigram model: of all ways to write a text in tokens, the one whose scores sum highest.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::TextError;
use super::vocab::{Kind, Vocab};

/// How much worse an unknown character is than the worst token.
const UNKNOWN_PENALTY: f64 = 10.0;
/// Bytes of the longest token: the work for each byte of text is bounded by it.
const LONGEST: usize = 1024;

#[derive(Debug)]
pub(super) struct Unigram {
    /// Finds every token, at every place.
    tokens: AhoCorasick,
    /// By pattern of `tokens`: id and score.
    scores: Vec<(u32, f64)>,
    unk: Option<u32>,
    unknown_score: f64,
    /// The tokens of single bytes, for what is unknown.
    bytes: Option<Box<[Option<u32>; 256]>>,
}

/// The best way to a place in the text.
#[derive(Clone, Copy, Debug)]
struct Step {
    score: f64,
    /// Where its last token begins.
    from: u32,
    /// Its last token; `None` for an unknown character.
    id: Option<u32>,
}

/// Buffers kept between words.
#[derive(Debug, Default)]
pub(super) struct Lattice {
    steps: Vec<Step>,
    path: Vec<(usize, usize, Option<u32>)>,
}

impl Unigram {
    /// `scores` by id; `unk` is what stands for characters without a token.
    pub(super) fn new(
        vocab: &Vocab,
        scores: &[f64],
        unk: Option<u32>,
        bytes: Option<Box<[Option<u32>; 256]>>,
    ) -> Result<Self, TextError> {
        let malformed = |what: String, found: String, needed: &str| TextError::Vocabulary {
            what,
            found,
            needed: needed.into(),
        };
        let mut worst = f64::INFINITY;
        let (mut texts, mut by_pattern) = (Vec::new(), Vec::new());
        for (id, (token, &score)) in (0..).zip(vocab.tokens.iter().zip(scores)) {
            if !score.is_finite() {
                let what = format!("the score of token `{}`", token.text);
                return Err(malformed(what, score.to_string(), "a finite number"));
            }
            if !matches!(token.kind, Kind::Normal | Kind::UserDefined | Kind::Unused)
                || token.text.is_empty()
                || Some(id) == unk
                || vocab.id(&token.text) != Some(id)
            {
                continue;
            }
            if token.text.len() > LONGEST {
                let what = format!("the length of token {id}");
                let needed = "at most 1024 bytes in a unigram vocabulary";
                return Err(malformed(what, format!("{} bytes", token.text.len()), needed));
            }
            worst = worst.min(score);
            texts.push(&*token.text);
            by_pattern.push((id, if token.kind == Kind::UserDefined { 0.0 } else { score }));
        }
        let finder = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::Standard)
            .build(texts);
        let tokens = finder
            .map_err(|e| malformed("the vocabulary".into(), e.to_string(), "a list that fits into memory"))?;
        let unknown_score = if worst.is_finite() { worst } else { 0.0 } - UNKNOWN_PENALTY;
        Ok(Self { tokens, scores: by_pattern, unk, unknown_score, bytes })
    }

    /// Appends the tokens of a text whose spaces are `▁` already.
    pub(super) fn encode(
        &self,
        text: &str,
        lattice: &mut Lattice,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let Lattice { steps, path } = lattice;
        let nowhere = Step { score: f64::NEG_INFINITY, from: 0, id: None };
        steps.clear();
        steps.resize(text.len() + 1, nowhere);
        steps[0].score = 0.0;
        // Matches come in order of their ends, the longest of an end first: where a match begins all is decided, and of
        // equal ways the first stays.
        let found = self
            .tokens
            .try_find_overlapping_iter(text)
            .map_err(|e| TextError::Pattern { pattern: "the vocabulary".into(), reason: e.to_string() })?;
        let mut found = found.peekable();
        for (at, c) in text.char_indices() {
            let end = at + c.len_utf8();
            let mut single = false;
            while let Some(m) = found.next_if(|m| m.end() <= end) {
                let (id, score) = self.scores[m.pattern().as_usize()];
                single |= m.start() == at;
                let score = steps[m.start()].score + score;
                if score > steps[m.end()].score {
                    steps[m.end()] = Step { score, from: m.start() as u32, id: Some(id) };
                }
            }
            let score = steps[at].score + self.unknown_score;
            if !single && score > steps[end].score {
                steps[end] = Step { score, from: at as u32, id: None };
            }
        }
        path.clear();
        let mut end = text.len();
        while end > 0 {
            let Step { from, id, .. } = steps[end];
            let start = from as usize;
            match path.last_mut() {
                // Neighbouring unknown characters are one.
                Some((first, _, None)) if id.is_none() => *first = start,
                _ => path.push((start, end, id)),
            }
            end = start;
        }
        for &(start, end, id) in path.iter().rev() {
            let Some(id) = id else {
                self.spell(&text.as_bytes()[start..end], out);
                continue;
            };
            out.push(id);
        }
        Ok(())
    }

    fn spell(&self, unknown: &[u8], out: &mut Vec<u32>) {
        let spelled = self
            .bytes
            .as_ref()
            .and_then(|ids| unknown.iter().map(|&b| ids[usize::from(b)]).collect::<Option<Vec<u32>>>());
        match spelled {
            Some(ids) => out.extend(ids),
            None => out.extend(self.unk),
        }
    }
}
