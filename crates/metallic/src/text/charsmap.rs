//! The normalization that SentencePiece compiles into a model: a table from sequences of bytes to what replaces them.
//!
//! The table is a trie in a double array. Four bytes give its size; units of four bytes follow, then the replacements, each
//! ended by a zero. A unit has its label in bits 0 to 7 and 31, whether a value follows in bit 8, and in bits 10 to 30 how far
//! its children lie, in steps of 256 where bit 9 is set.

use std::borrow::Cow;

use super::TextError;

#[derive(Debug)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: String,
}

impl Charsmap {
    pub(super) fn new(blob: &[u8]) -> Result<Self, TextError> {
        let bad = |found: String, needed: &str| TextError::Vocabulary {
            what: "the precompiled normalization (charsmap)".into(),
            found,
            needed: needed.into(),
        };
        let Some((size, rest)) = blob.split_first_chunk::<4>() else {
            return Err(bad(format!("{} bytes", blob.len()), "at least 4"));
        };
        let size = u32::from_le_bytes(*size) as usize;
        let Some((units, replacements)) = rest.split_at_checked(size).filter(|_| size.is_multiple_of(4))
        else {
            return Err(bad(
                format!("a trie of {size} bytes in {}", rest.len()),
                "a multiple of 4 that fits",
            ));
        };
        let units = units.chunks_exact(4).map(|u| u32::from_le_bytes([u[0], u[1], u[2], u[3]])).collect();
        let replacements = std::str::from_utf8(replacements)
            .map_err(|e| bad(e.to_string(), "replacements that are UTF-8"))?
            .to_owned();
        Ok(Self { units, replacements })
    }

    /// Replaces, from the left, the longest sequence that the table has; `None` where that makes more than `limit` bytes.
    pub(super) fn apply<'a>(&self, text: Cow<'a, str>, limit: usize) -> Option<Cow<'a, str>> {
        let mut out = String::new();
        let (mut at, mut copied) = (0, 0);
        while at < text.len() {
            match self.longest(&text.as_bytes()[at..]) {
                Some((len, with)) if text.is_char_boundary(at + len) => {
                    out.push_str(&text[copied..at]);
                    out.push_str(with);
                    if out.len() > limit {
                        return None;
                    }
                    at += len;
                    copied = at;
                }
                _ => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        if copied == 0 {
            return Some(text);
        }
        out.push_str(&text[copied..]);
        Some(out.into())
    }

    /// Length and replacement of the longest entry that `bytes` begin with.
    fn longest(&self, bytes: &[u8]) -> Option<(usize, &str)> {
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut found = None;
        let mut place = offset(*self.units.first()?);
        for (i, &byte) in bytes.iter().enumerate() {
            place ^= u32::from(byte);
            let Some(&unit) = self.units.get(place as usize) else { break };
            if byte == 0 || unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            place ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let value = self.units.get(place as usize)? & !(1 << 31);
                let with = self.replacements.get(value as usize..)?;
                found = Some((i + 1, with.split_once('\0').map_or(with, |(with, _)| with)));
            }
        }
        found
    }
}
