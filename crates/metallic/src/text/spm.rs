//! SentencePiece's BPE as GGUF files store it: no merge list, but a score per token. The pair whose joined text has the
//! best score is joined first.

use super::merge::{Scratch, Symbol};
use super::vocab::Vocab;

#[derive(Debug)]
pub(super) struct Spm {
    /// Per token: 0 for the best score, larger is worse.
    priorities: Vec<u32>,
    bytes: Box<[Option<u32>; 256]>,
    unk: Option<u32>,
    /// Bytes of the longest token: longer runs need no lookup.
    longest: usize,
}

impl Spm {
    pub(super) fn new(vocab: &Vocab, scores: &[f32], unk: Option<u32>) -> Self {
        Self {
            priorities: scores.iter().map(|&s| priority(s)).collect(),
            bytes: vocab.byte_fallback_ids(),
            unk,
            longest: vocab.tokens.iter().map(|t| t.text.len()).max().unwrap_or(0),
        }
    }

    /// Appends the tokens of a text whose spaces are `▁` already.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        scratch.symbols.clear();
        let mut utf8 = [0; 4];
        scratch.symbols.extend(text.char_indices().map(|(at, c)| {
            let id = vocab.id(c.encode_utf8(&mut utf8)).unwrap_or(Symbol::NO_ID);
            Symbol::new(id, at, c.len_utf8())
        }));
        scratch.merge(|l, r| {
            let (start, len) = (l.start as usize, (l.len + r.len) as usize);
            if len > self.longest {
                return None;
            }
            let id = vocab.id(&text[start..start + len])?;
            Some((*self.priorities.get(id as usize)?, id))
        });
        for s in &scratch.symbols {
            if s.id != Symbol::NO_ID {
                out.push(s.id);
                continue;
            }
            let piece = &text.as_bytes()[s.start as usize..(s.start + s.len) as usize];
            out.extend(piece.iter().filter_map(|&b| self.bytes[usize::from(b)].or(self.unk)));
        }
    }
}

/// A number that is smaller the better the score, and equal for equal scores.
fn priority(score: f32) -> u32 {
    // -0.0 and 0.0 are the same score.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::priority;

    #[test]
    fn better_scores_come_first() {
        let scores = [3.5, 0.0, -0.25, -1.0, -31999.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|w| priority(w[0]) < priority(w[1])));
        assert_eq!(priority(0.0), priority(-0.0));
    }
}
